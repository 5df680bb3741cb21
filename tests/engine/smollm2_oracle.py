"""SmolLM2 as transformers runs it: the oracle of tests on the real model."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from infra_lab.models.loader import open_checkpoint


def llama_of_transformers(smollm2_path: Path) -> LlamaForCausalLM:
    """transformers' own Llama over the same weights, fp32."""
    checkpoint = open_checkpoint(smollm2_path)
    config = checkpoint.config
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_hidden_layers,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
            max_position_embeddings=config.max_position_embeddings,
            rms_norm_eps=config.rms_norm_eps,
            rope_parameters={"rope_type": "default", "rope_theta": config.rope_theta},
            tie_word_embeddings=True,
        )
    )
    weights = {name: checkpoint.tensor(name, torch.float32) for name in checkpoint.names()}
    missing, unexpected = model.load_state_dict(weights, strict=False)
    assert not unexpected
    assert missing == ["lm_head.weight"]
    model.tie_weights()
    return model.eval()
