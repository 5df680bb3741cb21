"""Bytes of KV cache, from MHA to MLA, in any number format, in whole blocks.

Answers "how much memory does one request of 4K tokens take?": for Llama-2-70B in 16 bits
2 x 80 x 8 x 128 x 4096 x 2 bytes = 1.342 GB = 1.25 GiB, and 7.5 times that without grouped queries.
"""

from __future__ import annotations

from math import ceil

from infra_lab.calculators.checks import require_count
from infra_lab.calculators.formats import NumberFormat, number_format, per_head_vector
from infra_lab.calculators.models import Model
from infra_lab.config import DEFAULT_BLOCK_SIZE

BF16 = number_format("bf16")
ENGINE_SCALE_BITS = 32  # a scale of the engine's int8 and fp8 caches is one fp32


def elements_per_token_layer(model: Model) -> int:
    """Numbers that one token leaves in one layer.

    MHA, GQA, MQA: 2 x KV heads x head_dim. MLA: kv_rank + rope_dim, for all heads together
    (DeepSeek-V2, arXiv 2405.04434, table 1).
    """
    if model.latent is not None:
        return model.latent.kv_rank + model.latent.rope_dim
    return 2 * model.num_kv_heads * model.head_dim


def bytes_per_token(model: Model, cache_format: NumberFormat = BF16) -> float:
    """Of all layers; the format's scales are counted."""
    return model.num_layers * elements_per_token_layer(model) * cache_format.bytes_per_element


def block_bytes(
    model: Model, block_size: int = DEFAULT_BLOCK_SIZE, cache_format: NumberFormat = BF16
) -> float:
    """One block of every layer: the unit that a paged cache allocates.

    In one layer it is 1 / num_layers of that, which is what a kernel's stride sees.
    """
    require_count("block_size", block_size)
    return block_size * bytes_per_token(model, cache_format)


def num_blocks(num_tokens: int, block_size: int = DEFAULT_BLOCK_SIZE) -> int:
    """Blocks that hold so many tokens: ceil(tokens / block_size)."""
    require_count("num_tokens", num_tokens, 0)
    require_count("block_size", block_size)
    return ceil(num_tokens / block_size)


def cache_bytes(
    model: Model,
    num_tokens: int,
    num_requests: int = 1,
    cache_format: NumberFormat = BF16,
    block_size: int = 1,
) -> float:
    """Requests of that many tokens each; with block_size above 1 in whole blocks."""
    require_count("num_requests", num_requests, 0)
    held = num_blocks(num_tokens, block_size) * block_size
    return num_requests * held * bytes_per_token(model, cache_format)


def cache_format(name: str, model: Model) -> NumberFormat:
    """A number format, or int8-token-head and its kin: a scale for each token and head."""
    wanted = name.strip().lower().replace("_", "-")
    dim = model.head_dim if model.latent is None else model.latent.kv_rank + model.latent.rope_dim
    for bits, names in ((8, ("int8-token-head", "int8-per-token-head")), (4, ("int4-token-head",))):
        if wanted in names:
            return per_head_vector(bits, dim)
    if wanted in ("int8-engine", "fp8-engine"):
        return per_head_vector(8, dim, ENGINE_SCALE_BITS)
    return number_format(wanted)


def working(
    model: Model, num_tokens: int, num_requests: int = 1, cache_format: NumberFormat = BF16
) -> str:
    """The product as one would write it on a board: "2 x 80 layers x 8 KV heads x ..."."""
    if model.latent is not None:
        latent = f"({model.latent.kv_rank} latent + {model.latent.rope_dim} rotary)"
        factors = [f"{model.num_layers} layers", latent]
    else:
        factors = [
            "2",
            f"{model.num_layers} layers",
            f"{model.num_kv_heads} KV heads",
            f"{model.head_dim}",
        ]
    if num_tokens != 1:
        factors.append(f"{num_tokens:,} tokens")
    if num_requests != 1:
        factors.append(f"{num_requests:,} requests")
    factors.append(f"{cache_format.bytes_per_element:g} bytes")
    return " x ".join(factors)
