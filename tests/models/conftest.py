"""Tiny models of each family, written to disk as GGUF files or Hugging Face folders."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType, GGUFWriter, quants
from safetensors.torch import save_file

from infra_lab.models.config import ModelConfig
from infra_lab.models.shapes import parameter_shapes

Weights = dict[str, torch.Tensor]

_GGUF_NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def make_config(architecture: str, **changes: Any) -> ModelConfig:
    settings: dict[str, Any] = {
        "architecture": architecture,
        "vocab_size": 96,
        "hidden_size": 64,
        "intermediate_size": 96,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32 if architecture == "qwen3" else 16,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "attention_bias": architecture == "qwen2",
        "qk_norm": architecture == "qwen3",
        "bos_token_id": 1,
        "eos_token_ids": (2,),
    }
    return ModelConfig(**(settings | changes))


def make_weights(config: ModelConfig, seed: int = 0) -> Weights:
    generator = torch.Generator().manual_seed(seed)
    return {
        name: torch.randn(shape, generator=generator) * 0.1
        for name, shape in parameter_shapes(config).items()
    }


def gguf_name(name: str) -> str:
    module, _, suffix = name.rpartition(".")
    if module.startswith("model.layers."):
        _, _, layer, *rest = module.split(".")
        return f"blk.{layer}.{_GGUF_NAMES['.'.join(rest)]}.{suffix}"
    return f"{_GGUF_NAMES[module]}.{suffix}"


def interleave(weight: np.ndarray, num_heads: int) -> np.ndarray:
    """What llama.cpp's converter does to q and k of a Llama model: row i of each half of a
    head ends up beside its partner."""
    halves = weight.reshape(num_heads, 2, weight.shape[0] // num_heads // 2, *weight.shape[1:])
    return np.ascontiguousarray(halves.swapaxes(1, 2)).reshape(weight.shape)


def write_gguf(
    path: Path,
    config: ModelConfig,
    weights: Mapping[str, torch.Tensor],
    quantization: GGMLQuantizationType = GGMLQuantizationType.F32,
    add: Callable[[GGUFWriter], None] = lambda writer: None,
) -> Path:
    """Matrices in `quantization`, vectors in F32, as llama.cpp writes them; `add` may add
    metadata and tensors."""
    writer = GGUFWriter(path, config.architecture)
    writer.add_block_count(config.num_hidden_layers)
    writer.add_context_length(config.max_position_embeddings)
    writer.add_embedding_length(config.hidden_size)
    writer.add_feed_forward_length(config.intermediate_size)
    writer.add_head_count(config.num_attention_heads)
    writer.add_head_count_kv(config.num_key_value_heads)
    writer.add_key_length(config.head_dim)
    writer.add_value_length(config.head_dim)
    writer.add_rope_dimension_count(config.head_dim)
    writer.add_layer_norm_rms_eps(config.rms_norm_eps)
    writer.add_rope_freq_base(config.rope_theta)
    writer.add_vocab_size(config.vocab_size)
    if config.bos_token_id is not None:
        writer.add_bos_token_id(config.bos_token_id)
    if config.eos_token_ids:
        writer.add_eos_token_id(config.eos_token_ids[0])
    add(writer)
    for name, weight in weights.items():
        array = weight.numpy()
        if config.architecture == "llama" and ".q_proj." in name:
            array = interleave(array, config.num_attention_heads)
        if config.architecture == "llama" and ".k_proj." in name:
            array = interleave(array, config.num_key_value_heads)
        if array.ndim == 1 or quantization is GGMLQuantizationType.F32:
            writer.add_tensor(gguf_name(name), array)
        else:
            packed = quants.quantize(array, quantization)
            writer.add_tensor(gguf_name(name), packed, raw_dtype=quantization)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def hf_settings(config: ModelConfig, **changes: Any) -> dict[str, Any]:
    settings = {
        "architectures": [f"{config.architecture.capitalize()}ForCausalLM"],
        "model_type": config.architecture,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position_embeddings,
        "rms_norm_eps": config.rms_norm_eps,
        "rope_theta": config.rope_theta,
        "tie_word_embeddings": config.tie_word_embeddings,
        "attention_bias": config.attention_bias,
        "sliding_window": config.sliding_window,
        "bos_token_id": config.bos_token_id,
        "eos_token_id": list(config.eos_token_ids) or None,
        "hidden_act": "silu",
        "torch_dtype": config.dtype,
    }
    return {key: value for key, value in (settings | changes).items() if value != "absent"}


def write_hf(
    folder: Path, config: ModelConfig, weights: Mapping[str, torch.Tensor], **changes: Any
) -> Path:
    """`changes` go into config.json; "absent" leaves a key out."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(hf_settings(config, **changes)))
    save_file(dict(weights), folder / "model.safetensors", metadata={"format": "pt"})
    return folder


@pytest.fixture(scope="session")
def tiny() -> Any:
    """The helpers of this file as one object, since test folders are not packages."""

    class Tiny:
        config = staticmethod(make_config)
        weights = staticmethod(make_weights)
        gguf = staticmethod(write_gguf)
        gguf_name = staticmethod(gguf_name)
        hf = staticmethod(write_hf)
        hf_settings = staticmethod(hf_settings)

    return Tiny


@pytest.fixture
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    """Any attempt to open a connection fails the test."""
    import socket

    def refuse(*args: object, **kwargs: object) -> None:
        raise AssertionError("a connection was attempted")

    monkeypatch.setattr(socket.socket, "connect", refuse)
    monkeypatch.setattr(socket, "getaddrinfo", refuse)
