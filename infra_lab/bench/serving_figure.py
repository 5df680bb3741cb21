"""Serving runs as a figure: how latencies are distributed, the load over time, and what more
throughput costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra_lab.bench.serving import ServingRun
from infra_lab.bench.serving_plan import rate_name
from infra_lab.bench.serving_report import in_flight
from infra_lab.figures import COLOURS, direct_labels, drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

NUM_BINS = 60


def draw_serving(
    path: Path, runs: Sequence[ServingRun], figures: Sequence[Mapping[str, Any]]
) -> None:
    """Writes the SVG: TTFT and ITL as shares of requests and gaps, requests under way over time,
    and throughput against latency (one run: its output tokens a second over time instead).

    `figures`: those of each run, in the same order. Runs in which nothing completed are left out;
    in one at least something must have.
    """
    shown = [
        (run, one) for run, one in zip(runs, figures, strict=True) if one["ttft_ms"] is not None
    ]
    names = [rate_name(one["rate_per_s"]) for _, one in shown]
    with drawing(path, rows=2, columns=2, width=10.0, height=7.2) as (_, axes):
        ttfts = [[one.ttft_s for one in run.completed] for run, _ in shown]
        gaps = [[gap for one in run.completed for gap in one.inter_token_s] for run, _ in shown]
        _distribution(axes[0, 0], "TTFT", "requests", names, ttfts)
        _distribution(axes[0, 1], "ITL", "gaps", names, gaps)
        _load(axes[1, 0], names, [run for run, _ in shown])
        if len(shown) == 1:
            _speed(axes[1, 1], shown[0][0])
        else:
            _curve(axes[1, 1], [one for _, one in shown])
        if len(shown) > 1:
            axes[1, 0].legend(title="arrivals", fontsize=9)


def _distribution(
    axes: Axes, title: str, what: str, names: Sequence[str], series: Sequence[Sequence[float]]
) -> None:
    """The share of values at or below each."""
    axes.set(title=title, xlabel="ms", ylabel=f"share of {what}", xscale="log", ylim=(0, 1.02))
    for name, values_s in zip(names, series, strict=True):
        ordered = sorted(max(1e3 * value, 1e-2) for value in values_s)
        shares = [(index + 1) / len(ordered) for index in range(len(ordered))]
        if ordered:
            axes.step(ordered, shares, where="post", label=name)
    axes.axhline(0.99, color="0.5", linewidth=0.8, linestyle=":")
    axes.annotate("P99", (0.01, 0.985), xycoords=("axes fraction", "data"), fontsize=8, va="top")


def _load(axes: Axes, names: Sequence[str], runs: Sequence[ServingRun]) -> None:
    axes.set(title="Requests under way", xlabel="s")
    for name, run in zip(names, runs, strict=True):
        times_s, counts = zip(*in_flight(run), strict=True)
        axes.step(times_s, counts, where="post", label=name)
    axes.set_ylim(bottom=0)


def _speed(axes: Axes, run: ServingRun) -> None:
    """Output tokens of each request are spread over its pieces evenly."""
    width_s = run.duration_s / NUM_BINS
    tokens = [0.0] * NUM_BINS
    for one in run.completed:
        for time_s in one.piece_times_s:
            index = min(NUM_BINS - 1, int((time_s - run.started_s) / width_s))
            tokens[index] += one.output_tokens / len(one.piece_times_s)
    starts = [index * width_s for index in range(NUM_BINS)]
    axes.set(title="Output tokens a second", xlabel="s")
    axes.step(starts, [count / width_s for count in tokens], where="post", color=COLOURS[2])
    axes.set_ylim(bottom=0)


def _curve(axes: Axes, figures: Sequence[Mapping[str, Any]]) -> None:
    """One point a rate, in the order of throughput."""
    ordered = sorted(figures, key=lambda one: one["output_tokens_per_s"])
    speeds = [one["output_tokens_per_s"] for one in ordered]
    axes.set(title="Latency at a throughput: median, and P99 dashed")
    axes.set(xlabel="output tokens/s", ylabel="ms", yscale="log")
    for key, name, colour in (("ttft_ms", "TTFT", COLOURS[0]), ("tpot_ms", "TPOT", COLOURS[1])):
        measured = [
            (x, one[key]) for x, one in zip(speeds, ordered, strict=True) if one[key] is not None
        ]
        if not measured:
            continue  # answers of one token have no TPOT
        for statistic, style, label in (("median", "-", name), ("p99", "--", "_")):
            points = [(x, summary[statistic]) for x, summary in measured]
            axes.plot(*zip(*points, strict=True), style, color=colour, marker="o", markersize=3,
                      label=label)  # fmt: skip
    axes.set_xlim(0, 1.2 * speeds[-1])  # room for the labels at the lines' ends
    direct_labels(axes)
