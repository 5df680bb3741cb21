"""A tiny Llama on disk with a byte-level tokenizer and a chat template: every part of a server
is real and a step takes a millisecond or two."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from transformers import LlamaConfig, LlamaForCausalLM

from infra_lab.engine.llm import LLM
from tests.sampling.grammar_helpers import byte_level_tokenizer

CONTEXT = 1024
TEMPLATE = (
    "{% for message in messages %}<{{ message.role }}>{{ message.content }}<end>{% endfor %}"
    "{% if add_generation_prompt %}<assistant>{% endif %}"
)


def save_tiny_model(folder: Path, seed: int = 0) -> Path:
    """Random weights, sharpened so that greedy answers do not hang on rounding."""
    tokenizer = byte_level_tokenizer()
    torch.manual_seed(seed)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=tokenizer.vocab_size,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=CONTEXT,
            bos_token_id=None,
            eos_token_id=0,
        )
    )
    with torch.no_grad():
        model.lm_head.weight.mul_(12.0)
    model.save_pretrained(folder)
    tokenizer.backend.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": "<eos>",
        "chat_template": TEMPLATE,
    }
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def load_tiny(folder: Path, **config: Any) -> LLM:
    return LLM(folder, **{"num_blocks": 256, "block_size": 8, "max_num_seqs": 16} | config)
