"""Hands a model its tensors by name, relative to where in the checkpoint it stands."""

from __future__ import annotations

from collections.abc import Callable

import torch

from infra_lab.layers.linear import Linear, make_linear
from infra_lab.models.checkpoint import Checkpoint


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
    ) -> None:
        self.dtype = dtype
        self.device = device
        self._checkpoint = checkpoint
        self._prefix = prefix
        self._names = frozenset(checkpoint.names()) if names is None else names
        self._on_read = on_read

    def below(self, module: str) -> Weights:
        return Weights(
            self._checkpoint,
            self.dtype,
            self.device,
            f"{self._prefix}{module}.",
            self._names,
            self._on_read,
        )

    def has(self, name: str) -> bool:
        return self._prefix + name in self._names

    def tensor(self, name: str) -> torch.Tensor:
        return self._read(name).to(self.device)

    def linear(self, *modules: str, bias: bool) -> Linear:
        """One layer out of several projections of the same input, fused side by side."""
        parts = [self._read(f"{module}.weight") for module in modules]
        biases = [self._read(f"{module}.bias") for module in modules] if bias else None
        return make_linear(parts, biases, self.device)

    def _read(self, name: str) -> torch.Tensor:
        full_name = self._prefix + name
        if self._on_read is not None:
            self._on_read(full_name)
        return self._checkpoint.tensor(full_name, self.dtype)
