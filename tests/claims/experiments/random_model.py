"""Weights of a small Llama that are there for their numbers, not for what they say."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from infra_lab.claims.experiments.launches import RandomCheckpoint
from infra_lab.claims.experiments.launches import tiny_config as one_shape
from infra_lab.models.config import ModelConfig


def tiny_config(**changes: Any) -> ModelConfig:
    return replace(one_shape(1), **{"dtype": "float32", **changes})


class RandomNumbers(RandomCheckpoint):
    """Different numbers in every tensor, the same in every run."""

    def tensor(
        self, name: str, dtype: torch.dtype, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        generator = torch.Generator().manual_seed(sum(map(ord, name)))
        shape = super().tensor(name, dtype).shape
        numbers = torch.randn(shape, generator=generator) * 0.3 + ("norm" in name)
        return numbers.to(dtype) if out is None else out.copy_(numbers)
