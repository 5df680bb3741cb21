"""What one timed run yielded, and the figures that follow from it.

Answers "what do TTFT, TPOT, ITL and throughput mean, exactly?". The definitions are the
field's: TPOT is (latency - TTFT) / (output tokens - 1), so that it says nothing of the prompt.
Torch-free.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from infra_lab.engine.simulation import percentile

PERCENTILES = (50, 90, 99)


@dataclass(frozen=True, slots=True)
class BatchRun:
    """A batch of requests handed over at once, timed from first to last."""

    elapsed_s: float
    prompt_tokens: int
    output_tokens: int

    @property
    def output_tokens_per_s(self) -> float:
        return self.output_tokens / self.elapsed_s

    @property
    def total_tokens_per_s(self) -> float:
        return (self.prompt_tokens + self.output_tokens) / self.elapsed_s


@dataclass(frozen=True, slots=True)
class StreamRun:
    """One request on its own: time to its first token, to its last, and the gaps between."""

    ttft_s: float
    latency_s: float
    output_tokens: int
    inter_token_s: tuple[float, ...] = ()

    @property
    def tpot_s(self) -> float | None:
        return time_per_output_token_s(self.ttft_s, self.latency_s, self.output_tokens)

    @property
    def output_tokens_per_s(self) -> float:
        return self.output_tokens / self.latency_s


def time_per_output_token_s(ttft_s: float, latency_s: float, output_tokens: int) -> float | None:
    """Mean seconds a token after the first; None when there is only one."""
    if output_tokens < 2:
        return None
    return (latency_s - ttft_s) / (output_tokens - 1)


def batch_figures(runs: Sequence[BatchRun]) -> dict[str, Any]:
    """Medians over runs of one workload, under the keys that every report shares; the spread."""
    speeds = [run.output_tokens_per_s for run in runs]
    figures: dict[str, Any] = {
        "elapsed_s": median(run.elapsed_s for run in runs),
        "prompt_tokens": runs[0].prompt_tokens,
        "output_tokens": runs[0].output_tokens,
        "output_tokens_per_s": median(speeds),
        "total_tokens_per_s": median(run.total_tokens_per_s for run in runs),
        "repeats": len(runs),
    }
    if len(runs) > 1:
        figures["output_tokens_per_s_min"] = min(speeds)
        figures["output_tokens_per_s_max"] = max(speeds)
    return figures


def stream_figures(runs: Sequence[StreamRun]) -> dict[str, Any]:
    """Medians over single-stream runs, in milliseconds; ITL percentiles over all gaps."""
    tpots = [run.tpot_s for run in runs if run.tpot_s is not None]
    gaps = [gap for run in runs for gap in run.inter_token_s]
    return {
        "output_tokens_per_s": median(run.output_tokens_per_s for run in runs),
        "ttft_ms": median(run.ttft_s for run in runs) * 1000,
        "tpot_ms": median(tpots) * 1000 if tpots else None,
        "latency_ms": median(run.latency_s for run in runs) * 1000,
        "itl_ms": {f"p{p}": percentile(gaps, p) * 1000 for p in PERCENTILES} if gaps else None,
        "output_tokens": runs[0].output_tokens,
        "repeats": len(runs),
    }
