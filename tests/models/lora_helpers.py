"""Tiny random models and adapters for them, made by transformers and peft themselves."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    PretrainedConfig,
    PreTrainedModel,
    Qwen2Config,
)

VOCAB = 61
SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "initializer_range": 0.2,
    "eos_token_id": 2,
}
ALL_MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
FAMILIES: dict[str, type[PretrainedConfig]] = {"llama": LlamaConfig, "qwen2": Qwen2Config}


def save_tiny_model(folder: Path, family: str = "llama") -> Path:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(FAMILIES[family](**SIZES))
    for name, parameter in model.named_parameters():
        if name.endswith("bias"):
            torch.nn.init.normal_(parameter)
    model.save_pretrained(folder)
    return folder


def load_base(folder: Path) -> PreTrainedModel:
    return AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()


def save_adapter(base: Path, folder: Path, seed: int = 1, **settings: Any) -> Path:
    """An adapter with random A and B, as if it had been trained."""
    return save_adapter_of(load_base(base), folder, seed, **settings)


def save_adapter_of(
    model: torch.nn.Module, folder: Path, seed: int = 1, std: float = 0.3, **settings: Any
) -> Path:
    torch.manual_seed(seed)
    wrapped = get_peft_model(model, LoraConfig(**{"r": 4, "lora_alpha": 8} | settings))
    for name, parameter in wrapped.named_parameters():
        if "lora_" in name:
            torch.nn.init.normal_(parameter, std=std)
    wrapped.save_pretrained(folder)
    wrapped.unload()
    return folder
