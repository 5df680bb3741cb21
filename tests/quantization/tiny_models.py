"""Small random models with a tokenizer, as Hugging Face folders."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

from infra_lab.formats.quantized_weight import ActivationFormat
from infra_lab.layers.quantized_input import rounded_input
from infra_lab.models.checkpoint import Checkpoint
from tests.sampling.grammar_helpers import byte_level_tokenizer

TOKENIZER = byte_level_tokenizer()
CONTEXT = 96
TEXT = "Alice was beginning to get very tired of sitting by her sister on the bank. " * 12
_FAMILIES = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "mistral": (MistralConfig, MistralForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
}


def tiny_model(folder: Path, family: str = "llama", **changes: Any) -> Any:
    """Saved to `folder`; returns transformers' own model of it."""
    config_class, model_class = _FAMILIES[family]
    settings: dict[str, Any] = {
        "vocab_size": TOKENIZER.vocab_size,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 3,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "bos_token_id": None,
        "eos_token_id": 0,
        "tie_word_embeddings": False,
    }
    torch.manual_seed(0)
    model = model_class(config_class(**(settings | changes))).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" in name or "bias" in name:
                parameter.add_(torch.randn_like(parameter) * 0.2)
            else:
                parameter.mul_(6.0)  # so that layers do something, and words differ
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=TOKENIZER.backend).save_pretrained(folder)
    return model


def token_ids(count: int, seed: int = 0) -> list[int]:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(2, TOKENIZER.vocab_size, (count,), generator=generator).tolist()


def quantized_inputs(model: Any, written: Checkpoint) -> None:
    """Makes transformers' model round the inputs of its linear layers as `written` says."""
    for name, module in model.named_modules():
        activation = written.activation_format(f"{name}.weight")
        if activation is not None:
            module.register_forward_pre_hook(partial(_rounded, activation))


def _rounded(
    activation: ActivationFormat, module: Any, inputs: tuple[torch.Tensor]
) -> tuple[torch.Tensor]:
    (x,) = inputs
    return (rounded_input(x.reshape(-1, x.shape[-1]), activation).view(x.shape),)
