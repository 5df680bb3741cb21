"""Which parameters a model of a given config has, and their shapes. Torch-free.

A checkpoint is held against this list when it is opened, so that a missing, misshapen or
unexpected tensor is named before anything is read. Answers the interview question "which
matrices does one decoder layer have, and what are their shapes?".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

from infra_lab.errors import ModelLoadError
from infra_lab.models.config import ModelConfig

Shape = tuple[int, ...]


def require_consistent(config: ModelConfig, path: Path) -> None:
    """Raises ModelLoadError unless the numbers make a decoder: all positive, whole groups of
    query heads to a KV head, and an even head_dim to rotate."""
    sizes = {
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_hidden_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "max_position_embeddings": config.max_position_embeddings,
    }
    for name, size in sizes.items():
        if size < 1:
            raise ModelLoadError(f"{path}: {name} is {size}; at least 1 was expected")
    if config.num_attention_heads % config.num_key_value_heads:
        raise ModelLoadError(
            f"{path}: {config.num_attention_heads} attention heads cannot share "
            f"{config.num_key_value_heads} KV heads evenly"
        )
    if config.head_dim % 2:
        raise ModelLoadError(f"{path}: head_dim is {config.head_dim}; rotation needs an even one")


def parameter_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Every parameter that must be there, in Hugging Face's names; matrices are
    [out_features, in_features]. A tied output projection is not listed twice."""
    shapes: dict[str, Shape] = {
        "model.embed_tokens.weight": (config.vocab_size, config.hidden_size)
    }
    for layer in range(config.num_hidden_layers):
        for name, shape in _layer_shapes(config).items():
            shapes[f"model.layers.{layer}.{name}"] = shape
    shapes["model.norm.weight"] = (config.hidden_size,)
    if not config.tie_word_embeddings:
        shapes["lm_head.weight"] = (config.vocab_size, config.hidden_size)
    return shapes


def optional_shapes(config: ModelConfig) -> dict[str, Shape]:
    """Parameters that a checkpoint may have or not: with biased attention, some families give
    the output projection a bias too (Llama), others do not (Qwen2)."""
    if not config.attention_bias:
        return {}
    return {
        f"model.layers.{layer}.self_attn.o_proj.bias": (config.hidden_size,)
        for layer in range(config.num_hidden_layers)
    }


def check_shapes(
    config: ModelConfig, found: Mapping[str, Shape], ignored: Iterable[str], path: Path
) -> list[str]:
    """Holds what a checkpoint has against what its config asks for, and returns the names of
    the parameters to load, in the model's order.

    Names ending in one of `ignored` are passed over. Raises ModelLoadError naming the first
    tensor that is missing, of the wrong shape, or without a place in the model.
    """
    required = parameter_shapes(config)
    wanted = required | optional_shapes(config)
    for name, shape in wanted.items():
        if name in found:
            _require_shape(name, found[name], shape, path)
        elif name in required:
            raise ModelLoadError(f"{path}: tensor {name!r} is missing (its shape is {list(shape)})")
    for name in found:
        if name not in wanted and not name.endswith(tuple(ignored)):
            raise ModelLoadError(
                f"{path}: tensor {name!r} has no place in a model of architecture "
                f"{config.architecture!r} with this config"
            )
    return [name for name in wanted if name in found]


def _require_shape(name: str, found: Shape, wanted: Shape, path: Path) -> None:
    if tuple(found) != wanted:
        raise ModelLoadError(
            f"{path}: tensor {name!r} has shape {list(found)}, but the config asks for "
            f"{list(wanted)}"
        )


def _layer_shapes(config: ModelConfig) -> dict[str, Shape]:
    hidden, intermediate = config.hidden_size, config.intermediate_size
    queries = config.num_attention_heads * config.head_dim
    keys = config.num_key_value_heads * config.head_dim
    shapes: dict[str, Shape] = {
        "input_layernorm.weight": (hidden,),
        "self_attn.q_proj.weight": (queries, hidden),
        "self_attn.k_proj.weight": (keys, hidden),
        "self_attn.v_proj.weight": (keys, hidden),
        "self_attn.o_proj.weight": (hidden, queries),
        "post_attention_layernorm.weight": (hidden,),
        "mlp.gate_proj.weight": (intermediate, hidden),
        "mlp.up_proj.weight": (intermediate, hidden),
        "mlp.down_proj.weight": (hidden, intermediate),
    }
    if config.attention_bias:
        shapes["self_attn.q_proj.bias"] = (queries,)
        shapes["self_attn.k_proj.bias"] = (keys,)
        shapes["self_attn.v_proj.bias"] = (keys,)
    if config.mlp_bias:
        shapes["mlp.gate_proj.bias"] = (intermediate,)
        shapes["mlp.up_proj.bias"] = (intermediate,)
        shapes["mlp.down_proj.bias"] = (hidden,)
    if config.qk_norm:
        shapes["self_attn.q_norm.weight"] = (config.head_dim,)
        shapes["self_attn.k_norm.weight"] = (config.head_dim,)
    return shapes
