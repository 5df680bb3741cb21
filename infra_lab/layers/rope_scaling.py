"""What a checkpoint says about its rotary frequencies. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """How rotary frequencies are stretched for long contexts.

    kind "default" leaves them, "linear" divides positions by `factor` (Position
    Interpolation), "llama3" divides only the low frequencies and blends between.
    """

    kind: str = "default"
    factor: float = 1.0
    low_freq_factor: float = 1.0
    high_freq_factor: float = 4.0
    original_max_position_embeddings: int = 8192
