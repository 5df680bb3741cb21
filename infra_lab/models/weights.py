"""Hands a model its tensors by name, relative to where in the checkpoint it stands."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch

from infra_lab.formats.quantized_weight import ActivationFormat, QuantizedWeight
from infra_lab.kernels_guard import kernels_serve
from infra_lab.layers.embedding import Embedding, TiedEmbedding
from infra_lab.layers.int8_linear import Int8Linear, serves_int8
from infra_lab.layers.linear import Linear, make_linear
from infra_lab.layers.quantized_input import QuantizedInput
from infra_lab.layers.quantized_linear import QuantizedLinear, runs_packed
from infra_lab.layers.side_by_side import SideBySide
from infra_lab.layers.triton_linear import triton_linear
from infra_lab.models.checkpoint import Checkpoint
from infra_lab.models.shapes import parameter_shapes
from infra_lab.native.memory import Arena, Scratch


@dataclass
class _Memory:
    """Where a model's matrices go, and where each lies on its way there."""

    arena: Arena = field(default_factory=Arena)
    scratch: Scratch = field(default_factory=Scratch)


@dataclass
class _Part:
    """Projections of one input that can be one layer: kept in one way, or not in codes at all.

    `weights` are their codes where layers run on codes.
    """

    names: list[str]
    weights: list[QuantizedWeight]
    activation: ActivationFormat | None

    def takes(self, other: _Part) -> bool:
        if self.activation != other.activation or bool(self.weights) != bool(other.weights):
            return False
        return not self.weights or self.weights[0].fits(other.weights[0])


class Weights:
    """A checkpoint seen from one module: `below("mlp").linear("down_proj", bias=False)`.

    Matrices that the checkpoint keeps in few bits stay so where products with codes exist: in fp32
    on a CPU with compiled kernels, and on a GPU in the layouts that its kernels take. Elsewhere
    they are dequantized once, here.

    `on_read` is told the name of every tensor read, for a progress bar.
    """

    def __init__(
        self,
        checkpoint: Checkpoint,
        dtype: torch.dtype,
        device: torch.device,
        prefix: str = "",
        names: frozenset[str] | None = None,
        on_read: Callable[[str], None] | None = None,
        memory: _Memory | None = None,
    ) -> None:
        self.dtype = dtype
        self.device = device
        self._checkpoint = checkpoint
        self._prefix = prefix
        self._shapes = parameter_shapes(checkpoint.config)
        self._names = frozenset(checkpoint.names()) if names is None else names
        self._on_read = on_read
        self._memory = _Memory() if memory is None else memory

    def below(self, module: str) -> Weights:
        return Weights(
            self._checkpoint,
            self.dtype,
            self.device,
            f"{self._prefix}{module}.",
            self._names,
            self._on_read,
            self._memory,
        )

    def has(self, name: str) -> bool:
        return self._prefix + name in self._names

    def tensor(self, name: str) -> torch.Tensor:
        return self._read(self._prefix + name).to(self.device)

    def embedding(self, module: str) -> Embedding | TiedEmbedding:
        """The rows of a table that no head shares."""
        part = self._part(f"{self._prefix}{module}.weight")
        if part.weights:
            return TiedEmbedding(self._layer(part, None))
        return Embedding(self.tensor(f"{module}.weight"))

    def linear(self, *modules: str, bias: bool) -> Linear:
        """One layer out of several projections of the same input, fused side by side."""
        parts: list[_Part] = []
        for module in modules:
            part = self._part(f"{self._prefix}{module}.weight")
            if parts and parts[-1].takes(part):
                parts[-1].names += part.names
                parts[-1].weights += part.weights
            else:
                parts.append(part)
        biases = [self._read(f"{self._prefix}{module}.bias") for module in modules] if bias else []
        whole_bias = torch.cat(biases) if biases else None
        if len(parts) == 1:
            return self._layer(parts[0], whole_bias)
        if whole_bias is not None:
            whole_bias = whole_bias.to(self.device)
        return SideBySide([self._layer(part, None) for part in parts], whole_bias)

    def _part(self, name: str) -> _Part:
        weight = None
        if runs_packed(self.dtype, self.device):
            weight = self._checkpoint.quantized(name)
        if weight is not None and self._on_read is not None:
            self._on_read(name)
        activation = self._checkpoint.activation_format(name)
        return _Part([name], [] if weight is None else [weight], activation)

    def _layer(self, part: _Part, bias: torch.Tensor | None) -> Linear:
        empty = self._memory.arena.empty
        layer: Linear
        if part.weights:
            stacked = QuantizedWeight.stacked(part.weights)
            if part.activation is not None and serves_int8(stacked, part.activation):
                return Int8Linear(stacked, bias, part.activation, empty)
            layer = QuantizedLinear(stacked, bias, empty)
        elif (on_kernels := self._on_kernels(part, bias)) is not None:
            return on_kernels
        else:
            layer = make_linear(self._dense(part.names), bias, self.device, empty)
        return layer if part.activation is None else QuantizedInput(layer, part.activation)

    def _on_kernels(self, part: _Part, bias: torch.Tensor | None) -> Linear | None:
        """What it does to its input included; None where no GPU kernel takes the codes."""
        if not kernels_serve(torch.empty(0, device=self.device)):
            return None
        weights = [self._checkpoint.quantized(name) for name in part.names]
        kept = [weight for weight in weights if weight is not None]
        if len(kept) < len(weights) or not all(kept[0].fits(weight) for weight in kept[1:]):
            return None
        stacked = QuantizedWeight.stacked(kept)
        layer = triton_linear(stacked, bias, part.activation, self.dtype, self.device)
        if layer is not None and self._on_read is not None:
            for name in part.names:
                self._on_read(name)
        return layer

    def _dense(self, names: Sequence[str]) -> torch.Tensor:
        """Matrices one under the other, in memory that the next ones take again."""
        ends = list(accumulate(self._shapes[name][0] for name in names))
        in_features = self._shapes[names[0]][1]
        whole = self._memory.scratch.empty(ends[-1], in_features, dtype=self.dtype)
        for name, start, end in zip(names, [0, *ends], ends, strict=False):
            self._read(name, whole[start:end])
        return whole

    def _read(self, name: str, out: torch.Tensor | None = None) -> torch.Tensor:
        if self._on_read is not None:
            self._on_read(name)
        return self._checkpoint.tensor(name, self.dtype, out)
