"""What every layout of quantized weights can do: name its tensors, read them, write them.

Answers "which tensors does a quantized layer have in a checkpoint, and of which shapes?": each
format lists them, so that a file is held against the list before anything is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import torch

from infra_lab.errors import ModelLoadError, UsageError
from infra_lab.formats.quantized_weight import QuantizedWeight

FLOATS = ("F64", "F32", "BF16", "F16")
Shape = tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """One tensor of a quantized layer as its file must have it.

    Attributes:
        shapes: those it may have; None stands for any length.
        dtypes: those it may have, under the names that safetensors gives them.
        required: False for one that may be left out.
    """

    shapes: tuple[Shape, ...]
    dtypes: tuple[str, ...]
    required: bool = True


class WeightFormat(Protocol):
    """A layout with its settings: bits, groups, and whatever else the file's config fixes.

    For every weight that the format can hold, `read(write(weight))` is `as_stored(weight)`, bit
    for bit.
    """

    @property
    def label(self) -> str:
        """For people: "GPTQ int4, groups of 128"."""
        ...

    @property
    def bits(self) -> int: ...

    def tensors(self, out_features: int, in_features: int) -> dict[str, StoredTensor]:
        """What a layer of that size has, by the names that follow the module's; the first says
        whether a layer is in this format at all."""
        ...

    def read(
        self, tensors: Mapping[str, torch.Tensor], out_features: int, in_features: int
    ) -> QuantizedWeight:
        """tensors: those of `tensors`, their shapes and dtypes already found right.

        Raises ModelLoadError, without the layer's name, when what they hold makes no weight.
        """
        ...

    def as_stored(self, weight: QuantizedWeight) -> QuantizedWeight:
        """What is left of the weight once it is written: scales in the format's own type.

        Raises UsageError, without the layer's name, when the format cannot hold it.
        """
        ...

    def write(self, weight: QuantizedWeight) -> dict[str, torch.Tensor]:
        """The tensors of `tensors`; raises like `as_stored`."""
        ...


def integer_table(bits: int, signed: bool) -> torch.Tensor:
    """fp32 [2**bits]: 0, 1, ... or, signed, -2**(bits - 1), ..."""
    return torch.arange(2**bits, dtype=torch.float32) - (2 ** (bits - 1) if signed else 0)


def is_integer(weight: QuantizedWeight) -> bool:
    """Whether the codes stand for integers, in either of the two tables."""
    return any(
        torch.equal(weight.values, integer_table(weight.bits, signed)) for signed in (False, True)
    )


def unsigned_zeros(weight: QuantizedWeight, label: str) -> torch.Tensor:
    """fp32 [out_features, num_groups]: the zero point of every group in units of the code itself,
    so that w = (code - zero) * scale. Raises UsageError for a weight that is not of that form."""
    if not is_integer(weight):
        raise UsageError(f"{label} keeps integers, and this weight's codes stand for other numbers")
    if weight.offsets is not None:
        raise UsageError(f"{label} keeps zero points, and this weight has offsets")
    zeros = -weight.values[0].expand_as(weight.scales)
    return zeros if weight.zeros is None else weight.zeros + zeros


def integer_zeros(weight: QuantizedWeight, label: str) -> torch.Tensor:
    """`unsigned_zeros` that are codes themselves; raises UsageError where one is not."""
    zeros = unsigned_zeros(weight, label)
    if not torch.all((zeros == zeros.round()) & (zeros >= 0) & (zeros < 2**weight.bits)):
        raise UsageError(
            f"{label} keeps zero points as integers from 0 to {2**weight.bits - 1}, and this "
            "weight has others"
        )
    return zeros


def integer_weight(
    codes: torch.Tensor,
    zeros: torch.Tensor,
    scales: torch.Tensor,
    bits: int,
    group_size: int,
    *,
    symmetric: bool,
    g_idx: torch.Tensor | None = None,
) -> QuantizedWeight:
    """w = (code - zero) * scale, in the one form for it: where `symmetric` and every zero point
    is in the middle, the table is signed and there are none."""
    middle = 2.0 ** (bits - 1)
    signed = symmetric and bool(torch.all(zeros == middle))
    return QuantizedWeight(
        codes,
        integer_table(bits, signed),
        scales,
        bits,
        group_size,
        zeros=None if signed else zeros.float(),
        g_idx=g_idx,
    )


def rounded(numbers: torch.Tensor, dtype: torch.dtype, label: str) -> torch.Tensor:
    """fp32 numbers as `dtype` has them, in fp32; raises UsageError for one beyond its range."""
    stored = numbers.to(dtype)
    if not torch.all(torch.isfinite(stored)):
        largest = numbers.abs().max().item()
        raise UsageError(
            f"{label} keeps scales in {str(dtype).removeprefix('torch.')}, and {largest:.4g} is "
            "not a number of it"
        )
    return stored.float()


def require_groups(
    weight: QuantizedWeight, bits: int, group_size: int | None, act_order: bool, label: str
) -> None:
    """Raises UsageError unless the weight has these bits and groups; a group_size of None is one
    scale a row."""
    wanted = weight.in_features if group_size is None else group_size
    same_groups = weight.group_size == wanted or (
        weight.num_groups == 1 and wanted >= weight.in_features
    )
    if weight.bits != bits or not same_groups:
        raise UsageError(
            f"{label} is not what this weight is: {weight.bits} bits in groups of "
            f"{weight.group_size}"
        )
    if weight.g_idx is not None and not act_order:
        raise UsageError(f"{label} keeps groups of consecutive columns, and this weight has others")


def require_table(weight: QuantizedWeight, table: torch.Tensor, kind: str, label: str) -> None:
    """Raises UsageError unless the weight's codes stand for the numbers of this table, and each
    for a number; nothing may shift them."""
    if weight.zeros is not None or weight.offsets is not None:
        raise UsageError(f"{label} has neither zero points nor offsets, and this weight has")
    same = (weight.values == table) | (weight.values.isnan() & table.isnan())
    if not torch.all(same):
        raise UsageError(f"{label} keeps {kind}, and this weight's codes stand for others")
    if torch.any(torch.isnan(table[weight.codes.int()])):
        raise UsageError(f"this weight has NaN in it, which {label} is not to keep")


def checked_groups(
    g_idx: torch.Tensor | None, group_size: int, in_features: int
) -> torch.Tensor | None:
    """g_idx as QuantizedWeight has it: None where it says nothing new. Raises ModelLoadError when
    it names a group that does not exist."""
    if g_idx is None:
        return None
    g_idx = g_idx.to(torch.int64)
    num_groups = -(-in_features // group_size)
    if g_idx.min() < 0 or g_idx.max() >= num_groups:
        raise ModelLoadError(
            f"g_idx names groups from {int(g_idx.min())} to {int(g_idx.max())}; there are "
            f"{num_groups}"
        )
    plain = torch.arange(in_features) // group_size
    return None if torch.equal(g_idx, plain) else g_idx


def groups_label(group_size: int | None) -> str:
    return "one scale a row" if group_size is None else f"groups of {group_size}"
