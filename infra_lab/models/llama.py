"""Llama 2 and 3, SmolLM, TinyLlama: the plain decoder, nothing added."""

from __future__ import annotations

from infra_lab.models.decoder import DecoderForCausalLM


class LlamaForCausalLM(DecoderForCausalLM):
    """RMSNorm, RoPE (with linear or llama3 scaling), grouped-query attention, SwiGLU."""
