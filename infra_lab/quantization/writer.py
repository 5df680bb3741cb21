"""Quantized weights as a Hugging Face folder that transformers, vLLM and infra-lab read.

A shard at a time, into a temporary sibling that gets its name when it is whole: an interruption
leaves no half folder. Answers "what has to be in a quantized checkpoint besides the weights?".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

import torch

from infra_lab.formats.quantized_weight import ActivationFormat, QuantizedWeight
from infra_lab.formats.weight_format import WeightFormat
from infra_lab.models.checkpoint import Checkpoint


def write_folder(
    source: Checkpoint,
    out: Path,
    weights: Mapping[str, QuantizedWeight],
    weight_format: WeightFormat,
    *,
    activation: ActivationFormat | None = None,
    dense: Mapping[str, torch.Tensor] | None = None,
    dtype: torch.dtype = torch.float16,
    on_write: Callable[[str], None] = lambda name: None,
) -> None:
    """Writes config.json with its quantization_config, the weights and the tokenizer.

    Args:
        source: the model that was quantized; whatever is in neither mapping comes from here.
        out: a folder that is not there yet.
        weights: by parameter name ("model.layers.0.mlp.up_proj.weight"); each is asked for once,
            so a mapping may load or compute them one by one. What is stored of each is
            `weight_format.as_stored(weight)`.
        weight_format: how they are stored, from `formats.layouts.weight_format`.
        activation: what the layers do to their inputs, where the format can say so.
        dense: parameters that changed without being quantized, such as smoothed norms.
        dtype: of everything that is not quantized.
        on_write: told the name of every parameter written, for a progress bar.

    Raises UsageError when `out` is there already, the format cannot hold a weight (which is
    named) or say what the layers do to their inputs, or a number is too large for `dtype`.
    """
    raise NotImplementedError
