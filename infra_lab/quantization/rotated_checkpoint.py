"""A checkpoint whose residual stream and value heads are rotated: another model, the same output.

Answers "where does a rotation go, so that it costs nothing?" (QuaRot, SpinQuant's R1 and R2).
Weights of norms go into the matrices behind them; then everything that writes the residual
stream (embeddings, o, down) is multiplied by Q, everything that reads it (q, k, v, gate, up, the
head) too, and Q Q^T = I lies between them, for RMSNorm sees norms only. Heads of v are rotated by
a Q of their own that o's columns undo. What stays as it was: q and k, which RoPE turns, and the
input of down, behind SwiGLU: to rotate those takes products at run time.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from infra_lab.models.checkpoint import Checkpoint
from infra_lab.quantization.modules import GROUPS
from infra_lab.quantization.rotation import Rotation, random_rotation

NORM_BEFORE = {module: group.norm for group in GROUPS if group.norm for module in group.modules}
EMBEDDINGS, HEAD, LAST_NORM = "model.embed_tokens.weight", "lm_head.weight", "model.norm.weight"
ROWS_AT_ONCE = 4096


class RotatedCheckpoint:
    """Implements `Checkpoint`: each tensor is rotated when it is asked for, in fp64.

    The head is no longer tied to the embeddings: the last norm's weight went into it.
    """

    def __init__(self, base: Checkpoint, seed: int = 0) -> None:
        self.base = base
        self.path = base.path
        self.config = replace(base.config, tie_word_embeddings=False)
        config = base.config
        generator = torch.Generator().manual_seed(seed)
        self._residual = random_rotation(config.hidden_size, generator)
        self._value_heads = [
            random_rotation(config.head_dim, generator) for _ in range(config.num_hidden_layers)
        ]

    def names(self) -> list[str]:
        return list(dict.fromkeys([*self.base.names(), HEAD]))

    def tensor(
        self, name: str, dtype: torch.dtype, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        """As `Checkpoint.tensor`."""
        rotated = self._rotated(name)
        return rotated.to(dtype) if out is None else out.copy_(rotated)

    def quantized(self, name: str) -> None:
        """Nothing is quantized here: what was is rotated as numbers."""

    def activation_format(self, name: str) -> None:
        """Nor are activations."""

    def _rotated(self, name: str) -> torch.Tensor:
        if name == EMBEDDINGS:
            return _in_pieces(self._read(name), self._residual)
        if name == HEAD:
            tied = self.base.config.tie_word_embeddings
            head = self._read(EMBEDDINGS if tied else HEAD)
            return _in_pieces(head.mul_(self._read(LAST_NORM)), self._residual)
        if name == LAST_NORM:
            return torch.ones_like(self._read(name))
        _, _, layer, below = name.split(".", 3)
        module, _, kind = below.rpartition(".")
        if module in NORM_BEFORE.values():
            return torch.ones_like(self._read(name))
        tensor = self._read(name)
        if kind == "bias":
            return self._rotated_bias(module, tensor, int(layer))
        if module in NORM_BEFORE:
            norm = self._read(f"model.layers.{layer}.{NORM_BEFORE[module]}.weight")
            tensor = self._residual.apply(tensor * norm)
        heads = self._value_heads[int(layer)]
        if module == "self_attn.v_proj":
            tensor = by_heads(tensor.T, heads).T
        elif module == "self_attn.o_proj":
            tensor = by_heads(tensor, heads)
        if module in ("self_attn.o_proj", "mlp.down_proj"):
            tensor = self._residual.apply(tensor.T).T
        return tensor

    def _rotated_bias(self, module: str, bias: torch.Tensor, layer: int) -> torch.Tensor:
        if module == "self_attn.v_proj":
            return by_heads(bias, self._value_heads[layer])
        if module in ("self_attn.o_proj", "mlp.down_proj"):
            return self._residual.apply(bias)
        return bias

    def _read(self, name: str) -> torch.Tensor:
        return self.base.tensor(name, torch.float64)


def by_heads(x: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """Each head's part of the last dimension [heads * head_dim] rotated."""
    return rotation.apply(x.reshape(*x.shape[:-1], -1, rotation.n)).flatten(-2)


def _in_pieces(matrix: torch.Tensor, rotation: Rotation) -> torch.Tensor:
    """Rows rotated in place, some at a time: a vocabulary's copies would be large."""
    for start in range(0, len(matrix), ROWS_AT_ONCE):
        rows = matrix[start : start + ROWS_AT_ONCE]
        rows.copy_(rotation.apply(rows))
    return matrix
