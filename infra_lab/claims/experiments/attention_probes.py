"""Attention backends that look over a real model's shoulder, and greedy generation through them.

A model hands every layer's queries, keys and values to its backend: so a backend can count them,
keep them, round them or let queries see what no causal model shows them, and the model knows
nothing of it. Answers "what does a KV cache save?" by what really passes through.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, cast

from infra_lab.config import DEFAULT_BLOCK_SIZE

if TYPE_CHECKING:
    import torch

    from infra_lab.attention.backend import AttentionBackend, AttentionMetadata, LayerKVCache
    from infra_lab.models.decoder import DecoderForCausalLM

BLOCK_SIZE = DEFAULT_BLOCK_SIZE


class Probe:
    """A backend around another, which sees and may change keys and values on their way in."""

    fuses_rotation = False

    def __init__(self, inner: AttentionBackend[Any]) -> None:
        self._inner = inner

    def plan(self, metadata: AttentionMetadata) -> Any:
        return self._inner.plan(metadata)

    def forward(
        self,
        query: torch.Tensor,
        key_value: torch.Tensor,
        cache: LayerKVCache,
        plan: Any,
        out: torch.Tensor,
    ) -> None:
        self._inner.forward(query, self.passed_on(query, key_value), cache, plan, out)

    def passed_on(self, query: torch.Tensor, key_value: torch.Tensor) -> torch.Tensor:
        """What the other backend gets for these keys and values, [tokens, 2, num_kv_heads,
        head_dim]."""
        return key_value


class Counted(Probe):
    """What passes through, counted.

    scored: query-key pairs of one head in one layer, of rectangles of queries and keys, as the
        plain product of Q and K^T scores them. rows: tokens whose keys and values were projected.
    query_shape, keys_seen: of the last call, for one head: [queries, head_dim], and how many keys.
    keys_and_values: where `keep` is set, those of every layer in the last step,
        [tokens, 2, num_kv_heads, head_dim].
    """

    def __init__(self, inner: AttentionBackend[Any], keep: bool = False) -> None:
        super().__init__(inner)
        self._keep = keep
        self.scored = 0
        self.rows = 0
        self.query_shape = (0, 0)
        self.keys_seen = 0
        self.keys_and_values: list[torch.Tensor] = []

    def plan(self, metadata: AttentionMetadata) -> Any:
        self.keys_and_values = []
        self.scored += int((metadata.query_lens * metadata.seq_lens).sum())
        self.rows += metadata.num_tokens
        self.keys_seen = int(metadata.seq_lens[-1])
        return super().plan(metadata)

    def passed_on(self, query: torch.Tensor, key_value: torch.Tensor) -> torch.Tensor:
        self.query_shape = (query.shape[0], query.shape[2])
        if self._keep:
            self.keys_and_values.append(key_value.clone())
        return key_value


class Rounded(Probe):
    """A backend whose keys and values go through `round_keys_and_values` on their way in."""

    def __init__(
        self,
        inner: AttentionBackend[Any],
        round_keys_and_values: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        super().__init__(inner)
        self._round = round_keys_and_values

    def passed_on(self, query: torch.Tensor, key_value: torch.Tensor) -> torch.Tensor:
        return self._round(key_value)


class SeesAll:
    """An encoder's attention: every query sees every key of its sequence, later ones too."""

    fuses_rotation = False

    def __init__(self, num_kv_heads: int, scale: float) -> None:
        self._num_kv_heads = num_kv_heads
        self._scale = scale

    def plan(self, metadata: AttentionMetadata) -> None:
        """One sequence: nothing depends on its shape."""

    def forward(
        self,
        query: torch.Tensor,
        key_value: torch.Tensor,
        cache: LayerKVCache,
        plan: Any,
        out: torch.Tensor,
    ) -> None:
        import torch.nn.functional as F

        group = query.shape[1] // self._num_kv_heads
        keys, values = (
            part.repeat_interleave(group, 1).transpose(0, 1) for part in key_value.unbind(1)
        )
        attended = F.scaled_dot_product_attention(
            query.transpose(0, 1), keys, values, scale=self._scale
        )
        out.copy_(attended.transpose(0, 1))


def as_backend(probe: Probe | SeesAll) -> AttentionBackend[Any]:
    """A probe has a backend's methods; it is no subclass, so that this module starts fast."""
    return cast("AttentionBackend[Any]", probe)


def read_whole(
    model: DecoderForCausalLM, probe: Probe | SeesAll, token_ids: Sequence[int]
) -> torch.Tensor:
    """One sequence without a cache -> its residual stream [tokens, hidden]."""
    from infra_lab.quantization.evaluate import TextModel

    return TextModel(model, as_backend(probe)).hidden(token_ids)


@dataclass
class Generation:
    """What a greedy generation came to, and what it had cost after each step.

    scored, rows: sums so far, as in Counted. seconds: of all steps.
    """

    token_ids: list[int]
    scored: list[int] = field(default_factory=list)
    rows: list[int] = field(default_factory=list)
    seconds: float = 0.0


def generate_without_cache(
    model: DecoderForCausalLM, probe: Counted, prompt: Sequence[int], num_steps: int
) -> Generation:
    """Every step reads the whole sequence again; its last row gives the next id."""
    done = Generation(list(prompt))
    started = time.perf_counter()
    for _ in range(num_steps):
        hidden = read_whole(model, probe, done.token_ids)
        done.token_ids.append(int(model.logits(hidden[-1:]).argmax()))
        done.scored.append(probe.scored)
        done.rows.append(probe.rows)
    done.seconds = time.perf_counter() - started
    return done


def generate_with_cache(
    model: DecoderForCausalLM, probe: Counted, prompt: Sequence[int], num_steps: int
) -> Generation:
    """Every step reads the ids that are new: the prompt's, then the one that was sampled last."""
    import numpy as np
    import torch

    from infra_lab.attention.backend import AttentionMetadata
    from infra_lab.worker.kv_cache import allocate_kv_cache

    num_blocks = -(-(len(prompt) + num_steps) // BLOCK_SIZE)
    caches = allocate_kv_cache(model.config, num_blocks + 1, BLOCK_SIZE, model.dtype, model.device)
    table = np.arange(1, num_blocks + 1)[None]  # block 0 is never a request's
    done = Generation(list(prompt))
    new = list(prompt)
    started = time.perf_counter()
    for _ in range(num_steps):
        end = len(done.token_ids)
        positions = np.arange(end - len(new), end)
        slots = table[0, positions // BLOCK_SIZE] * BLOCK_SIZE + positions % BLOCK_SIZE
        plan = probe.plan(AttentionMetadata(np.array([0, len(new)]), np.array([end]), table, slots))
        hidden = model.forward(
            torch.tensor(new), torch.from_numpy(positions), as_backend(probe), caches, plan
        )
        new = [int(model.logits(hidden[-1:]).argmax())]
        done.token_ids += new
        done.scored.append(probe.scored)
        done.rows.append(probe.rows)
    done.seconds = time.perf_counter() - started
    return done
