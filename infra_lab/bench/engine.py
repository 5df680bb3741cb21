"""Our own engine as a benchmark sees it: opened with fixed settings, fed token ids, timed.

The clock and the engine are passed in, so that the measuring is tested without a model.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from infra_lab.bench.runs import BatchRun, StreamRun
from infra_lab.bench.steps import StepRecorder
from infra_lab.bench.workload import BenchRequest
from infra_lab.engine.event_log import EventLog
from infra_lab.errors import InfraLabError
from infra_lab.models.config import ModelConfig
from infra_lab.outputs import RequestOutput
from infra_lab.sampling_params import SamplingParams
from infra_lab.speculative_config import SpeculativeConfig

if TYPE_CHECKING:
    from infra_lab.engine.llm import LLM

Clock = Callable[[], float]


class OfflineEngine(Protocol):
    """What a benchmark needs of an engine; `infra_lab.engine.llm.LLM` is one."""

    def generate(
        self,
        prompts: Sequence[Sequence[int]],
        sampling_params: Sequence[SamplingParams],
        *,
        use_progress: bool = False,
    ) -> list[RequestOutput]: ...


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """What a benchmark fixes about our engine; None leaves the engine's own default.

    Prefix caching is off unless asked for: a repeated prompt would otherwise be found in the
    cache, and the second run would measure something else than the first. The pool is touched
    at start, as a server's would be, so that no step waits for memory.
    """

    dtype: str = "auto"
    threads: int | None = None
    max_model_len: int | None = None
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    block_size: int | None = None
    kv_cache_bytes: int | None = None
    pretouch_kv_cache: bool = True
    enable_prefix_caching: bool = False
    scheduling_policy: str | None = None
    swap_space_bytes: int | None = None
    kv_cache_dtype: str | None = None
    sparse_kv: bool | None = None
    speculative: SpeculativeConfig | None = None

    def engine_config(self) -> dict[str, Any]:
        """The fields that go to the engine; `threads` is torch's, not the engine's."""
        values = {field.name: getattr(self, field.name) for field in fields(self)}
        return {k: v for k, v in values.items() if v is not None and k != "threads"}

    def described(self) -> dict[str, Any]:
        """The same, JSON-ready, for a report."""
        config = self.engine_config()
        if self.speculative is not None:
            config["speculative"] = asdict(self.speculative)
        return config


class MeasurementError(InfraLabError):
    """An engine did not do what was asked of it, so its time means nothing."""


def model_shape(model: str, cache_dir: Path | None = None) -> tuple[Path, ModelConfig]:
    """Where a model's file or folder is, and its architecture; reads no weights, needs no torch."""
    from infra_lab.models.loader import read_config
    from infra_lab.models.store import resolve

    path = resolve(model, cache_dir)
    return path, read_config(path)


def open_engine(
    path: Path,
    settings: EngineSettings,
    steps: StepRecorder | None = None,
    cache_dir: Path | None = None,
) -> LLM:
    """Loads a model into our engine, whose steps go to `steps`; this is where torch is imported."""
    import torch

    from infra_lab.engine.llm import LLM

    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    event_log = None
    if steps is not None:
        event_log = EventLog(capacity=0)
        event_log.subscribe(steps)
    return LLM(path, event_log=event_log, cache_dir=cache_dir, **settings.engine_config())


def effective_dtype(settings: EngineSettings, config: ModelConfig) -> str:
    """The element type that "auto" comes to on this machine."""
    from infra_lab.engine.build import choose_device, choose_dtype

    return str(choose_dtype(settings.dtype, config, choose_device("auto"))).removeprefix("torch.")


def arithmetic_threads() -> int:
    """Threads that one matrix product uses in this process."""
    import torch

    return torch.get_num_threads()


def run_batch(
    engine: OfflineEngine, requests: Sequence[BenchRequest], clock: Clock = time.perf_counter
) -> BatchRun:
    """Hands all requests over at once, greedy, and times them to the last token."""
    prompts, params = _as_prompts(requests)
    start = clock()
    outputs = engine.generate(prompts, params, use_progress=False)
    elapsed = clock() - start
    return BatchRun(
        elapsed_s=elapsed,
        prompt_tokens=sum(request.prompt_len for request in requests),
        output_tokens=_checked_output_tokens(requests, outputs),
    )


def run_stream(
    engine: OfflineEngine, request: BenchRequest, clock: Clock = time.perf_counter
) -> StreamRun:
    """One request alone; TTFT is what the engine's own metrics say."""
    prompts, params = _as_prompts([request])
    start = clock()
    outputs = engine.generate(prompts, params, use_progress=False)
    latency = clock() - start
    output_tokens = _checked_output_tokens([request], outputs)
    ttft = outputs[0].metrics.ttft_s
    if ttft is None:
        raise MeasurementError("the engine reported no time to first token")
    return StreamRun(ttft_s=ttft, latency_s=latency, output_tokens=output_tokens)


def _as_prompts(requests: Sequence[BenchRequest]) -> tuple[list[list[int]], list[SamplingParams]]:
    params = [
        SamplingParams(temperature=0.0, ignore_eos=True, max_tokens=request.output_len)
        for request in requests
    ]
    return [list(request.prompt_token_ids) for request in requests], params


def _checked_output_tokens(
    requests: Sequence[BenchRequest], outputs: Sequence[RequestOutput]
) -> int:
    """All tokens produced, or MeasurementError when any request fell short."""
    if len(outputs) != len(requests):
        raise MeasurementError(f"{len(requests)} requests went in, {len(outputs)} came out")
    total = 0
    for request, output in zip(requests, outputs, strict=True):
        produced = sum(len(completion.token_ids) for completion in output.outputs)
        if produced != request.output_len:
            reason = output.error or "the engine gave no reason"
            raise MeasurementError(
                f"request {output.request_id} was to produce {request.output_len} tokens and "
                f"produced {produced}: {reason}"
            )
        total += produced
    return total
