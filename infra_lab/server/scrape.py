"""From two readings of /metrics to what happened between them; of this server or of vLLM's.

Answers "how does a dashboard get a P99 out of buckets?": a histogram tells how many values were
below each bound, so the quantile lies in the bucket where that count is reached, and is taken as
if the bucket's values were spread evenly. It can be no more exact than the bucket is wide.
"""

from __future__ import annotations

import math
from collections import defaultdict
from dataclasses import dataclass, field

from prometheus_client.parser import text_string_to_metric_families

from infra_lab.errors import InfraLabError

Buckets = dict[float, float]  # upper bound -> values at or below it
TTFT, ITL = "vllm:time_to_first_token_seconds", "vllm:inter_token_latency_seconds"


@dataclass(frozen=True, slots=True)
class Reading:
    """The sums over all models of one reading, by name; histograms by their bounds."""

    time_s: float
    values: dict[str, float] = field(default_factory=dict)
    histograms: dict[str, Buckets] = field(default_factory=dict)

    def value(self, name: str) -> float:
        return self.values.get(name, 0.0)


@dataclass(frozen=True, slots=True)
class Activity:
    """A server's state now, and what it did since the reading before; None where nothing did."""

    running: int
    waiting: int
    kv_cache_usage: float
    prefix_hit_rate: float | None
    prompt_tokens_per_s: float
    generation_tokens_per_s: float
    requests_per_s: float
    ttft_s: tuple[float, float] | None  # P50, P99
    itl_s: tuple[float, float] | None


def read(text: str, time_s: float) -> Reading:
    """Raises InfraLabError for a text that is not Prometheus'."""
    values: dict[str, float] = defaultdict(float)
    histograms: dict[str, Buckets] = defaultdict(lambda: defaultdict(float))
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                if sample.name.endswith("_bucket"):
                    histograms[family.name][float(sample.labels["le"])] += sample.value
                else:
                    values[sample.name] += sample.value
    except (ValueError, KeyError) as error:
        raise InfraLabError(f"what came is not Prometheus' text format: {error}") from error
    if "vllm:num_requests_running" not in values:
        raise InfraLabError("what came has no vllm:num_requests_running: is it an LLM server?")
    return Reading(time_s, dict(values), {name: dict(one) for name, one in histograms.items()})


def activity(before: Reading, after: Reading) -> Activity:
    """A counter that fell was begun anew by a restart: all it counts is new."""
    seconds = max(after.time_s - before.time_s, 1e-9)

    def gained(name: str) -> float:
        gain = after.value(name) - before.value(name)
        return gain if gain >= 0 else after.value(name)

    queries = gained("vllm:prefix_cache_queries_total")
    return Activity(
        running=int(after.value("vllm:num_requests_running")),
        waiting=int(after.value("vllm:num_requests_waiting")),
        kv_cache_usage=after.value("vllm:kv_cache_usage_perc"),
        prefix_hit_rate=gained("vllm:prefix_cache_hits_total") / queries if queries else None,
        prompt_tokens_per_s=gained("vllm:prompt_tokens_total") / seconds,
        generation_tokens_per_s=gained("vllm:generation_tokens_total") / seconds,
        requests_per_s=gained("vllm:request_success_total") / seconds,
        ttft_s=_percentiles(before, after, TTFT),
        itl_s=_percentiles(before, after, ITL),
    )


def quantile(buckets: Buckets, share: float) -> float | None:
    """The value below which `share` of those in the histogram lie; None for an empty one.

    Beyond the last finite bound it is that bound, as in Prometheus' histogram_quantile.
    """
    bounds = sorted(buckets)
    total = buckets[bounds[-1]] if bounds else 0.0
    if total <= 0:
        return None
    wanted = share * total
    low, count_below = 0.0, 0.0
    for bound in bounds:
        if buckets[bound] >= wanted:
            if math.isinf(bound):
                return low
            inside = buckets[bound] - count_below
            part = (wanted - count_below) / inside if inside else 1.0
            return low + (bound - low) * part
        low, count_below = bound, buckets[bound]
    return low


def _percentiles(before: Reading, after: Reading, name: str) -> tuple[float, float] | None:
    old, new = before.histograms.get(name, {}), after.histograms.get(name, {})
    gained = {bound: count - old.get(bound, 0.0) for bound, count in new.items()}
    if any(count < 0 for count in gained.values()):
        gained = new
    p50, p99 = quantile(gained, 0.5), quantile(gained, 0.99)
    return None if p50 is None or p99 is None else (p50, p99)
