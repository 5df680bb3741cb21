"""Several layers of one input as one, where their matrices cannot be one: checkpoints that keep
them in different bits, as those of a GGUF mixture (Q4_K_M has some in Q6_K)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate, pairwise

import torch

from infra_lab.layers.linear import Linear, PackedLinear
from infra_lab.layers.quantized_linear import QuantizedLinear
from infra_lab.native import ops


class SideBySide:
    """Each part's product beside the other's."""

    def __init__(self, parts: Sequence[Linear], bias: torch.Tensor | None = None) -> None:
        """The parts have no biases of their own where a common one is given."""
        self.parts = parts
        self.bias = bias
        self.in_features = parts[0].in_features
        self._ends = [0, *accumulate(part.out_features for part in parts)]
        self.out_features = self._ends[-1]

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        parts = [part for part in self.parts if isinstance(part, PackedLinear | QuantizedLinear)]
        if len(parts) == len(self.parts):
            x = x.contiguous()
            y = ops.empty_output(len(x), self.out_features)
            for part, (begin, end) in zip(parts, pairwise(self._ends), strict=True):
                part.write(x, y[:, begin:end])
        else:
            y = torch.cat([part(x) for part in self.parts], dim=-1)
        return y if self.bias is None else y.add_(self.bias)

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        whole: torch.Tensor | None = None
        for part, (begin, end) in zip(self.parts, pairwise(self._ends), strict=True):
            places = ((indices >= begin) & (indices < end)).nonzero().flatten()
            rows = part.rows(indices[places] - begin)
            if whole is None:
                whole = rows.new_empty(len(indices), self.in_features)
            whole[places] = rows
        assert whole is not None
        return whole
