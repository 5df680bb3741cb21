"""The decoder-only transformer that Llama, Mistral and Qwen share, written for ragged batches.

Tokens of all requests lie end to end as rows, so every layer but attention sees one matrix.
A family's own file says what it does differently. Answers "walk me through one forward pass".
"""

from __future__ import annotations

from collections.abc import Sequence
from copy import copy
from dataclasses import replace
from typing import Any, Self

import torch

from infra_lab.attention.backend import AttentionBackend, AttentionShape, LayerKVCache
from infra_lab.errors import UsageError
from infra_lab.layers.activation import silu_and_mul
from infra_lab.layers.embedding import Embedding, TiedEmbedding
from infra_lab.layers.norm import RMSNorm
from infra_lab.layers.rotary import RotaryEmbedding, Rotation, inverse_frequencies, rotate_
from infra_lab.models.config import ModelConfig
from infra_lab.models.weights import Weights


class Attention:
    """Grouped-query self-attention; q, k and v come from one fused product."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        self.num_heads = config.num_attention_heads
        self.num_kv_heads = config.num_key_value_heads
        self.head_dim = config.head_dim
        self.qkv = weights.linear("q_proj", "k_proj", "v_proj", bias=config.attention_bias)
        self.output = weights.linear("o_proj", bias=weights.has("o_proj.bias"))

    def __call__(
        self,
        x: torch.Tensor,
        rotation: Rotation,
        backend: AttentionBackend[Any],
        cache: LayerKVCache,
        plan: object,
        wanted: torch.Tensor | None,
    ) -> torch.Tensor:
        num_tokens = x.shape[0]
        heads = self.qkv(x).view(num_tokens, -1, self.head_dim)
        queries = heads[:, : self.num_heads]
        keys = heads[:, self.num_heads : self.num_heads + self.num_kv_heads]
        self.normalize_(queries, keys)
        attended = torch.empty_like(queries, memory_format=torch.contiguous_format)
        if backend.fuses_rotation:
            table = rotation.embedding.table
            backend.rotate_and_forward(heads, rotation.positions, table, cache, plan, attended)
        else:
            rotate_(heads[:, : self.num_heads + self.num_kv_heads], *rotation.tables)
            key_values = heads[:, self.num_heads :]
            key_values = key_values.view(num_tokens, 2, self.num_kv_heads, self.head_dim)
            backend.forward(queries, key_values, cache, plan, attended)
        attended = attended.view(num_tokens, -1)
        return self.output(attended if wanted is None else attended.index_select(0, wanted))

    def normalize_(self, queries: torch.Tensor, keys: torch.Tensor) -> None:
        """What a family does to q and k, in place, before rotation; nothing, in Llama."""


class MLP:
    """SwiGLU: down(silu(gate(x)) * up(x)), gate and up fused into one product."""

    def __init__(self, config: ModelConfig, weights: Weights) -> None:
        self.gate_up = weights.linear("gate_proj", "up_proj", bias=config.mlp_bias)
        self.down = weights.linear("down_proj", bias=config.mlp_bias)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.down(silu_and_mul(self.gate_up(x)))


class DecoderLayer:
    """Pre-norm residual block: x += attention(norm(x)); x += mlp(norm(x)).

    What a sublayer adds is added by the norm that follows it, in the next layer if need be.
    """

    def __init__(
        self,
        config: ModelConfig,
        weights: Weights,
        attention_class: type[Attention],
    ) -> None:
        eps = config.rms_norm_eps
        self.input_norm = RMSNorm(weights.tensor("input_layernorm.weight"), eps)
        self.attention = attention_class(config, weights.below("self_attn"))
        self.post_attention_norm = RMSNorm(weights.tensor("post_attention_layernorm.weight"), eps)
        self.mlp = MLP(config, weights.below("mlp"))

    def __call__(
        self,
        x: torch.Tensor,
        delta: torch.Tensor | None,
        rotation: Rotation,
        backend: AttentionBackend[Any],
        cache: LayerKVCache,
        plan: object,
        wanted: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The residual stream x, still without the previous layer's `delta` -> the same, without
        this layer's, and that. x changes in place, unless only the rows `wanted` are to come
        out: every token's keys and values are needed, but not every output."""
        normed = self.input_norm.after_adding(x, delta)
        attended = self.attention(normed, rotation, backend, cache, plan, wanted)
        if wanted is not None:
            x = x.index_select(0, wanted)
        return x, self.mlp(self.post_attention_norm.after_adding(x, attended))


class DecoderForCausalLM:
    """Embedding, layers, final norm and output head.

    Subclasses name their attention; everything else follows from the config.
    """

    attention_class: type[Attention] = Attention

    def __init__(
        self, config: ModelConfig, weights: Weights, max_positions: int | None = None
    ) -> None:
        self.config = config
        self.dtype = weights.dtype
        self.device = weights.device
        trunk = weights.below("model")
        if config.tie_word_embeddings:
            self.head = trunk.linear("embed_tokens", bias=False)
            self.embed: Embedding | TiedEmbedding = TiedEmbedding(self.head)
        else:
            self.head = weights.linear("lm_head", bias=False)
            self.embed = trunk.embedding("embed_tokens")
        self.layers = [
            DecoderLayer(config, trunk.below(f"layers.{i}"), self.attention_class)
            for i in range(config.num_hidden_layers)
        ]
        self.norm = RMSNorm(trunk.tensor("norm.weight"), config.rms_norm_eps)
        self.rotary = RotaryEmbedding(
            inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling),
            max_positions or config.max_position_embeddings,
            self.dtype,
            self.device,
        )

    def first_layers(self, count: int) -> Self:
        """The model that ends after `count` layers, with the same norm and head behind them; it
        shares all weights. Raises UsageError unless it is a smaller model."""
        num_layers = self.config.num_hidden_layers
        if not 1 <= count < num_layers:
            raise UsageError(
                f"the first {count} of {num_layers} layers make no smaller model: give a number "
                f"from 1 to {num_layers - 1}"
            )
        shallow = copy(self)
        shallow.config = replace(self.config, num_hidden_layers=count)
        shallow.layers = self.layers[:count]
        return shallow

    @property
    def attention_shape(self) -> AttentionShape:
        return attention_shape(self.config)

    def forward(
        self,
        token_ids: torch.Tensor,
        positions: torch.Tensor,
        backend: AttentionBackend[Any],
        caches: Sequence[LayerKVCache],
        plan: object,
        wanted: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """token_ids, positions: int64 [num_tokens] -> residual stream [num_tokens, hidden], or
        its rows `wanted`, int64 [n], only: the last layer need not finish the others."""
        x, rotation = self.embed(token_ids), self.rotary.at(positions)
        x, delta = self.run_layers(x, rotation, backend, caches, plan, wanted)
        return x.add_(delta)

    def run_layers(
        self,
        x: torch.Tensor,
        rotation: Rotation,
        backend: AttentionBackend[Any],
        caches: Sequence[LayerKVCache],
        plan: object,
        wanted: torch.Tensor | None = None,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """The embedded tokens x [num_tokens, hidden], which change in place -> the residual
        stream without what the last layer adds, and that."""
        delta = None
        last = self.layers[-1]
        for layer, cache in zip(self.layers, caches, strict=True):
            rows = wanted if layer is last else None
            x, delta = layer(x, delta, rotation, backend, cache, plan, rows)
        assert delta is not None
        return x, delta

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """Residual stream rows [n, hidden] -> fp32 logits [n, vocab]."""
        return self.head(self.norm(x)).float()


def attention_shape(config: ModelConfig) -> AttentionShape:
    """What a backend must know of the attention in every layer."""
    return AttentionShape(
        num_heads=config.num_attention_heads,
        num_kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        scale=config.head_dim**-0.5,
        sliding_window=config.sliding_window,
    )
