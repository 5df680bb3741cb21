"""A weight of 2 to 8 bits in the form that quantized_linear.c reads, and what it does with it."""

from __future__ import annotations

import ctypes
import math
from collections.abc import Callable
from enum import IntEnum

import torch
import torch.nn.functional as F

from infra_lab.native.library import load_library
from infra_lab.native.ops import empty_output, num_panels
from infra_lab.native.recording import Kernel, run

Empty = Callable[..., torch.Tensor]
LARGEST_SCALE = 2.0**100  # of what is multiplied in advance: far from overflow


class Coding(IntEnum):
    """What a stored code is, as decode.h numbers it."""

    NIBBLES = 0
    SIGNED = 1
    UNSIGNED = 2
    E4M3 = 3
    TABLE = 4


class Shift(IntEnum):
    """What comes beside the scales, likewise."""

    NONE = 0
    ZEROS = 1
    OFFSETS = 2
    EXACT = 3


class _Matrix(ctypes.Structure):
    """The C struct QuantizedMatrix, field for field."""

    _fields_ = (
        ("codes", ctypes.c_void_p),
        ("values", ctypes.c_void_p),
        ("factors", ctypes.c_void_p),
        ("groups", ctypes.c_void_p),
        ("n", ctypes.c_int64),
        ("k", ctypes.c_int64),
        ("group_size", ctypes.c_int64),
        ("num_groups", ctypes.c_int64),
        ("coding", ctypes.c_int64),
        ("shift", ctypes.c_int64),
        ("half_factors", ctypes.c_int64),
    )


class QuantizedMatrix:
    """Codes and scales in panels, as many columns wide as linear.c's.

    Codes of up to 4 bits take half a byte, of more a byte.
    """

    def __init__(
        self,
        codes: torch.Tensor,
        values: torch.Tensor,
        scales: torch.Tensor,
        group_size: int,
        zeros: torch.Tensor | None = None,
        offsets: torch.Tensor | None = None,
        g_idx: torch.Tensor | None = None,
        empty: Empty = torch.empty,
    ) -> None:
        """The parts of a `formats.quantized_weight.QuantizedWeight`, all on the CPU; they are
        copied, not kept. `empty` gives the memory of the copies."""
        self.out_features, self.in_features = codes.shape
        shift, beside = _shift(values, scales, zeros, offsets)
        coding, added, table = _coded(codes, values, shift)
        if coding is Coding.TABLE and shift is Shift.EXACT:
            shift = Shift.OFFSETS  # the same two operations, one by one
        self.coding, self.shift = coding, shift
        self.codes = _packed_codes(codes, coding, added, empty)
        self.values = table
        self.factors = _packed_factors([scales, *([] if beside is None else [beside])], empty)
        self.groups = None if g_idx is None else g_idx.to(torch.int32)
        self._struct = _Matrix(
            codes=self.codes.data_ptr(),
            values=0 if table is None else table.data_ptr(),
            factors=self.factors.data_ptr(),
            groups=0 if self.groups is None else self.groups.data_ptr(),
            n=self.out_features,
            k=self.in_features,
            group_size=group_size,
            num_groups=scales.shape[1],
            coding=coding,
            shift=shift,
            half_factors=self.factors.dtype == torch.float16,
        )
        self.pointer = ctypes.addressof(self._struct)

    @property
    def num_bytes(self) -> int:
        """What a product reads."""
        tensors = (self.codes, self.values, self.factors, self.groups)
        return sum(tensor.nbytes for tensor in tensors if tensor is not None)


def quantized_linear(
    x: torch.Tensor, matrix: QuantizedMatrix, out: torch.Tensor | None = None
) -> torch.Tensor:
    """x: fp32 [m, in], contiguous -> [m, out_features], into `out`, each row contiguous, if
    given."""
    rows = x.shape[0]
    y = empty_output(rows, matrix.out_features) if out is None else out
    scratch = torch.empty(x.numel()) if rows > 1 else None
    scratch_pointer = 0 if scratch is None else scratch.data_ptr()
    pointers = (x.data_ptr(), matrix.pointer, y.data_ptr(), scratch_pointer)
    kernel = load_library().quantized_linear
    sizes = (rows, y.stride(0))
    run(Kernel.QUANTIZED_LINEAR, kernel, pointers, sizes, (x, matrix, y, scratch))
    return y


def quantized_rows(matrix: QuantizedMatrix, indices: torch.Tensor) -> torch.Tensor:
    """Rows of the matrix as checkpoints store it: int64 [n], each below out_features -> fp32
    [n, in]."""
    indices = indices.contiguous()
    out = torch.empty(len(indices), matrix.in_features)
    load_library().quantized_rows(
        matrix.pointer, indices.data_ptr(), len(indices), out.data_ptr(), torch.get_num_threads()
    )
    return out


def _shift(
    values: torch.Tensor,
    scales: torch.Tensor,
    zeros: torch.Tensor | None,
    offsets: torch.Tensor | None,
) -> tuple[Shift, torch.Tensor | None]:
    """What to keep beside the scales, and how it is meant.

    Where values and zeros are integers of b bits and the scales have b bits to spare, as those that
    came from fp16 or bf16 do, value * scale and zero * scale are exact in fp32. Then
    (value - zero) * scale and value * scale - zero * scale are one number, rounded once.
    """
    if zeros is None and offsets is None:
        return Shift.NONE, None
    largest = max(_largest_integer(part) for part in (values, zeros) if part is not None)
    spare_bits = 2 ** int(min(largest, 2**23)).bit_length() - 1
    is_exact = (
        largest <= 256
        and bool((scales.abs() < LARGEST_SCALE).all())
        and not bool((scales.view(torch.int32) & spare_bits).any())
    )
    if is_exact:
        return Shift.EXACT, offsets if zeros is None else zeros.neg() * scales
    return (Shift.OFFSETS, offsets) if zeros is None else (Shift.ZEROS, zeros)


def _largest_integer(numbers: torch.Tensor) -> float:
    """The largest magnitude; infinity where one is not an integer."""
    if not torch.equal(numbers, numbers.round()):
        return math.inf
    return float(numbers.abs().max())


def _coded(
    codes: torch.Tensor, values: torch.Tensor, shift: Shift
) -> tuple[Coding, int, torch.Tensor | None]:
    """How to keep the codes, what to add to each, and the table where one is read."""
    count = len(values)
    if count <= 16:
        return Coding.NIBBLES, 0, F.pad(values, (0, 16 - count))
    first = float(values[0])
    if first.is_integer() and torch.equal(values, first + torch.arange(count)):
        coding = Coding.UNSIGNED if first >= 0 else Coding.SIGNED
        lowest = 0 if coding is Coding.UNSIGNED else -128
        if lowest <= first <= lowest + 256 - count and _can_decode(coding, shift):
            return coding, int(first) % 256, None  # modulo 256, as two's complement has it
    if _can_decode(Coding.E4M3, shift) and _are_e4m3(codes, values):
        return Coding.E4M3, 0, None
    return Coding.TABLE, 0, F.pad(values, (0, 256 - count))


def _can_decode(coding: Coding, shift: Shift) -> bool:
    return bool(load_library().decodes(coding, shift))


def _are_e4m3(codes: torch.Tensor, values: torch.Tensor) -> bool:
    """Whether these are fp8 numbers, none of them NaN."""
    if len(values) != 256:
        return False
    numbers = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    same = torch.equal(values.nan_to_num(), numbers.nan_to_num())
    return same and not bool(((codes & 0x7F) == 0x7F).any())


def _packed_codes(codes: torch.Tensor, coding: Coding, added: int, empty: Empty) -> torch.Tensor:
    """uint8 [out, in] -> [panels, in, bytes], `added` to each code."""
    library = load_library()
    out_features, in_features = codes.shape
    codes = codes.contiguous()
    row_bytes = library.panel_width() // (2 if coding is Coding.NIBBLES else 1)
    packed = empty(num_panels(out_features), in_features, row_bytes, dtype=torch.uint8)
    library.pack_codes(
        codes.data_ptr(),
        packed.data_ptr(),
        out_features,
        in_features,
        coding,
        added,
        torch.get_num_threads(),
    )
    return packed


def _packed_factors(parts: list[torch.Tensor], empty: Empty) -> torch.Tensor:
    """fp32 [out, groups] each -> [panels, groups, len(parts), panel width], zero-padded: in fp16
    where that has the same numbers, as those have that a checkpoint kept in it."""
    width = load_library().panel_width()
    out_features, groups = parts[0].shape
    panels = num_panels(out_features)
    are_halves = load_library().reads_halves() and all(
        torch.equal(part.half().float(), part) for part in parts
    )
    dtype = torch.float16 if are_halves else torch.float32
    packed = empty(panels, groups, len(parts), width, dtype=dtype)
    for place, part in enumerate(parts):
        padded = F.pad(part, (0, 0, 0, panels * width - out_features))
        packed[:, :, place] = padded.view(panels, width, groups).transpose(1, 2)
    return packed
