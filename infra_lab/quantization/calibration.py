"""The token sequences that calibrated methods see: where they come from, and how many there are."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from infra_lab.errors import UsageError
from infra_lab.models.config import ModelConfig
from infra_lab.quantization.settings import QuantizationSettings


def calibration_sequences(
    token_ids: Sequence[int], settings: QuantizationSettings, config: ModelConfig
) -> torch.Tensor:
    """int64 [num_sequences, sequence_length]: pieces of the text, none twice, spread over it.

    Raises UsageError for a text that is too short, or a sequence longer than the context.
    """
    count, length = settings.num_sequences, settings.sequence_length
    if length > config.max_position_embeddings:
        raise UsageError(
            f"sequences of {length} tokens do not fit the model's context of "
            f"{config.max_position_embeddings}: give less"
        )
    wanted = count * length
    if len(token_ids) < wanted:
        raise UsageError(
            f"the calibration text has {len(token_ids):,} tokens, and {count} sequences of "
            f"{length} take {wanted:,}: give a longer text, or fewer or shorter sequences"
        )
    tokens = torch.tensor(token_ids)
    starts = torch.linspace(0, len(token_ids) - length, count, dtype=torch.float64).long()
    if count == 1:
        starts = torch.zeros(1, dtype=torch.int64)
    return tokens[starts[:, None] + torch.arange(length)]
