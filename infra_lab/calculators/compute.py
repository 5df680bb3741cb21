"""FLOPs of prefill and decode, term by term, and what they do to each byte that is read.

Answers "why is decode bound by memory and prefill by arithmetic?": a token multiplies with every
weight once (2 FLOPs), and a step reads every weight once, whatever its number of tokens. A
multiply-add counts as two operations throughout; norms, rotations and softmax are left out
(below 1 % of a large model's).
"""

from __future__ import annotations

from dataclasses import dataclass

from infra_lab.calculators.checks import require_count
from infra_lab.calculators.models import Model
from infra_lab.calculators.parameters import active_linear_parameters, head_parameters


@dataclass(frozen=True, slots=True)
class StepFlops:
    """Of one step: matrices of the layers, output matrix, scores and weighted values."""

    linear_flops: float
    head_flops: float
    attention_flops: float

    @property
    def total_flops(self) -> float:
        return self.linear_flops + self.head_flops + self.attention_flops


def product_flops(num_parameters: float, num_tokens: float) -> float:
    """2 x parameters x tokens: the rule of thumb, and exact for matrix products."""
    return 2 * num_parameters * num_tokens


def attention_pairs(num_queries: int, num_cached: int = 0, causal: bool = True) -> int:
    """How many (query, key) pairs are scored: queries after `num_cached` earlier tokens.

    Causal, with blocks above the diagonal skipped: q c + q (q + 1) / 2. Full: q (c + q).
    """
    require_count("num_queries", num_queries, 0)
    require_count("num_cached", num_cached, 0)
    if causal:
        return num_queries * num_cached + num_queries * (num_queries + 1) // 2
    return num_queries * (num_cached + num_queries)


def attention_flops(model: Model, num_pairs: int, absorbed: bool = False) -> int:
    """Scores and weighted values: layers x heads x 2 x (key_dim + value_dim) x pairs.

    4 x layers x hidden x pairs for a model whose heads make up its hidden size. `absorbed` is
    MLA's decode, which scores the latents themselves: 2 x (2 kv_rank + rope_dim) a pair and head
    (DeepSeek-V2, arXiv 2405.04434, section 2.1.2); other models do not know the difference.
    """
    dims = model.key_dim + model.value_dim
    if absorbed and model.latent is not None:
        dims = 2 * model.latent.kv_rank + model.latent.rope_dim
    return 2 * model.num_layers * model.num_query_heads * dims * num_pairs


def prefill_flops(
    model: Model, num_tokens: int, num_cached: int = 0, causal: bool = True
) -> StepFlops:
    """One prompt's chunk of `num_tokens` after `num_cached`; one row of logits."""
    require_count("num_tokens", num_tokens)
    return StepFlops(
        linear_flops=product_flops(active_linear_parameters(model), num_tokens),
        head_flops=product_flops(head_parameters(model), 1),
        attention_flops=attention_flops(model, attention_pairs(num_tokens, num_cached, causal)),
    )


def decode_flops(model: Model, num_requests: int, context: int) -> StepFlops:
    """One token for each request, which attends to `context` tokens, itself among them."""
    require_count("num_requests", num_requests)
    require_count("context", context)
    return StepFlops(
        linear_flops=product_flops(active_linear_parameters(model), num_requests),
        head_flops=product_flops(head_parameters(model), num_requests),
        attention_flops=attention_flops(model, num_requests * context, absorbed=True),
    )


def equal_length(model: Model, num_parameters: float, causal: bool = True) -> float:
    """The prompt length at which attention costs as much as the matrix products.

    2 P s = 2 L h s^2 (causal) or 4 L h s^2 (full), h = heads x head_dim, so s = P / (L h), or half
    of it. Llama-2-70B taken as 70e9: 106.8K, or 53.4K.
    """
    per_pair = attention_flops(model, 1) / 2  # of a pair, in multiply-adds
    pairs_per_token_squared = 0.5 if causal else 1.0
    return num_parameters / (per_pair * pairs_per_token_squared)


def decode_attention_intensity(model: Model, bytes_per_element: float = 2) -> float:
    """FLOPs for each byte of KV that decode attention reads, however long the context.

    2 x 2 x query heads / (2 x KV heads x bytes) = query heads / KV heads in 16 bits: 1 for MHA,
    8 for Llama-2-70B. MLA: 2 x heads x (2 kv_rank + rope_dim) / (kv_rank + rope_dim) / bytes.
    """
    flops = attention_flops(model, 1, absorbed=True) / model.num_layers
    if model.latent is not None:
        return flops / ((model.latent.kv_rank + model.latent.rope_dim) * bytes_per_element)
    return flops / (2 * model.num_kv_heads * model.head_dim * bytes_per_element)


def cacheless_score_ratio(num_tokens: int) -> float:
    """What the KV cache saves in attention scores over a whole generation of n tokens.

    Without it step t scores t^2 pairs: n (n + 1) (2n + 1) / 6 in all; with it t: n (n + 1) / 2.
    The ratio is (2n + 1) / 3.
    """
    require_count("num_tokens", num_tokens)
    return (2 * num_tokens + 1) / 3


def cacheless_projection_ratio(num_tokens: int) -> float:
    """Likewise for the matrix products: n (n + 1) / 2 token passes against n, (n + 1) / 2 times."""
    require_count("num_tokens", num_tokens)
    return (num_tokens + 1) / 2
