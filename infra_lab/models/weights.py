"""Hands a model its tensors by name, relative to where in the checkpoint it stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import accumulate

import torch

from infra_lab.layers.linear import Linear, make_linear
from infra_lab.models.checkpoint import Checkpoint
from infra_lab.models.shapes import parameter_shapes
from infra_lab.native.memory import Arena, Scratch


@dataclass
class _Memory:
    """Where a model's matrices go, and where each lies on its way there."""

    arena: Arena = field(default_factory=Arena)
    scratch: Scratch = field(default_factory=Scratch)


class Weights:
    """A checkpoint seen from one module: `below("mlp").linear("down_proj", bias=False)`.

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

    def linear(self, *modules: str, bias: bool) -> Linear:
        """One layer out of several projections of the same input, fused side by side."""
        names = [f"{self._prefix}{module}.weight" for module in modules]
        ends = list(accumulate(self._shapes[name][0] for name in names))
        in_features = self._shapes[names[0]][1]
        whole = self._memory.scratch.empty(ends[-1], in_features, dtype=self.dtype)
        for name, start, end in zip(names, [0, *ends], ends, strict=False):
            self._read(name, whole[start:end])
        biases = [self._read(f"{self._prefix}{module}.bias") for module in modules] if bias else []
        return make_linear(
            whole, torch.cat(biases) if biases else None, self.device, self._memory.arena.empty
        )

    def _read(self, name: str, out: torch.Tensor | None = None) -> torch.Tensor:
        if self._on_read is not None:
            self._on_read(name)
        return self._checkpoint.tensor(name, self.dtype, out)
