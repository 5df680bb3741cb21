"""Qwen3: no biases, but q and k are normalised per head before rotation.

QK-norm bounds the attention logits however large the weights grow, which is what Qwen2's
biases could not do.
"""

from __future__ import annotations

import torch

from infra_lab.layers.norm import RMSNorm
from infra_lab.models.config import ModelConfig
from infra_lab.models.decoder import Attention, DecoderForCausalLM
from infra_lab.models.weights import Weights


class Qwen3Attention(Attention):
    """RMSNorm over head_dim on every query and key head, one weight for all heads of a kind."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        super().__init__(config, weights)
        self.query_norm = RMSNorm(weights.tensor("q_norm.weight"), config.rms_norm_eps)
        self.key_norm = RMSNorm(weights.tensor("k_norm.weight"), config.rms_norm_eps)

    def normalize_(self, queries: torch.Tensor, keys: torch.Tensor) -> None:
        queries.copy_(self.query_norm(queries))
        keys.copy_(self.key_norm(keys))


class Qwen3ForCausalLM(DecoderForCausalLM):
    attention_class = Qwen3Attention
