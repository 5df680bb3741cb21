"""What a side-by-side benchmark comes to: medians per engine, and ratios pair by pair."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from statistics import median
from typing import Any

from infra_lab.bench.peers import OURS, Comparison, EngineRun
from infra_lab.bench.runs import batch_figures, stream_figures


def comparison_report(comparison: Comparison) -> dict[str, Any]:
    """One JSON-ready object; an engine without a run has `error` instead of figures."""
    ours = comparison.runs.get(OURS, [])
    engines = {}
    for name, runs in comparison.runs.items():
        entry: dict[str, Any] = engine_figures(runs) if runs else {}
        if runs and ours and name != OURS:
            entry["ours_over_peer"] = ratios(ours, runs)
        if name in comparison.failures:
            entry["error"] = comparison.failures[name]
        engines[name] = entry
    return {"engines": engines}


def engine_figures(runs: Sequence[EngineRun]) -> dict[str, Any]:
    """Medians over runs, and each run itself, so that a reader can take other averages."""
    return {
        **batch_figures([run.batch for run in runs]),
        "peak_rss_mb": median(run.peak_rss_mb for run in runs),
        "single_stream": stream_figures([stream for run in runs for stream in run.streams]),
        "versions": dict(runs[0].versions),
        "settings": dict(runs[0].settings),
        "runs": [asdict(run) for run in runs],
    }


def ratios(ours: Sequence[EngineRun], peer: Sequence[EngineRun]) -> dict[str, Any]:
    """Ours over the peer's, of runs of the same round; above 1 is in our favour for speeds.

    Rounds that only one of the two finished are left out.
    """
    pairs = list(zip(ours, peer, strict=False))
    output = [a.batch.output_tokens_per_s / b.batch.output_tokens_per_s for a, b in pairs]
    stream = [a.single_stream_tokens_per_s / b.single_stream_tokens_per_s for a, b in pairs]
    memory = [a.peak_rss_mb / b.peak_rss_mb for a, b in pairs]
    return {
        "output_tokens_per_s": median(output),
        "output_tokens_per_s_each": output,
        "single_stream_tokens_per_s": median(stream),
        "single_stream_tokens_per_s_each": stream,
        "peak_rss_mb": median(memory),
    }
