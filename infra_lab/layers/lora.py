"""Several LoRA adapters in one batch: the base product once for all rows, and to the rows of each
adapter what that adapter adds.

Answers "how does one server serve a hundred fine-tunes of one model?" (S-LoRA, Sheng et al. 2023;
Punica, Chen et al. 2023). Rows are grouped by adapter, so an adapter's matrices are read once a
step however many requests use it; rows without one are not touched.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch

from infra_lab.layers.linear import Linear


@dataclass(frozen=True, slots=True)
class AdapterRows:
    """The rows of a step, int64 [n], that one adapter is for; None is all of them."""

    adapter_id: str
    rows: torch.Tensor | None


@dataclass(slots=True)
class StepAdapters:
    """What a step's layers are told: one object that all of them share, set before each step.

    `wanted_rows` counts among the rows that the last layer goes on with after attention.
    """

    all_rows: list[AdapterRows] = field(default_factory=list)
    wanted_rows: list[AdapterRows] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LowRankProduct:
    """x [n, in] -> s B A x [n, out], the scaling s in `expand`."""

    shrink: Linear
    expand: Linear

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.expand(self.shrink(x))


class LoRALinear:
    """A layer of the base model and, by adapter id, what is added to it. Without adapters in a
    step it does what the base layer does and nothing else."""

    def __init__(self, base: Linear, step: StepAdapters, takes_wanted_rows: bool) -> None:
        self.base = base
        self.in_features, self.out_features = base.in_features, base.out_features
        self.products: dict[str, LowRankProduct] = {}
        self._step = step
        self._takes_wanted_rows = takes_wanted_rows

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y = self.base(x)
        step = self._step
        for group in step.wanted_rows if self._takes_wanted_rows else step.all_rows:
            product = self.products.get(group.adapter_id)
            if product is None:
                continue
            if group.rows is None:
                y += product(x)
            elif len(group.rows):
                y.index_add_(0, group.rows, product(x.index_select(0, group.rows)))
        return y

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        return self.base.rows(indices)
