"""What a kernel's wrapper raises when it is called with tensors that it cannot take."""


class KernelInputError(ValueError):
    """A tensor has the wrong shape, dtype, stride or device; says what was given and wanted."""
