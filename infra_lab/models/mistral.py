"""Mistral: Llama whose tokens may see only a sliding window of the last W tokens.

The window is a number in the config, and honouring it is the attention backend's work
(Jiang et al. 2023, section 2): Mistral 7B v0.1 has 4,096, later versions have none.
"""

from __future__ import annotations

from infra_lab.models.decoder import DecoderForCausalLM


class MistralForCausalLM(DecoderForCausalLM):
    """Llama with `config.sliding_window` set, or not."""
