"""The layouts of compressed-tensors checkpoints: packed integers, int8, fp8 and MXFP4.

Answers "what does llm-compressor write, and what does vLLM expect?". Integers are stored with half
their range added, in words along the input; int8, fp8 and their scales lie open.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import torch

from infra_lab.errors import ModelLoadError, UsageError
from infra_lab.formats import packing
from infra_lab.formats.quantized_weight import QuantizedWeight
from infra_lab.formats.tables import e2m1_table, e4m3_table
from infra_lab.formats.weight_format import (
    FLOATS,
    StoredTensor,
    checked_groups,
    groups_label,
    integer_weight,
    integer_zeros,
    require_groups,
    require_table,
    rounded,
    unsigned_zeros,
)

SCALE_DTYPE = torch.float16  # of groups; a scale a row is fp32, for it costs nothing


@dataclass(frozen=True, slots=True)
class PackQuantizedFormat:
    """pack-quantized: weight_packed, weight_scale, weight_shape, and weight_zero_point where the
    weight is asymmetric.

    Attributes:
        bits: 2 to 8, packed without gaps.
        group_size: columns with one scale; None for one a row.
        symmetric: no zero points.
        act_order: weight_g_idx says which group each column is in (compressed-tensors 0.20 and
            newer do not read it any more).
    """

    bits: int = 4
    group_size: int | None = 128
    symmetric: bool = True
    act_order: bool = False

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 8:
            raise UsageError(f"pack-quantized has 2 to 8 bits here, not {self.bits}")
        if self.group_size is not None and self.group_size < 1:
            raise UsageError(f"a group has at least one column, not {self.group_size}")

    @property
    def label(self) -> str:
        order = ", act-order" if self.act_order else ""
        zeros = "" if self.symmetric else ", asymmetric"
        groups = groups_label(self.group_size)
        return f"compressed-tensors int{self.bits}, {groups}{zeros}{order}"

    def tensors(self, out_features: int, in_features: int) -> dict[str, StoredTensor]:
        groups = -(-in_features // self._columns(in_features))
        words = packing.num_words(in_features, self.bits)
        found = {
            "weight_packed": StoredTensor(((out_features, words),), ("I32",)),
            "weight_scale": StoredTensor(((out_features, groups),), FLOATS),
            "weight_shape": StoredTensor(((2,),), ("I64", "I32")),
        }
        if not self.symmetric:
            words = packing.num_words(out_features, self.bits)
            found["weight_zero_point"] = StoredTensor(((words, groups),), ("I32",))
        if self.act_order:
            found["weight_g_idx"] = StoredTensor(((in_features,),), ("I32", "I64"))
        return found

    def read(
        self, tensors: Mapping[str, torch.Tensor], out_features: int, in_features: int
    ) -> QuantizedWeight:
        shape = tensors["weight_shape"].tolist()
        if shape != [out_features, in_features]:
            raise ModelLoadError(
                f"weight_shape says {shape}, but the config asks for {[out_features, in_features]}"
            )
        scales = tensors["weight_scale"].float()
        zeros = torch.full_like(scales, 2 ** (self.bits - 1))
        if not self.symmetric:
            words = tensors["weight_zero_point"]
            zeros = packing.unpack(words, self.bits, out_features, axis=0).float()
        group_size = self._columns(in_features)
        return integer_weight(
            packing.unpack(tensors["weight_packed"], self.bits, in_features),
            zeros,
            scales,
            self.bits,
            group_size,
            symmetric=self.symmetric,
            g_idx=checked_groups(tensors.get("weight_g_idx"), group_size, in_features),
        )

    def as_stored(self, weight: QuantizedWeight) -> QuantizedWeight:
        """Scales in fp16."""
        require_groups(weight, self.bits, self.group_size, self.act_order, self.label)
        zeros = integer_zeros(weight, self.label)
        if self.symmetric and not torch.all(zeros == 2 ** (self.bits - 1)):
            raise UsageError(f"{self.label} is symmetric, and this weight has zero points")
        return integer_weight(
            weight.codes,
            zeros,
            rounded(weight.scales, SCALE_DTYPE, self.label),
            self.bits,
            self._columns(weight.in_features),
            symmetric=self.symmetric,
            g_idx=checked_groups(weight.g_idx, weight.group_size, weight.in_features),
        )

    def write(self, weight: QuantizedWeight) -> dict[str, torch.Tensor]:
        stored = self.as_stored(weight)
        tensors = {
            "weight_packed": packing.pack(stored.codes, self.bits),
            "weight_scale": stored.scales.to(SCALE_DTYPE),
            "weight_shape": torch.tensor(stored.codes.shape),
        }
        if not self.symmetric:
            zeros = integer_zeros(stored, self.label)
            tensors["weight_zero_point"] = packing.pack(zeros, self.bits, axis=0)
        if self.act_order:
            tensors["weight_g_idx"] = stored.groups().to(torch.int32)
        return tensors

    def _columns(self, in_features: int) -> int:
        return in_features if self.group_size is None else self.group_size


@dataclass(frozen=True, slots=True)
class IntQuantizedFormat:
    """int-quantized: int8 weights with a scale, and a zero point if asymmetric, for each row or
    for all of them (`granularity`)."""

    granularity: Literal["channel", "tensor"] = "channel"
    symmetric: bool = True

    @property
    def bits(self) -> int:
        return 8

    @property
    def label(self) -> str:
        zeros = "" if self.symmetric else ", asymmetric"
        return f"compressed-tensors int8, {_scale_label(self.granularity)}{zeros}"

    def tensors(self, out_features: int, in_features: int) -> dict[str, StoredTensor]:
        shapes = _scale_shapes(self.granularity, out_features)
        found = {
            "weight": StoredTensor(((out_features, in_features),), ("I8",)),
            "weight_scale": StoredTensor(shapes, FLOATS),
        }
        if not self.symmetric:
            found["weight_zero_point"] = StoredTensor(shapes, ("I8",))
        return found

    def read(
        self, tensors: Mapping[str, torch.Tensor], out_features: int, in_features: int
    ) -> QuantizedWeight:
        scales = _per_row(tensors["weight_scale"], out_features)
        zeros = torch.full_like(scales, 128)
        if not self.symmetric:
            zeros = _per_row(tensors["weight_zero_point"], out_features) + 128
        codes = tensors["weight"].view(torch.uint8) ^ 128  # q + 128, in eight bits
        return integer_weight(codes, zeros, scales, 8, in_features, symmetric=self.symmetric)

    def as_stored(self, weight: QuantizedWeight) -> QuantizedWeight:
        """As it is: scales are kept in fp32."""
        require_groups(weight, 8, None, False, self.label)
        zeros = integer_zeros(weight, self.label)
        if self.symmetric and not torch.all(zeros == 128):
            raise UsageError(f"{self.label} is symmetric, and this weight has zero points")
        if self.granularity == "tensor":
            _require_one(weight.scales, self.label)
            _require_one(zeros, self.label)
        scales = rounded(weight.scales, torch.float32, self.label)
        return integer_weight(
            weight.codes, zeros, scales, 8, weight.in_features, symmetric=self.symmetric
        )

    def write(self, weight: QuantizedWeight) -> dict[str, torch.Tensor]:
        stored = self.as_stored(weight)
        tensors = {
            "weight": (stored.codes ^ 128).view(torch.int8),
            "weight_scale": _stored_scales(stored.scales, self.granularity),
        }
        if not self.symmetric:
            zeros = (unsigned_zeros(stored, self.label) - 128).to(torch.int8)
            tensors["weight_zero_point"] = _stored_scales(zeros, self.granularity)
        return tensors


@dataclass(frozen=True, slots=True)
class FloatQuantizedFormat:
    """float-quantized: e4m3 weights with a scale for each row or for all of them; also what
    quant_method "fp8" without blocks has."""

    granularity: Literal["channel", "tensor"] = "channel"

    @property
    def bits(self) -> int:
        return 8

    @property
    def label(self) -> str:
        return f"fp8 e4m3, {_scale_label(self.granularity)}"

    def tensors(self, out_features: int, in_features: int) -> dict[str, StoredTensor]:
        return {
            "weight": StoredTensor(((out_features, in_features),), ("F8_E4M3",)),
            "weight_scale": StoredTensor(_scale_shapes(self.granularity, out_features), FLOATS),
        }

    def read(
        self, tensors: Mapping[str, torch.Tensor], out_features: int, in_features: int
    ) -> QuantizedWeight:
        codes = tensors["weight"].view(torch.uint8)
        scales = _per_row(tensors["weight_scale"], out_features)
        return QuantizedWeight(codes, e4m3_table(), scales, 8, in_features)

    def as_stored(self, weight: QuantizedWeight) -> QuantizedWeight:
        """As it is: scales are kept in fp32."""
        require_groups(weight, 8, None, False, self.label)
        require_table(weight, e4m3_table(), "e4m3 numbers", self.label)
        if self.granularity == "tensor":
            _require_one(weight.scales, self.label)
        scales = rounded(weight.scales, torch.float32, self.label)
        return QuantizedWeight(weight.codes, e4m3_table(), scales, 8, weight.in_features)

    def write(self, weight: QuantizedWeight) -> dict[str, torch.Tensor]:
        stored = self.as_stored(weight)
        return {
            "weight": stored.codes.view(torch.float8_e4m3fn),
            "weight_scale": _stored_scales(stored.scales, self.granularity),
        }


@dataclass(frozen=True, slots=True)
class MXFP4Format:
    """mxfp4-pack-quantized: two e2m1 numbers a byte, the first in the low nibble, and an exponent
    of two (e8m0: 2**(code - 127)) for every 32."""

    @property
    def bits(self) -> int:
        return 4

    @property
    def label(self) -> str:
        return "MXFP4, groups of 32"

    def tensors(self, out_features: int, in_features: int) -> dict[str, StoredTensor]:
        return {
            "weight_packed": StoredTensor(((out_features, in_features // 2),), ("U8",)),
            "weight_scale": StoredTensor(((out_features, in_features // 32),), ("U8",)),
        }

    def read(
        self, tensors: Mapping[str, torch.Tensor], out_features: int, in_features: int
    ) -> QuantizedWeight:
        packed = tensors["weight_packed"]
        codes = torch.stack([packed & 15, packed >> 4], dim=-1).flatten(1)
        exponents = tensors["weight_scale"]
        if torch.any(exponents == 255):
            raise ModelLoadError("weight_scale has the e8m0 code 255, which is no number")
        scales = torch.ldexp(torch.ones(exponents.shape), exponents.int() - 127)
        return QuantizedWeight(codes, e2m1_table(), scales, 4, 32)

    def as_stored(self, weight: QuantizedWeight) -> QuantizedWeight:
        """As it is; scales must be powers of two already. A scale of zero, of a group of zeros,
        becomes 2**-127."""
        require_groups(weight, 4, 32, False, self.label)
        require_table(weight, e2m1_table(), "e2m1 numbers", self.label)
        if weight.in_features % 32:
            raise UsageError(
                f"{self.label} keeps whole groups, and {weight.in_features} columns make none"
            )
        scales = weight.scales.clamp_min(2.0**-127)
        mantissas, exponents = torch.frexp(scales)
        if torch.any(mantissas != 0.5) or torch.any(exponents > 128):
            raise UsageError(f"{self.label} keeps powers of two as scales, and this weight others")
        return replace(weight, values=e2m1_table(), scales=scales, group_size=32)

    def write(self, weight: QuantizedWeight) -> dict[str, torch.Tensor]:
        stored = self.as_stored(weight)
        return {
            "weight_packed": stored.codes[:, ::2] | (stored.codes[:, 1::2] << 4),
            "weight_scale": (torch.frexp(stored.scales).exponent + 126).to(torch.uint8),
        }


def _scale_label(granularity: str) -> str:
    return "one scale" if granularity == "tensor" else "one scale a row"


def _scale_shapes(granularity: str, out_features: int) -> tuple[tuple[int, ...], ...]:
    if granularity == "tensor":
        return (1,), (), (1, 1)
    return (out_features, 1), (out_features,)


def _per_row(numbers: torch.Tensor, out_features: int) -> torch.Tensor:
    """One number, or one a row -> fp32 [out_features, 1]."""
    return numbers.float().reshape(-1, 1).expand(out_features, 1).contiguous()


def _stored_scales(numbers: torch.Tensor, granularity: str) -> torch.Tensor:
    return numbers[0].clone() if granularity == "tensor" else numbers


def _require_one(numbers: torch.Tensor, label: str) -> None:
    if torch.any(numbers != numbers[0, 0]):
        raise UsageError(f"{label} for the whole matrix is not what this weight has")
