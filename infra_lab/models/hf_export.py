"""What a Hugging Face folder has besides its weights: config.json and the tokenizer's files.

Written from a GGUF file's metadata, or copied from a folder that has them already.
"""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

from infra_lab.models.config import ModelConfig

HF_CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}
# Those that transformers' tokenizers are made of, and what a model generates with by default.
_COPIED = (
    *("tokenizer.json", "tokenizer_config.json", "tokenizer.model", "special_tokens_map.json"),
    *("added_tokens.json", "vocab.json", "merges.txt", "chat_template.jinja"),
    "generation_config.json",
)


def hugging_face_config(config: ModelConfig) -> dict[str, Any]:
    """The contents of config.json for a fp32 folder."""
    values: dict[str, Any] = {
        "architectures": [HF_CLASSES[config.architecture]],
        "model_type": config.architecture,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tie_word_embeddings,
        "attention_bias": config.attention_bias,
        "mlp_bias": config.mlp_bias,
        "torch_dtype": "float32",
    }
    optional = {
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids) or None,
        "sliding_window": config.sliding_window,
        "rope_scaling": _rope_scaling(config),
    }
    values.update({key: value for key, value in optional.items() if value is not None})
    return values


def _rope_scaling(config: ModelConfig) -> dict[str, Any] | None:
    scaling = config.rope_scaling
    if scaling.kind == "default":
        return None
    values: dict[str, Any] = {"rope_type": scaling.kind, "factor": scaling.factor}
    if scaling.kind == "llama3":
        values["low_freq_factor"] = scaling.low_freq_factor
        values["high_freq_factor"] = scaling.high_freq_factor
        values["original_max_position_embeddings"] = scaling.original_max_position_embeddings
    return values


def save_tokenizer(source: Path, folder: Path) -> None:
    """The tokenizer of a GGUF file, or of another folder with its generation_config.json, into a
    folder. Raises ModelLoadError when a GGUF file has none that can be read."""
    if source.is_dir():
        for name in _COPIED:
            if (source / name).is_file():
                shutil.copyfile(source / name, folder / name)
        return
    from transformers import PreTrainedTokenizerFast

    from infra_lab.models.gguf_checkpoint import GGUFCheckpoint
    from infra_lab.models.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(GGUFCheckpoint(source))
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend,
        chat_template=tokenizer.chat_template,
        **tokenizer.special_tokens,
    ).save_pretrained(folder)
