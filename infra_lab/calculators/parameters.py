"""How many parameters a model has, which of them a token meets, and which a GPU multiplies.

Answers "where do the parameters of a 70B sit?" and "671B in total, 37B active: which are which?".
The counts are exact: every matrix, bias and norm of the shape.
"""

from __future__ import annotations

from dataclasses import dataclass

from infra_lab.calculators.models import LatentAttention, Model


@dataclass(frozen=True, slots=True)
class ParameterCounts:
    """Of the whole model. `tables` holds the embeddings (and positions), `head` the output matrix,
    0 where it is the embedding again; `small` the norms and biases."""

    tables: int
    head: int
    attention: int
    mlp: int
    small: int

    @property
    def total(self) -> int:
        return self.tables + self.head + self.attention + self.mlp + self.small


def parameter_counts(model: Model) -> ParameterCounts:
    """Every parameter there is, all experts included."""
    return _counts(model, None if model.experts is None else model.experts.num_experts)


def active_counts(model: Model) -> ParameterCounts:
    """What one token meets: of the experts only those that it is sent to."""
    return _counts(model, None if model.experts is None else model.experts.num_active)


def num_parameters(model: Model) -> int:
    return parameter_counts(model).total


def num_active_parameters(model: Model) -> int:
    return active_counts(model).total


def linear_parameters(model: Model) -> int:
    """Elements of the layers' matrices, all experts included: what quantizers quantize."""
    counts = parameter_counts(model)
    return counts.attention + counts.mlp


def active_linear_parameters(model: Model) -> int:
    """Of those, what one token is multiplied with."""
    counts = active_counts(model)
    return counts.attention + counts.mlp


def head_parameters(model: Model) -> int:
    """The output matrix, hidden_size x vocab_size; it is multiplied even where it is tied."""
    return model.hidden_size * model.vocab_size


def expert_parameters(model: Model) -> int:
    """The three matrices of one routed expert of one layer; 0 without experts."""
    return 0 if model.experts is None else 3 * model.hidden_size * model.experts.intermediate_size


def _counts(model: Model, experts_counted: int | None) -> ParameterCounts:
    embedding = model.vocab_size * model.hidden_size
    dense_layers = model.num_layers - model.num_expert_layers
    mlp = dense_layers * _mlp(model)
    if model.experts is not None and experts_counted is not None:
        router = model.hidden_size * model.experts.num_experts
        passed = experts_counted + model.experts.num_shared
        mlp += model.num_expert_layers * (router + passed * expert_parameters(model))
    return ParameterCounts(
        tables=embedding + model.learned_positions * model.hidden_size,
        head=0 if model.tied_embeddings else embedding,
        attention=model.num_layers * _attention(model),
        mlp=mlp,
        small=model.num_layers * _small(model) + _norm(model, model.hidden_size),
    )


def _attention(model: Model) -> int:
    """One layer's q, k, v and o matrices, or MLA's down and up projections."""
    if model.latent is not None:
        return _latent_attention(model, model.latent)
    query = model.num_query_heads * model.head_dim
    key_value = model.num_kv_heads * model.head_dim
    return model.hidden_size * (2 * query + 2 * key_value)


def _latent_attention(model: Model, latent: LatentAttention) -> int:
    """DeepSeek-V2, equations 9 to 19: W_DQ, W_UQ, W_DKV with W_KR, W_UK with W_UV, W_O."""
    hidden, heads = model.hidden_size, model.num_query_heads
    queries = heads * model.key_dim
    if latent.query_rank is None:
        query = hidden * queries
    else:
        query = hidden * latent.query_rank + latent.query_rank * queries
    down = hidden * (latent.kv_rank + latent.rope_dim)
    up = latent.kv_rank * heads * (latent.nope_dim + latent.value_dim)
    return query + down + up + heads * latent.value_dim * hidden


def _mlp(model: Model) -> int:
    return (3 if model.gated_mlp else 2) * model.hidden_size * model.intermediate_size


def _small(model: Model) -> int:
    """One layer's norms and biases. (Models with experts have no biases in their MLP.)"""
    count = 2 * _norm(model, model.hidden_size)
    if model.latent is not None:
        count += model.latent.kv_rank + (model.latent.query_rank or 0)
    if model.qk_norm:
        count += 2 * model.head_dim
    if model.qkv_bias:
        count += (model.num_query_heads + 2 * model.num_kv_heads) * model.head_dim
    if model.output_bias:
        count += model.hidden_size
    if model.mlp_bias:
        count += (2 if model.gated_mlp else 1) * model.intermediate_size + model.hidden_size
    return count


def _norm(model: Model, size: int) -> int:
    return (2 if model.norm_bias else 1) * size
