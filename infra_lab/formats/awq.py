"""AWQ checkpoints in the GEMM layout of AutoAWQ: qweight, qzeros and scales.

Answers "how does AWQ's layout differ from GPTQ's?": codes are packed along the output rather than
the input, eight to a word in the order that its GPU kernel unpacks them in, and zero points are
what they say.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from infra_lab.errors import UsageError
from infra_lab.formats import packing
from infra_lab.formats.quantized_weight import QuantizedWeight
from infra_lab.formats.weight_format import (
    FLOATS,
    StoredTensor,
    groups_label,
    integer_weight,
    integer_zeros,
    require_groups,
    rounded,
)


@dataclass(frozen=True, slots=True)
class AWQFormat:
    """Four bits.

    Attributes:
        group_size: columns with one scale; None for one a row.
        symmetric: every zero point is in the middle, 8; it is stored all the same.
    """

    group_size: int | None = 128
    symmetric: bool = False

    def __post_init__(self) -> None:
        if self.group_size is not None and self.group_size < 1:
            raise UsageError(f"a group has at least one column, not {self.group_size}")

    @property
    def bits(self) -> int:
        return 4

    @property
    def label(self) -> str:
        symmetric = ", symmetric" if self.symmetric else ""
        return f"AWQ int4, {groups_label(self.group_size)}{symmetric}"

    def tensors(self, out_features: int, in_features: int) -> dict[str, StoredTensor]:
        groups = in_features // self._columns(in_features)
        words = out_features // 8
        return {
            "qweight": StoredTensor(((in_features, words),), ("I32",)),
            "qzeros": StoredTensor(((groups, words),), ("I32",)),
            "scales": StoredTensor(((groups, out_features),), FLOATS),
        }

    def read(
        self, tensors: Mapping[str, torch.Tensor], out_features: int, in_features: int
    ) -> QuantizedWeight:
        return integer_weight(
            packing.unpack_awq(tensors["qweight"]).T.contiguous(),
            packing.unpack_awq(tensors["qzeros"]).T.float().contiguous(),
            tensors["scales"].T.float().contiguous(),
            self.bits,
            self._columns(in_features),
            symmetric=self.symmetric,
        )

    def as_stored(self, weight: QuantizedWeight) -> QuantizedWeight:
        """Scales in fp16."""
        require_groups(weight, self.bits, self.group_size, False, self.label)
        columns = self._columns(weight.in_features)
        if weight.in_features % columns or weight.out_features % 8:
            raise UsageError(
                f"{self.label} keeps whole groups and whole words of eight rows, and this weight "
                f"has {weight.out_features} rows of {weight.in_features}"
            )
        zeros = integer_zeros(weight, self.label)
        if self.symmetric and not torch.all(zeros == 8):
            raise UsageError(f"{self.label} has no zero points, and this weight has")
        scales = rounded(weight.scales, torch.float16, self.label)
        return integer_weight(
            weight.codes, zeros, scales, self.bits, columns, symmetric=self.symmetric
        )

    def write(self, weight: QuantizedWeight) -> dict[str, torch.Tensor]:
        stored = self.as_stored(weight)
        zeros = integer_zeros(stored, self.label)
        return {
            "qweight": packing.pack_awq(stored.codes.T.contiguous()),
            "qzeros": packing.pack_awq(zeros.T.to(torch.uint8).contiguous()),
            "scales": stored.scales.T.to(torch.float16).contiguous(),
        }

    def _columns(self, in_features: int) -> int:
        return in_features if self.group_size is None else self.group_size
