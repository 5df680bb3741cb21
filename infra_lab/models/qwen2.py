"""Qwen2 and Qwen2.5: Llama with biases on q, k and v, and none on the output projection."""

from __future__ import annotations

from infra_lab.models.decoder import DecoderForCausalLM


class Qwen2ForCausalLM(DecoderForCausalLM):
    """The biases are `config.attention_bias`: fused into the one q, k, v product."""
