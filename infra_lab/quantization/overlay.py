"""A checkpoint some of whose tensors are others, in memory: how a quantized model is run before it
is written, by the same code that runs it from its folder afterwards."""

from __future__ import annotations

from collections.abc import Mapping

import torch

from infra_lab.formats.quantized_weight import ActivationFormat, QuantizedWeight
from infra_lab.models.checkpoint import Checkpoint


class OverlayCheckpoint:
    """Implements `Checkpoint`: `quantized` and `dense`, by full name, before what `base` has.

    Of `base` it is the numbers that count: what is quantized there comes dequantized from here.

    Attributes:
        activation: what every quantized layer does to its input, or None.
    """

    def __init__(
        self,
        base: Checkpoint,
        quantized: Mapping[str, QuantizedWeight] | None = None,
        dense: Mapping[str, torch.Tensor] | None = None,
        activation: ActivationFormat | None = None,
    ) -> None:
        self.base = base
        self.path = base.path
        self.config = base.config
        self.weights: Mapping[str, QuantizedWeight] = quantized or {}
        self.dense: Mapping[str, torch.Tensor] = dense or {}
        self.activation = activation

    def names(self) -> list[str]:
        names = dict.fromkeys(self.base.names())
        return list(names | dict.fromkeys(self.dense))

    def tensor(
        self, name: str, dtype: torch.dtype, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        if name in self.weights:
            ours = self.weights[name].dequantize()
        elif name in self.dense:
            ours = self.dense[name]
        else:
            return self.base.tensor(name, dtype, out)
        return ours.to(dtype, copy=True) if out is None else out.copy_(ours)

    def quantized(self, name: str) -> QuantizedWeight | None:
        return self.weights.get(name)

    def activation_format(self, name: str) -> ActivationFormat | None:
        return self.activation if name in self.weights else None
