"""A linear layer's matrix in few bits, whatever method chose them and whatever file keeps them.

Answers "what do GPTQ, AWQ, NF4, MXFP4, fp8 and GGUF have in common?": a code per weight, a table of
what a code means, and a scale for every group of weights. Readers produce this, writers and the
engine's layers take it; only the tables and the groups differ.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Literal

import torch


@dataclass(frozen=True, slots=True)
class QuantizedWeight:
    """w[o, i] = (values[codes[o, i]] - zeros[o, g]) * scales[o, g] + offsets[o, g], g = the group
    of column i, computed in fp32.

    Attributes:
        codes: uint8 [out_features, in_features], one code a byte, each below 2**bits.
        values: fp32 [2**bits], what each code means: q itself or q - 2**(bits - 1) for integers, a
            table for NF4, MXFP4 and fp8.
        scales: fp32 [out_features, num_groups].
        bits: 2 to 8.
        group_size: consecutive columns with one scale; in_features for one a row. The last group
            may be shorter.
        zeros: fp32 [out_features, num_groups] in units of `values`, or None.
        offsets: fp32 [out_features, num_groups] in units of the weight (GGUF's minimum), or None;
            never beside zeros.
        g_idx: int64 [in_features], the group of each column where it is not
            column // group_size (GPTQ's act-order), or None.
    """

    codes: torch.Tensor
    values: torch.Tensor
    scales: torch.Tensor
    bits: int
    group_size: int
    zeros: torch.Tensor | None = None
    offsets: torch.Tensor | None = None
    g_idx: torch.Tensor | None = None

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 8:
            raise ValueError(f"bits must be from 2 to 8, not {self.bits}")
        if self.codes.dtype != torch.uint8 or self.codes.ndim != 2:
            raise ValueError("codes must be uint8 [out_features, in_features]")
        if self.values.shape != (2**self.bits,):
            raise ValueError(
                f"{self.bits} bits have {2**self.bits} values, not {self.values.shape}"
            )
        if self.group_size < 1:
            raise ValueError(f"group_size must be at least 1, not {self.group_size}")
        if self.zeros is not None and self.offsets is not None:
            raise ValueError("a weight has zeros or offsets, not both")
        per_group = (self.out_features, self.num_groups)
        for name in ("scales", "zeros", "offsets"):
            tensor = getattr(self, name)
            if tensor is not None and (tensor.shape != per_group or tensor.dtype != torch.float32):
                raise ValueError(f"{name} must be fp32 {list(per_group)}, not {list(tensor.shape)}")
        if self.g_idx is not None and self.g_idx.shape != (self.in_features,):
            raise ValueError("g_idx names a group for each column")

    @property
    def out_features(self) -> int:
        return self.codes.shape[0]

    @property
    def in_features(self) -> int:
        return self.codes.shape[1]

    @property
    def num_groups(self) -> int:
        return -(-self.in_features // self.group_size)

    def groups(self) -> torch.Tensor:
        """int64 [in_features], the group of each column."""
        if self.g_idx is not None:
            return self.g_idx
        return torch.arange(self.in_features, device=self.codes.device) // self.group_size

    def dequantize(self) -> torch.Tensor:
        """fp32 [out_features, in_features]."""
        groups = self.groups()
        weight = self.values[self.codes.long()]
        if self.zeros is not None:
            weight -= self.zeros[:, groups]
        weight *= self.scales[:, groups]
        if self.offsets is not None:
            weight += self.offsets[:, groups]
        return weight

    def rows(self, indices: torch.Tensor) -> QuantizedWeight:
        """The same with these rows, in this order."""
        return replace(
            self,
            codes=self.codes[indices],
            scales=self.scales[indices],
            zeros=None if self.zeros is None else self.zeros[indices],
            offsets=None if self.offsets is None else self.offsets[indices],
        )

    def fits(self, other: QuantizedWeight) -> bool:
        """Whether both can be rows of one: the same columns in the same groups, and one table."""
        if (self.in_features, self.bits, self.group_size) != (
            other.in_features,
            other.bits,
            other.group_size,
        ):
            return False
        for name in ("zeros", "offsets", "g_idx"):
            if (getattr(self, name) is None) != (getattr(other, name) is None):
                return False
        same_groups = self.g_idx is None or torch.equal(self.groups(), other.groups())
        # Bit by bit: fp8's tables have NaN in them, which equals nothing.
        same_table = torch.equal(self.values.view(torch.int32), other.values.view(torch.int32))
        return same_groups and same_table

    @staticmethod
    def stacked(weights: Sequence[QuantizedWeight]) -> QuantizedWeight:
        """All of their rows, one weight's under the other's; they must fit."""
        first = weights[0]
        if not all(first.fits(weight) for weight in weights[1:]):
            raise ValueError("weights of different tables or groups cannot be stacked")

        def joined(name: str) -> torch.Tensor | None:
            parts = [getattr(weight, name) for weight in weights]
            return None if parts[0] is None else torch.cat(parts)

        codes, scales = joined("codes"), joined("scales")
        assert codes is not None
        assert scales is not None
        return replace(
            first, codes=codes, scales=scales, zeros=joined("zeros"), offsets=joined("offsets")
        )


@dataclass(frozen=True, slots=True)
class ActivationFormat:
    """What a quantized layer does to its input before the product; of a checkpoint, with the
    weight, so that the engine computes what the method measured.

    Attributes:
        bits: 4 or 8.
        kind: "int" or "fp8" (e4m3).
        granularity: "token" (a scale from each row, when it comes) or "tensor".
        symmetric: of "int", whether zero is in the middle of the codes.
        scale: of "tensor", fixed beforehand; None takes it from the whole input when it comes.
        outlier_threshold: of LLM.int8(): columns in which the input exceeds it are multiplied in
            full precision, the others in `bits`; None quantizes them all.
    """

    bits: int = 8
    kind: Literal["int", "fp8"] = "int"
    granularity: Literal["token", "tensor"] = "token"
    symmetric: bool = True
    scale: float | None = None
    outlier_threshold: float | None = None
