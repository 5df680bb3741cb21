"""One decoder layer as a method sees it: its matrices, what makes their inputs, and the inputs."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from infra_lab.errors import ModelLoadError
from infra_lab.formats.quantized_weight import ActivationFormat, QuantizedWeight
from infra_lab.layers.linear import Linear
from infra_lab.models.checkpoint import Checkpoint
from infra_lab.models.config import ModelConfig
from infra_lab.models.shapes import parameter_shapes
from infra_lab.models.weights import Weights
from infra_lab.quantization.layer_stream import LayerStream
from infra_lab.quantization.modules import LinearGroup, layer_prefix
from infra_lab.quantization.overlay import OverlayCheckpoint


class LayerView:
    """Attributes:
    activation: what the quantized layers will do to their inputs.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        layer: int,
        stream: LayerStream | None = None,
        activation: ActivationFormat | None = None,
    ) -> None:
        """stream: of the calibration text, about to enter this layer; None without calibration."""
        self.activation = activation
        self._checkpoint = checkpoint
        self._prefix = layer_prefix(layer)
        self._stream = stream

    @property
    def config(self) -> ModelConfig:
        return self._checkpoint.config

    def name(self, module: str, kind: str = "weight") -> str:
        """`mlp.up_proj` -> `model.layers.3.mlp.up_proj.weight`."""
        return f"{self._prefix}{module}.{kind}"

    def weight(self, module: str) -> torch.Tensor:
        """fp32, a matrix [out_features, in_features] or a norm's vector.

        Raises ModelLoadError naming it when a number in it is none.
        """
        name = self.name(module)
        weight = self._checkpoint.tensor(name, torch.float32)
        if not weight.isfinite().all():
            wrong = int((~weight.isfinite()).sum())
            raise ModelLoadError(
                f"{self._checkpoint.path}: tensor {name!r} has {wrong:,} numbers that are NaN or "
                "infinite and cannot be quantized: fetch the model again"
            )
        return weight

    def bias(self, module: str) -> torch.Tensor | None:
        """fp32 [out_features], or None where the layer has none."""
        name = self.name(module, "bias")
        if name not in self._checkpoint.names():
            return None
        return self._checkpoint.tensor(name, torch.float32)

    def stacked(self, group: LinearGroup) -> torch.Tensor:
        """The matrices of a group, one's rows under the other's."""
        return torch.cat([self.weight(module) for module in group.modules])

    def split(self, group: LinearGroup, weight: QuantizedWeight) -> dict[str, QuantizedWeight]:
        """The rows of `stacked`, each to its own name again."""
        parts, start = {}, 0
        for module in group.modules:
            end = start + self._rows(module)
            parts[self.name(module)] = weight.rows(torch.arange(start, end))
            start = end
        return parts

    def inputs(self) -> dict[LinearGroup, torch.Tensor]:
        """What comes into every group [num_tokens, in_features] while none is quantized."""
        seen: dict[LinearGroup, torch.Tensor] = {}

        def keep(group: LinearGroup, inputs: torch.Tensor) -> None:
            seen[group] = inputs.clone()

        self.visit(keep)
        return seen

    def visit(self, visit: Callable[[LinearGroup, torch.Tensor], Linear | None]) -> None:
        """As `LayerStream.visit`, of this layer."""
        if self._stream is None:
            raise ValueError("a method that looks at inputs takes a calibration stream")
        self._stream.visit(self._checkpoint, visit)

    def linear(self, group: LinearGroup, weights: Mapping[str, QuantizedWeight]) -> Linear:
        """The layer that the model will have for a group whose matrices these are."""
        overlay = OverlayCheckpoint(self._checkpoint, weights, activation=self.activation)
        below = Weights(overlay, torch.float32, torch.device("cpu")).below(
            self._prefix.removesuffix(".")
        )
        return below.linear(*group.modules, bias=below.has(f"{group.modules[0]}.bias"))

    def _rows(self, module: str) -> int:
        return parameter_shapes(self._checkpoint.config)[self.name(module)][0]
