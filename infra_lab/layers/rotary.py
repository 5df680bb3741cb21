"""Rotary position embedding (Su et al. 2021) in the rotate-half layout, with the linear and
llama3 ways of stretching it. Answers "how does RoPE encode position, and how is it extended?".
"""

from __future__ import annotations

import math
from functools import cached_property

import torch

from infra_lab.layers.rope_scaling import RopeScaling
from infra_lab.native import library, ops


def inverse_frequencies(head_dim: int, theta: float, scaling: RopeScaling) -> torch.Tensor:
    """Angle per position of each of the head_dim / 2 pairs, float64 [head_dim / 2]."""
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim
    frequencies = theta**-exponents
    if scaling.kind == "linear":
        return frequencies / scaling.factor
    if scaling.kind == "llama3":
        return _llama3_frequencies(frequencies, scaling)
    return frequencies


def _llama3_frequencies(frequencies: torch.Tensor, scaling: RopeScaling) -> torch.Tensor:
    """Keeps fast pairs, divides slow ones by `factor`, blends linearly between the two.

    A pair is fast when it turns at least `high_freq_factor` times over the original context,
    slow when it turns at most `low_freq_factor` times.
    """
    turns = scaling.original_max_position_embeddings * frequencies / (2 * math.pi)
    span = scaling.high_freq_factor - scaling.low_freq_factor
    kept = ((turns - scaling.low_freq_factor) / span).clamp(0.0, 1.0)
    return frequencies * (kept + (1.0 - kept) / scaling.factor)


class RotaryEmbedding:
    """cos and sin of every position, in the two forms that turning heads takes.

    Angles are fp32, as every reference implementation has them. On a GPU only the form that its
    backend asks for is made.
    """

    def __init__(
        self,
        frequencies: torch.Tensor,
        max_positions: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        self._frequencies = frequencies.float().cpu()
        self._max_positions = max_positions
        self._dtype = dtype
        self._device = device
        if device.type == "cpu":
            _ = self._doubled  # while the model loads, not in its first step

    def at(self, positions: torch.Tensor) -> Rotation:
        """What turns tokens at int64 positions [num_tokens]."""
        return Rotation(self, positions)

    def tables(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows for int64 positions [num_tokens]: cos and signed sin [num_tokens, 1, head_dim]."""
        cos, signed_sin = self._doubled
        cos = cos.index_select(0, positions).unsqueeze(1)
        return cos, signed_sin.index_select(0, positions).unsqueeze(1)

    @cached_property
    def table(self) -> torch.Tensor:
        """cos, then sin, fp32 [max_positions, head_dim]: what `kernels.rotary` reads."""
        cos, sin = self._cos_and_sin()
        return torch.cat((cos, sin), dim=-1).to(self._device)

    @cached_property
    def _doubled(self) -> tuple[torch.Tensor, torch.Tensor]:
        """(cos, cos) and (-sin, sin) [max_positions, head_dim], for `rotate_`."""
        cos, sin = self._cos_and_sin()
        doubled = torch.cat((cos, cos), dim=-1), torch.cat((-sin, sin), dim=-1)
        return (
            doubled[0].to(dtype=self._dtype, device=self._device),
            doubled[1].to(dtype=self._dtype, device=self._device),
        )

    def _cos_and_sin(self) -> tuple[torch.Tensor, torch.Tensor]:
        positions = torch.arange(self._max_positions, dtype=torch.float32)
        angles = torch.outer(positions, self._frequencies)
        return angles.cos(), angles.sin()


class Rotation:
    """How a step's tokens turn: made once, used by every layer."""

    def __init__(self, embedding: RotaryEmbedding, positions: torch.Tensor) -> None:
        self.embedding = embedding
        self.positions = positions

    @cached_property
    def tables(self) -> tuple[torch.Tensor, torch.Tensor]:
        """cos and signed sin [num_tokens, 1, head_dim], for `rotate_`."""
        return self.embedding.tables(self.positions)


def rotate_(x: torch.Tensor, cos: torch.Tensor, signed_sin: torch.Tensor) -> None:
    """Rotates each pair (x[i], x[i + head_dim / 2]) of x [num_tokens, num_heads, head_dim] in
    place: (a, b) -> (a cos - b sin, b cos + a sin); the minus sign lives in `signed_sin`.
    A token's heads must lie together."""
    if library.serves(x):
        ops.rotate_(x, cos, signed_sin)
        return
    half = x.shape[-1] // 2
    swapped = torch.cat((x[..., half:], x[..., :half]), dim=-1)
    x.mul_(cos).addcmul_(swapped, signed_sin)
