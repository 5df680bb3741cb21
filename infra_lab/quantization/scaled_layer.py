"""A decoder layer some of whose inputs are divided by scales, at no cost when it runs.

Answers "where do AWQ's and SmoothQuant's scales go in a Llama layer?": those of q, k, v and of
gate, up into the norms before them, those of o into the rows of v, those of down into the rows of
up. The columns that are multiplied in exchange are the caller's to round.
"""

from __future__ import annotations

import torch

from infra_lab.quantization.folding import fold_into_norm, fold_into_rows, shared_by_query_heads
from infra_lab.quantization.layer_view import LayerView
from infra_lab.quantization.modules import DOWN, OUTPUT, LinearGroup

_VALUES, _UP = "self_attn.v_proj", "mlp.up_proj"


class ScaledLayer:
    """Attributes:
    scales: by group, fp32 [in_features]: what its inputs were divided by.
    changed: norms and biases with other values than before, by full name.
    """

    def __init__(self, layer: LayerView) -> None:
        self.scales: dict[LinearGroup, torch.Tensor] = {}
        self.changed: dict[str, torch.Tensor] = {}
        self._layer = layer
        self._divided: dict[str, torch.Tensor] = {}

    def possible(self, group: LinearGroup, scales: torch.Tensor) -> torch.Tensor:
        """The nearest to `scales` that can be folded: query heads that read one value head have
        to share theirs."""
        return self._shared(scales)[0] if group is OUTPUT else scales

    def divide_input(self, group: LinearGroup, scales: torch.Tensor) -> None:
        """Once a group, by scales that are `possible`."""
        self.scales[group] = scales
        if group.norm is not None:
            norm = self._layer.weight(group.norm)
            self.changed[self._layer.name(group.norm)] = fold_into_norm(norm, scales)
        elif group is OUTPUT:
            self._divide_rows(_VALUES, self._shared(scales)[1])
        elif group is DOWN:
            self._divide_rows(_UP, scales)

    def rows(self, module: str) -> torch.Tensor:
        """The matrix whose outputs are divided, for the group after it, but whose columns are as
        they were."""
        divided = self._divided.get(module)
        return self._layer.weight(module) if divided is None else divided

    def _divide_rows(self, module: str, scales: torch.Tensor) -> None:
        weight, bias = self._layer.weight(module), self._layer.bias(module)
        self._divided[module], changed = fold_into_rows(weight, bias, scales)
        if changed is not None:
            self.changed[self._layer.name(module, "bias")] = changed

    def _shared(self, scales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        config = self._layer.config
        return shared_by_query_heads(scales, config.num_key_value_heads, config.head_dim)
