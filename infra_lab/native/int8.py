"""A weight of int8 codes in the form that int8_linear.c reads, and its product with int8 tokens."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import torch
import torch.nn.functional as F

from infra_lab.native.library import load_library
from infra_lab.native.ops import empty_output, num_panels
from infra_lab.native.recording import Kernel, run

QUAD = 4  # codes that lie side by side
LONGEST_ROW = (2**31 - 1) // (255 * 127)  # of longer ones a sum could pass int32


class _Matrix(ctypes.Structure):
    """The C struct Int8Matrix, field for field."""

    _fields_ = (
        ("codes", ctypes.c_void_p),
        ("scales", ctypes.c_void_p),
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("largest", ctypes.c_float),
        ("input_scale", ctypes.c_float),
    )


class Int8Matrix:
    """Integers from -128 to 127 with a scale for each row as checkpoints store them."""

    def __init__(
        self,
        codes: torch.Tensor,
        scales: torch.Tensor,
        largest: int,
        input_scale: float | None = None,
        empty: Callable[..., torch.Tensor] = torch.empty,
    ) -> None:
        """codes: uint8 [out, in], each 128 more than the integer; scales: fp32 [out]. They are
        copied, into memory that `empty` gives. The input's codes go from -largest to largest,
        times input_scale or, if there is none, a scale from each row."""
        self.out_features, self.in_features = codes.shape
        width, panels = load_library().panel_width(), num_panels(self.out_features)
        quads = -(-self.in_features // QUAD)
        missing = (0, quads * QUAD - self.in_features, 0, panels * width - self.out_features)
        padded = F.pad(codes, missing).view(torch.int32).view(panels, width, quads)
        self.codes = empty(panels, quads, width, QUAD, dtype=torch.uint8)
        self.codes.view(torch.int32).squeeze(-1).copy_(padded.transpose(1, 2))
        self.scales = empty(panels * width)
        self.scales.copy_(F.pad(scales, (0, missing[3])))
        self._struct = _Matrix(
            self.codes.data_ptr(),
            self.scales.data_ptr(),
            self.out_features,
            self.in_features,
            largest,
            input_scale or 0.0,
        )
        self.pointer = ctypes.addressof(self._struct)

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """int64 [n] -> fp32 [n, in], codes times scales."""
        width = self.codes.shape[2]
        codes = self.codes[indices // width, :, indices % width].flatten(1)
        return (codes[:, : self.in_features].float() - 128) * self.scales[indices, None]


def multiplies_int8() -> bool:
    """Whether this processor has the instruction for it: else nothing would be gained."""
    return bool(load_library().multiplies_int8())


def int8_linear(x: torch.Tensor, matrix: Int8Matrix) -> torch.Tensor:
    """x: fp32 [m, in], contiguous -> [m, out_features]: the exact sum of products of codes, times
    the token's scale, times the column's."""
    rows = len(x)
    y = empty_output(rows, matrix.out_features)
    quads = matrix.codes.shape[1]
    scratch = torch.empty(rows * (quads + 2))
    pointers = (x.data_ptr(), matrix.pointer, y.data_ptr(), scratch.data_ptr())
    sizes, kept = (rows, y.stride(0)), (x, matrix, y, scratch)
    kernel = load_library().int8_linear
    run(Kernel.INT8_LINEAR, kernel, pointers, sizes, kept)
    return y
