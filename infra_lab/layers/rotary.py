"""Rotary position embedding (Su et al. 2021) in the rotate-half layout, with the linear and
llama3 ways of stretching it. Answers "how does RoPE encode position, and how is it extended?".
"""

from __future__ import annotations

import math

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
    """Tables of cos and signed sin for every position, applied to queries and keys at once."""

    def __init__(
        self,
        frequencies: torch.Tensor,
        max_positions: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        # fp32 angles, as every reference implementation has them.
        positions = torch.arange(max_positions, dtype=torch.float32)
        angles = torch.outer(positions, frequencies.float())
        cos, sin = angles.cos(), angles.sin()
        self._cos = torch.cat((cos, cos), dim=-1).to(dtype=dtype, device=device)
        self._signed_sin = torch.cat((-sin, sin), dim=-1).to(dtype=dtype, device=device)

    def tables(self, positions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Rows for int64 positions [num_tokens]: two tensors [num_tokens, 1, head_dim]."""
        cos = self._cos.index_select(0, positions).unsqueeze(1)
        return cos, self._signed_sin.index_select(0, positions).unsqueeze(1)


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
