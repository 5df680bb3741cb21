"""How many parameters a model has, from its architecture numbers alone.

The arithmetic behind "how large is a 7B model, and where do its parameters sit?". Torch-free.
"""

from __future__ import annotations

from infra_lab.models.config import ModelConfig


def num_parameters(config: ModelConfig) -> int:
    """Parameters of the whole model; tied embeddings count once."""
    embeddings = config.vocab_size * config.hidden_size
    tables = embeddings if config.tie_word_embeddings else 2 * embeddings
    layer = attention_parameters(config) + mlp_parameters(config) + 2 * config.hidden_size
    return tables + config.num_hidden_layers * layer + config.hidden_size


def attention_parameters(config: ModelConfig) -> int:
    """One layer's q, k, v and o projections, their biases and the QK norms."""
    query = config.num_attention_heads * config.head_dim
    key_value = config.num_key_value_heads * config.head_dim
    count = config.hidden_size * (query + 2 * key_value) + query * config.hidden_size
    if config.attention_bias:
        count += query + 2 * key_value
        if config.architecture == "llama":  # Qwen2 has biases on q, k and v only
            count += config.hidden_size
    if config.qk_norm:
        count += 2 * config.head_dim
    return count


def mlp_parameters(config: ModelConfig) -> int:
    """One layer's gate, up and down projections, and their biases where there are some."""
    count = 3 * config.hidden_size * config.intermediate_size
    if config.mlp_bias:
        count += 2 * config.intermediate_size + config.hidden_size
    return count
