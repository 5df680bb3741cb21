"""One safetensors file: what is in it, read a tensor at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from infra_lab.errors import ModelLoadError
from infra_lab.models.shapes import Shape

_FLOATS = ("F64", "F32", "BF16", "F16")


def tensor_shapes(file: Path) -> dict[str, Shape]:
    """Every tensor's shape by its name.

    Raises ModelLoadError when the file is damaged or has a tensor of another type than floats.
    """
    shapes: dict[str, Shape] = {}
    with opened(file) as tensors:
        for name in tensors.keys():  # noqa: SIM118 - not a dict, and not iterable
            view = tensors.get_slice(name)
            if view.get_dtype() not in _FLOATS:
                raise ModelLoadError(
                    f"{file}: tensor {name!r} is of type {view.get_dtype()}, which is not "
                    f"supported; {', '.join(_FLOATS)} are"
                )
            shapes[name] = tuple(view.get_shape())
    return shapes


@contextmanager
def opened(file: Path) -> Iterator[Any]:
    """The file mapped into memory for the time of one read: nothing stays resident."""
    try:
        with safe_open(file, framework="pt") as tensors:
            yield tensors
    except (SafetensorError, OSError) as error:
        raise ModelLoadError(f"{file}: damaged or truncated ({error}); fetch it again") from error
