"""A GGUF file as a Hugging Face folder in fp32, for engines that read only those.

Both engines of a comparison then compute with the same numbers: each weight is dequantized
once, by our reader, and stored as it is. The folder is made in a temporary place and moved
whole, so a killed export leaves nothing that looks finished.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

from infra_lab.models.checkpoint import Checkpoint
from infra_lab.models.config import ModelConfig

HF_CLASSES = {
    "llama": "LlamaForCausalLM",
    "mistral": "MistralForCausalLM",
    "qwen2": "Qwen2ForCausalLM",
    "qwen3": "Qwen3ForCausalLM",
}


def hugging_face_folder(path: Path, cache_dir: Path) -> Path:
    """`path` itself when it is a folder, else its fp32 export under `cache_dir`, made once.

    The export is named after the file's size and time, so that another file under the same
    name gets its own. Raises ModelLoadError when the file cannot be read.
    """
    if path.is_dir():
        return path
    facts = path.stat()
    folder = cache_dir / "exports" / f"{path.stem}-{facts.st_size}-{facts.st_mtime_ns}-float32"
    if not folder.is_dir():
        export_folder(path, folder)
    return folder


def export_folder(path: Path, folder: Path) -> None:
    """Writes config.json, model.safetensors and the tokenizer; atomic."""
    from infra_lab.models.loader import open_checkpoint

    checkpoint = open_checkpoint(path)
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=".export-", dir=folder.parent))
    try:
        config = json.dumps(hugging_face_config(checkpoint.config), indent=2)
        (work / "config.json").write_text(config, encoding="utf-8")
        _save_weights(checkpoint, work / "model.safetensors")
        _save_tokenizer(checkpoint, work)
        try:
            work.replace(folder)
        except OSError:
            # Another process was faster: a folder that has contents cannot be replaced.
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


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


def _save_weights(checkpoint: Checkpoint, target: Path) -> None:
    import torch
    from safetensors.torch import save_file

    weights = {name: checkpoint.tensor(name, torch.float32) for name in checkpoint.names()}
    save_file(weights, target, metadata={"format": "pt"})


def _save_tokenizer(checkpoint: Checkpoint, folder: Path) -> None:
    from transformers import PreTrainedTokenizerFast

    from infra_lab.models.tokenizer import load_tokenizer

    tokenizer = load_tokenizer(checkpoint)
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer.backend,
        chat_template=tokenizer.chat_template,
        **tokenizer.special_tokens,
    ).save_pretrained(folder)
