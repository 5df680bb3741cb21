"""What Prometheus reads at /metrics: vLLM's names where they mean the same.

Answers "which numbers tell that a serving system is in trouble?": how many wait, how full the
KV cache is, and the two latencies that a reader feels, TTFT and ITL.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from infra_lab.outputs import RequestOutput
from infra_lab.sampling_params import SamplingParams
from infra_lab.speculative.acceptance import SpeculativeStats

if TYPE_CHECKING:
    from infra_lab.server.async_engine import AsyncEngine

# Seconds; dense where interactive use lives.
TTFT_BUCKETS = (0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60)
ITL_BUCKETS = (0.002, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1, 2)
LATENCY_BUCKETS = (0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 60, 120, 300, 600)
TOKEN_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000)


class ServerMetrics:
    """One registry a server; `observe` is called on the engine's thread."""

    def __init__(self, model_name: str) -> None:
        self._model_name = model_name
        self.registry = CollectorRegistry()
        self._last_token_s: dict[str, dict[int, float]] = {}
        self._started: set[str] = set()
        self._ttft = self._histogram("time_to_first_token_seconds", "TTFT", TTFT_BUCKETS)
        self._itl = self._histogram("inter_token_latency_seconds", "ITL", ITL_BUCKETS)
        self._e2e = self._histogram(
            "e2e_request_latency_seconds", "Arrival to end", LATENCY_BUCKETS
        )
        self._queue_time = self._histogram(
            "request_queue_time_seconds", "Arrival to first scheduled", LATENCY_BUCKETS
        )
        self._num_prompt = self._histogram(
            "request_prompt_tokens", "Prompt tokens of a request", TOKEN_BUCKETS
        )
        self._num_generated = self._histogram(
            "request_generation_tokens", "Output tokens of a request", TOKEN_BUCKETS
        )
        self._params_n = self._histogram("request_params_n", "n of a request", (1, 2, 5, 10, 20))
        self._prompt_tokens = self._counter("prompt_tokens", "Prompt tokens of ended requests")
        self._generation_tokens = self._counter("generation_tokens", "Output tokens")
        self._preemptions = self._counter("num_preemptions", "Preemptions of ended requests")
        self._ended = Counter(
            "vllm:request_success",
            "Requests by how they ended: stop, length, abort, error",
            ["model_name", "finished_reason"],
            registry=self.registry,
        )
        self._http = Counter(
            "infra_lab:http_requests",
            "HTTP requests by path and status",
            ["path", "status"],
            registry=self.registry,
        )

    def watch(self, engine: AsyncEngine) -> None:
        """Reports the state of `engine`, too, as it is when somebody looks."""
        self.registry.register(_EngineState(engine, self._model_name))

    def text(self) -> bytes:
        """In Prometheus' text format."""
        return generate_latest(self.registry)

    def note_http(self, path: str, status: int) -> None:
        self._http.labels(path, str(status)).inc()

    def note_parameters(self, params: SamplingParams, num_prompts: int) -> None:
        for _ in range(num_prompts):
            self._params_n.observe(params.n)

    def observe(self, outputs: Sequence[RequestOutput], now_s: float) -> None:
        for output in outputs:
            self._observe_tokens(output, now_s)
            if output.finished:
                self._observe_end(output, now_s)

    def _observe_tokens(self, output: RequestOutput, now_s: float) -> None:
        """A step that brings several tokens of one sample, as after a draft, counts its time in
        equal parts, so that the intervals are one fewer than the tokens."""
        name = output.request_id
        if name not in self._started and output.metrics.ttft_s is not None:
            self._started.add(name)
            self._ttft.observe(output.metrics.ttft_s)
        last_of = self._last_token_s.setdefault(name, {})
        for sample in output.outputs:
            count = len(sample.new_token_ids)
            if not count:
                continue
            self._generation_tokens.inc(count)
            last_s = last_of.get(sample.index)
            if last_s is not None:
                for _ in range(count):
                    self._itl.observe((now_s - last_s) / count)
            last_of[sample.index] = now_s

    def _observe_end(self, output: RequestOutput, now_s: float) -> None:
        metrics = output.metrics
        self._started.discard(output.request_id)
        self._last_token_s.pop(output.request_id, None)
        self._e2e.observe(now_s - metrics.arrival_time_s)
        if metrics.queue_time_s is not None:
            self._queue_time.observe(metrics.queue_time_s)
        self._num_prompt.observe(len(output.prompt_token_ids))
        self._num_generated.observe(sum(len(sample.token_ids) for sample in output.outputs))
        self._prompt_tokens.inc(len(output.prompt_token_ids))
        self._preemptions.inc(metrics.num_preemptions)
        reason = output.outputs[0].finish_reason or "stop"
        self._ended.labels(self._model_name, reason).inc()

    def _histogram(self, name: str, text: str, buckets: Sequence[float]) -> Histogram:
        family = Histogram(
            f"vllm:{name}", text, ["model_name"], buckets=buckets, registry=self.registry
        )
        return family.labels(self._model_name)

    def _counter(self, name: str, text: str) -> Counter:
        family = Counter(f"vllm:{name}", text, ["model_name"], registry=self.registry)
        return family.labels(self._model_name)


class _EngineState(Collector):
    def __init__(self, engine: AsyncEngine, model_name: str) -> None:
        self._engine = engine
        self._labels = [model_name]

    def collect(self) -> Iterable[Metric]:
        stats = self._engine.stats
        for name, text, value in (
            ("vllm:num_requests_running", "Samples in the batch", stats.running),
            ("vllm:num_requests_waiting", "Samples that wait for a place", stats.waiting),
            ("vllm:kv_cache_usage_perc", "Share of KV blocks held, 0 to 1", stats.kv_cache_usage),
            ("infra_lab:kv_blocks_cached", "Blocks held by none, but found", stats.blocks_cached),
        ):
            gauge = GaugeMetricFamily(name, text, labels=["model_name"])
            gauge.add_metric(self._labels, value)
            yield gauge
        yield self._counter("prefix_cache_queries", "Tokens looked up", stats.prefix_cache_queries)
        yield self._counter("prefix_cache_hits", "Tokens found", stats.prefix_cache_hits)
        if (speculation := self._engine.speculation) is not None:
            yield from self._speculation(speculation)

    def _speculation(self, stats: SpeculativeStats) -> Iterable[Metric]:
        name = "spec_decode_num"
        yield self._counter(f"{name}_drafts", "Drafts that were verified", stats.num_drafts)
        yield self._counter(
            f"{name}_draft_tokens", "Drafted tokens that were verified", stats.num_draft_tokens
        )
        yield self._counter(
            f"{name}_accepted_tokens", "Drafted tokens that stood", stats.num_accepted_tokens
        )
        places = CounterMetricFamily(
            f"vllm:{name}_accepted_tokens_per_pos",
            "Drafts that stood up to a place, from 0",
            labels=["model_name", "position"],
        )
        for position, count in enumerate(stats.num_accepted_tokens_per_pos):
            places.add_metric([*self._labels, str(position)], count)
        yield places

    def _counter(self, name: str, text: str, value: float) -> Metric:
        counter = CounterMetricFamily(f"vllm:{name}", text, labels=["model_name"])
        counter.add_metric(self._labels, value)
        return counter
