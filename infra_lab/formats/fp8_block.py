"""fp8 checkpoints in DeepSeek's layout: e4m3 weights and a scale for every square of 128 by 128.

Answers "what is weight_scale_inv?": despite its name, what a square's numbers are multiplied by.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from infra_lab.errors import UsageError
from infra_lab.formats.quantized_weight import QuantizedWeight
from infra_lab.formats.tables import e4m3_table
from infra_lab.formats.weight_format import FLOATS, StoredTensor, require_table, rounded


@dataclass(frozen=True, slots=True)
class FP8BlockFormat:
    """Attributes:
    block: rows and columns of a square; those at the right and lower edges may be smaller.
    scale_name: "weight_scale_inv", or "weight_scale" in compressed-tensors checkpoints.
    """

    block: tuple[int, int] = (128, 128)
    scale_name: str = "weight_scale_inv"

    def __post_init__(self) -> None:
        if min(self.block) < 1:
            raise UsageError(f"a block has at least one row and column, not {self.block}")

    @property
    def bits(self) -> int:
        return 8

    @property
    def label(self) -> str:
        return f"fp8 e4m3, blocks of {self.block[0]} by {self.block[1]}"

    def tensors(self, out_features: int, in_features: int) -> dict[str, StoredTensor]:
        blocks = (-(-out_features // self.block[0]), -(-in_features // self.block[1]))
        return {
            "weight": StoredTensor(((out_features, in_features),), ("F8_E4M3",)),
            self.scale_name: StoredTensor((blocks,), FLOATS),
        }

    def read(
        self, tensors: Mapping[str, torch.Tensor], out_features: int, in_features: int
    ) -> QuantizedWeight:
        scales = tensors[self.scale_name].float()
        scales = scales.repeat_interleave(self.block[0], dim=0)[:out_features]
        codes = tensors["weight"].view(torch.uint8)
        return QuantizedWeight(codes, e4m3_table(), scales, 8, self.block[1])

    def as_stored(self, weight: QuantizedWeight) -> QuantizedWeight:
        """As it is: scales are kept in fp32."""
        self._scales(weight)
        return QuantizedWeight(weight.codes, e4m3_table(), weight.scales, 8, self.block[1])

    def write(self, weight: QuantizedWeight) -> dict[str, torch.Tensor]:
        return {
            "weight": weight.codes.view(torch.float8_e4m3fn),
            self.scale_name: self._scales(weight),
        }

    def _scales(self, weight: QuantizedWeight) -> torch.Tensor:
        """fp32 [row blocks, column blocks]."""
        require_table(weight, e4m3_table(), "e4m3 numbers", self.label)
        if weight.group_size != self.block[1] or weight.g_idx is not None:
            raise UsageError(
                f"{self.label} are not what this weight has: groups of {weight.group_size}"
            )
        first = weight.scales[:: self.block[0]]
        spread = first.repeat_interleave(self.block[0], dim=0)[: weight.out_features]
        if not torch.equal(spread, weight.scales):
            raise UsageError(
                f"{self.label} have one scale each, and in this weight rows of one block differ"
            )
        return rounded(first.contiguous(), torch.float32, self.label)
