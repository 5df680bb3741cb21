"""GPTQ checkpoints, as AutoGPTQ and GPTQModel write them: qweight, qzeros, scales, g_idx.

Answers "what do the four tensors of a GPTQ layer hold, and why did v1 files store zero - 1?":
codes run along the input in int32 words, zero points along the output; the first version's
kernels added one to every zero point, and its files still count on that.
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
    checked_groups,
    groups_label,
    integer_weight,
    integer_zeros,
    require_groups,
    rounded,
)

SUPPORTED_BITS = (2, 3, 4, 8)


@dataclass(frozen=True, slots=True)
class GPTQFormat:
    """Attributes:
    bits: 2, 3, 4 or 8.
    group_size: columns with one scale; None for one a row.
    symmetric: every zero point is in the middle; it is stored all the same.
    act_order: groups need not be consecutive columns: g_idx says which group each is in.
    version: 1 stores zero - 1, 2 the zero point itself. Of a zero point that is 0, readers of
        version 1 make what they like: kernels that mask after adding one read 0, as here,
        AutoGPTQ's own Python reads 2**bits. Write asymmetric weights in version 2.
    """

    bits: int = 4
    group_size: int | None = 128
    symmetric: bool = True
    act_order: bool = False
    version: int = 1

    def __post_init__(self) -> None:
        if self.bits not in SUPPORTED_BITS:
            raise UsageError(f"GPTQ has 2, 3, 4 or 8 bits, not {self.bits}")
        if self.version not in (1, 2):
            raise UsageError(f"GPTQ has versions 1 and 2, not {self.version}")
        if self.group_size is not None and self.group_size < 1:
            raise UsageError(f"a group has at least one column, not {self.group_size}")

    @property
    def label(self) -> str:
        order = ", act-order" if self.act_order else ""
        zeros = "" if self.symmetric else ", asymmetric"
        return f"GPTQ int{self.bits}, {groups_label(self.group_size)}{zeros}{order}"

    def tensors(self, out_features: int, in_features: int) -> dict[str, StoredTensor]:
        groups = -(-in_features // self._columns(in_features))
        words_in = packing.num_words(in_features, self.bits)
        words_out = packing.num_words(out_features, self.bits)
        return {
            "qweight": StoredTensor(((words_in, out_features),), ("I32",)),
            "qzeros": StoredTensor(((groups, words_out),), ("I32",)),
            "scales": StoredTensor(((groups, out_features),), FLOATS),
            # Files without act-order mostly have it too, and it then says nothing new.
            "g_idx": StoredTensor(((in_features,),), ("I32", "I64"), required=self.act_order),
        }

    def read(
        self, tensors: Mapping[str, torch.Tensor], out_features: int, in_features: int
    ) -> QuantizedWeight:
        group_size = self._columns(in_features)
        codes = packing.unpack(tensors["qweight"], self.bits, in_features, axis=0)
        zeros = packing.unpack(tensors["qzeros"], self.bits, out_features)
        if self.version == 1:
            zeros = packing.plus_one(zeros, self.bits)
        return integer_weight(
            codes.T.contiguous(),
            zeros.T.float().contiguous(),
            tensors["scales"].T.float().contiguous(),
            self.bits,
            group_size,
            symmetric=self.symmetric,
            g_idx=checked_groups(tensors.get("g_idx"), group_size, in_features),
        )

    def as_stored(self, weight: QuantizedWeight) -> QuantizedWeight:
        """Scales in fp16."""
        require_groups(weight, self.bits, self.group_size, self.act_order, self.label)
        for count in weight.codes.shape:
            if count * self.bits % 32:
                raise UsageError(
                    f"{self.label} keeps whole 32-bit words of codes along both sides, and "
                    f"{count} codes make none"
                )
        zeros = integer_zeros(weight, self.label)
        if self.symmetric and not torch.all(zeros == 2 ** (self.bits - 1)):
            raise UsageError(f"{self.label} is symmetric, and this weight has zero points")
        return integer_weight(
            weight.codes,
            zeros,
            rounded(weight.scales, torch.float16, self.label),
            self.bits,
            self._columns(weight.in_features),
            symmetric=self.symmetric,
            g_idx=checked_groups(weight.g_idx, weight.group_size, weight.in_features),
        )

    def write(self, weight: QuantizedWeight) -> dict[str, torch.Tensor]:
        stored = self.as_stored(weight)
        zeros = integer_zeros(stored, self.label)
        if self.version == 1:
            zeros = packing.less_one(zeros, self.bits)
        return {
            "qweight": packing.pack(stored.codes.T, self.bits, axis=0),
            "qzeros": packing.pack(zeros.T, self.bits),
            "scales": stored.scales.T.to(torch.float16).contiguous(),
            "g_idx": stored.groups().to(torch.int32),
        }

    def _columns(self, in_features: int) -> int:
        return in_features if self.group_size is None else self.group_size
