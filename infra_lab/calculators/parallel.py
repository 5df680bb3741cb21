"""Several GPUs: what tensor and pipeline parallelism send, what it costs, and who holds what.

Answers "two all-reduces a layer: how many bytes, and why is a decode step bound by their latency?":
at batch 1 a message of Llama-2-70B is 16 KiB, 160 of them a step; the wire needs microseconds for
all, the starts need milliseconds.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, log2

from infra_lab.calculators.checks import (
    require_count,
    require_divides,
    require_not_negative,
    require_positive,
)
from infra_lab.calculators.models import Model
from infra_lab.errors import UsageError


@dataclass(frozen=True, slots=True)
class AllReduceTime:
    """Start-ups and wire, apart; `time_s` is their sum."""

    latency_s: float
    transfer_s: float

    @property
    def time_s(self) -> float:
        return self.latency_s + self.transfer_s


def all_reduces_per_step(num_layers: int, backward: bool = False) -> int:
    """Two a layer forward, after the row-split output and down projections; as many backward.

    Megatron-LM (Narayanan et al. 2021, arXiv 2104.04473), section 2.3. The collectives of a split
    vocabulary come on top: an all-reduce after the embedding, a gather of logits.
    """
    require_count("num_layers", num_layers)
    return (4 if backward else 2) * num_layers


def all_reduce_message_bytes(
    hidden_size: int, num_tokens: int, bytes_per_element: float = 2
) -> float:
    """One all-reduce: every token's hidden state. 8192 x 1 x 2 = 16 KiB for a 70B at batch 1."""
    require_count("hidden_size", hidden_size)
    require_count("num_tokens", num_tokens)
    return hidden_size * num_tokens * bytes_per_element


def ring_all_reduce(
    message_bytes: float, num_gpus: int, bytes_per_s: float, latency_s: float = 0
) -> AllReduceTime:
    """Reduce-scatter, then all-gather around a ring: 2 (n - 1) hops of 1 / n of the message.

    2 (n - 1) latency + 2 (n - 1) / n x message / bandwidth; `bytes_per_s` is one way of one GPU's
    link. Source: Thakur, Rabenseifner, Gropp 2005, "Optimization of Collective Communication
    Operations in MPICH".
    """
    _check_link(num_gpus, bytes_per_s, latency_s)
    require_not_negative("message_bytes", message_bytes)
    hops = 2 * (num_gpus - 1)
    return AllReduceTime(hops * latency_s, hops / num_gpus * message_bytes / bytes_per_s)


def tree_all_reduce(
    message_bytes: float, num_gpus: int, bytes_per_s: float, latency_s: float = 0
) -> AllReduceTime:
    """Up a binary tree and down again, the whole message each time: 2 ceil(log2 n) hops.

    Fewer starts than the ring, more bytes: what short messages want. (NCCL's double tree pipelines
    the message as well and sends each byte twice only; same source.)
    """
    _check_link(num_gpus, bytes_per_s, latency_s)
    require_not_negative("message_bytes", message_bytes)
    hops = 2 * ceil(log2(num_gpus))
    return AllReduceTime(hops * latency_s, hops * message_bytes / bytes_per_s)


def quickest_all_reduce(
    message_bytes: float, num_gpus: int, bytes_per_s: float, latency_s: float = 0
) -> AllReduceTime:
    """The ring for long messages, the tree for short ones, as a library would choose."""
    return min(
        ring_all_reduce(message_bytes, num_gpus, bytes_per_s, latency_s),
        tree_all_reduce(message_bytes, num_gpus, bytes_per_s, latency_s),
        key=lambda one: one.time_s,
    )


def step_communication_s(model: Model, one: AllReduceTime) -> float:
    """All of a step's all-reduces, each as long as `one`, one after the other as its layers are."""
    return all_reduces_per_step(model.num_layers) * one.time_s


def kv_heads_per_rank(model: Model, num_gpus: int) -> int:
    """KV heads that each of `num_gpus` ranks holds: a share, or a copy where ranks outnumber them.

    Raises UsageError where tensor parallelism of that size cannot split the heads.
    """
    require_count("num_gpus", num_gpus)
    require_divides("num_gpus", num_gpus, "num_query_heads", model.num_query_heads)
    if model.latent is not None:
        return model.num_kv_heads // num_gpus
    if num_gpus <= model.num_kv_heads:
        require_divides("num_gpus", num_gpus, "num_kv_heads", model.num_kv_heads)
        return model.num_kv_heads // num_gpus
    if num_gpus % model.num_kv_heads:
        raise UsageError(
            f"{model.num_kv_heads} KV heads cannot be copied evenly to num_gpus {num_gpus}: "
            f"choose a divisor or a multiple of {model.num_kv_heads}"
        )
    return 1


def kv_head_of_ranks(model: Model, num_gpus: int) -> list[int]:
    """The first KV head of each rank: [0, 0, 1, 1] for 2 heads on 4 ranks."""
    held = kv_heads_per_rank(model, num_gpus)
    if model.latent is None and num_gpus > model.num_kv_heads:
        copies = num_gpus // model.num_kv_heads
        return [rank // copies for rank in range(num_gpus)]
    return [rank * held for rank in range(num_gpus)]


def cache_copies(model: Model, num_gpus: int) -> float:
    """How often tensor parallelism stores the cache in all: 1, n / KV heads where heads are copied,
    n for MLA, whose latent every rank's heads read."""
    held = kv_heads_per_rank(model, num_gpus)
    if model.latent is not None:
        return float(num_gpus)
    return held * num_gpus / model.num_kv_heads


def padded_vocabulary(vocab_size: int, num_gpus: int, multiple: int = 128) -> int:
    """Rows of a split table: the next multiple of `multiple` x ranks (Megatron-LM)."""
    require_count("vocab_size", vocab_size)
    require_count("num_gpus", num_gpus)
    require_count("multiple", multiple)
    step = multiple * num_gpus
    return ceil(vocab_size / step) * step


def layer_ranges(num_layers: int, num_stages: int) -> list[tuple[int, int]]:
    """Layers [first, last) of each pipeline stage, as vLLM splits them.

    A rest goes one each to the stages before the last, from its neighbour towards the first: the
    last stage has the output matrix, the first the embedding.
    """
    require_count("num_stages", num_stages)
    require_count("num_layers", num_layers)
    if num_stages > num_layers:
        raise UsageError(f"{num_stages} stages for {num_layers} layers: some would have none")
    sizes = [num_layers // num_stages] * num_stages
    for place in range(num_layers % num_stages):
        sizes[-2 - place] += 1
    starts = [sum(sizes[:stage]) for stage in range(num_stages)]
    return [(start, start + size) for start, size in zip(starts, sizes, strict=True)]


def pipeline_bubble(num_stages: int, num_micro_batches: int) -> float:
    """Share of the time in which a stage idles: (p - 1) / (m + p - 1).

    Of the whole run, as GPipe (arXiv 1811.06965) counts it; over the ideal time it is (p - 1) / m
    (Narayanan et al. 2021, section 2.2).
    """
    require_count("num_stages", num_stages)
    require_count("num_micro_batches", num_micro_batches)
    return (num_stages - 1) / (num_micro_batches + num_stages - 1)


def transfer_s(message_bytes: float, bytes_per_s: float, latency_s: float = 0) -> float:
    """Point to point, one way: a prompt's KV from prefill to decode, a swap over PCIe."""
    require_not_negative("message_bytes", message_bytes)
    require_positive("bytes_per_s", bytes_per_s)
    require_not_negative("latency_s", latency_s)
    return latency_s + message_bytes / bytes_per_s


def _check_link(num_gpus: int, bytes_per_s: float, latency_s: float) -> None:
    require_count("num_gpus", num_gpus)
    require_positive("bytes_per_s", bytes_per_s)
    require_not_negative("latency_s", latency_s)
