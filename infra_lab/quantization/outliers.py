"""The same model with outliers in its activations, as large models have them and small ones not.

Answers "why does rounding activations work on a small model and ruin a large one?" (LLM.int8(),
Dettmers et al. 2022: from 6.7B parameters on, a few channels are a hundred times the others). A
channel of a norm's weight is multiplied and the columns that read it divided: by a power of two
not a bit of the output changes in exact arithmetic, but every token's scale is now set by it.
"""

from __future__ import annotations

import math

import torch

from infra_lab.errors import UsageError
from infra_lab.models.checkpoint import Checkpoint
from infra_lab.quantization.modules import GROUPS, layer_prefix
from infra_lab.quantization.overlay import OverlayCheckpoint

_CHANNELS_PER_OUTLIER = 96  # as many of 576 channels as were found in 4096 (six)


def with_planted_outliers(checkpoint: Checkpoint, factor: float, seed: int = 0) -> Checkpoint:
    """factor: a power of two above 1. In every layer the same channels of both norms' outputs
    grow by it. Raises UsageError for another factor."""
    if not factor > 1 or not math.isfinite(factor) or math.frexp(factor)[0] != 0.5:
        raise UsageError(
            f"outliers are a power of two times as large, so that nothing is rounded: {factor:g}"
        )
    hidden = checkpoint.config.hidden_size
    count = max(1, hidden // _CHANNELS_PER_OUTLIER)
    generator = torch.Generator().manual_seed(seed)
    scales = torch.ones(hidden)
    scales[torch.randperm(hidden, generator=generator)[:count]] = factor
    dense: dict[str, torch.Tensor] = {}
    for layer in range(checkpoint.config.num_hidden_layers):
        prefix = layer_prefix(layer)
        for group in GROUPS:
            if group.norm is None:
                continue
            name = f"{prefix}{group.norm}.weight"
            dense[name] = checkpoint.tensor(name, torch.float32) * scales
            for module in group.modules:
                name = f"{prefix}{module}.weight"
                dense[name] = checkpoint.tensor(name, torch.float32) / scales
    return OverlayCheckpoint(checkpoint, dense=dense)
