"""The shapes of models by name, exact to the last bias, as their published configs have them.

Answers "where does 70B come from?" together with `parameters`, and "which models have grouped
queries, which a latent, which experts?" by looking. Shapes are data: a config read elsewhere, or
numbers typed by hand, make a Model as well.
"""

from __future__ import annotations

from dataclasses import dataclass

from infra_lab.calculators.checks import require_count, require_divides
from infra_lab.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """DeepSeek's MLA: the cache keeps one vector of kv_rank + rope_dim for all heads of a layer.

    Source: DeepSeek-V2 (arXiv 2405.04434), section 2.1.
    """

    kv_rank: int
    nope_dim: int  # of a head's query and key, without rotation
    rope_dim: int
    value_dim: int
    query_rank: int | None = None  # None: queries are projected at once


@dataclass(frozen=True, slots=True, kw_only=True)
class Experts:
    """Of `num_experts` gated MLPs a token passes `num_active`, and all `num_shared`; the first
    `num_dense_layers` layers have the model's plain MLP."""

    num_experts: int
    num_active: int
    intermediate_size: int
    num_shared: int = 0
    num_dense_layers: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """A decoder-only transformer. `source` says where its numbers were read."""

    name: str
    title: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_query_heads: int
    num_kv_heads: int
    head_dim: int
    max_context: int
    tied_embeddings: bool = False
    gated_mlp: bool = True  # gate, up and down; else up and down
    qkv_bias: bool = False
    output_bias: bool = False
    mlp_bias: bool = False
    norm_bias: bool = False  # LayerNorm has a weight and a bias, RMSNorm a weight
    qk_norm: bool = False  # RMSNorm over head_dim on queries and keys
    learned_positions: int = 0  # rows of a table of position embeddings
    latent: LatentAttention | None = None
    experts: Experts | None = None
    source: str = ""

    def __post_init__(self) -> None:
        for name in (
            "vocab_size",
            "hidden_size",
            "intermediate_size",
            "num_layers",
            "num_query_heads",
            "num_kv_heads",
            "head_dim",
            "max_context",
        ):
            require_count(name, getattr(self, name))
        require_divides("num_kv_heads", self.num_kv_heads, "num_query_heads", self.num_query_heads)
        if self.experts is not None and self.experts.num_active > self.experts.num_experts:
            raise UsageError(
                f"{self.experts.num_active} active experts of {self.experts.num_experts}: "
                "a token cannot pass more than there are"
            )

    @property
    def attention_kind(self) -> str:
        """MHA, GQA, MQA or MLA: what the sharing of keys and values is called."""
        if self.latent is not None:
            return "MLA"
        if self.num_kv_heads == self.num_query_heads:
            return "MHA"
        return "MQA" if self.num_kv_heads == 1 else "GQA"

    @property
    def num_expert_layers(self) -> int:
        return 0 if self.experts is None else self.num_layers - self.experts.num_dense_layers

    @property
    def key_dim(self) -> int:
        """Numbers in one head's key, which a score's dot product runs over."""
        return self.head_dim if self.latent is None else self.latent.nope_dim + self.latent.rope_dim

    @property
    def value_dim(self) -> int:
        return self.head_dim if self.latent is None else self.latent.value_dim


def custom_model(
    num_layers: int,
    num_query_heads: int,
    num_kv_heads: int,
    head_dim: int,
    hidden_size: int = 0,
    intermediate_size: int = 0,
    vocab_size: int = 32000,
    max_context: int = 4096,
) -> Model:
    """A Llama-shaped model from numbers; hidden_size 0 is heads x head_dim, intermediate_size 0 is
    Llama's 8/3 of it."""
    hidden = hidden_size or num_query_heads * head_dim
    return Model(
        name="custom",
        title="from numbers",
        vocab_size=vocab_size,
        hidden_size=hidden,
        intermediate_size=intermediate_size or max(1, hidden * 8 // 3),
        num_layers=num_layers,
        num_query_heads=num_query_heads,
        num_kv_heads=num_kv_heads,
        head_dim=head_dim,
        max_context=max_context,
        source="given",
    )
