"""Reports of serving benchmarks as tables for a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from rich.table import Table

from infra_lab.bench.serving_plan import rate_name
from infra_lab.bench.serving_report import is_late
from infra_lab.bench.tables import NOT_MEASURED, add_columns

LATENCIES = {"ttft_ms": "TTFT", "tpot_ms": "TPOT", "itl_ms": "ITL", "e2e_ms": "E2E"}
STATISTICS = ("mean", "median", "p90", "p99")


def serving_table(report: Mapping[str, Any]) -> Table:
    """A column a rate; a row a figure."""
    runs: Sequence[Mapping[str, Any]] = report["runs"]
    table = Table(title=f"Serving: {report['model']}")
    rates = (rate_name(run["rate_per_s"]) for run in runs)
    add_columns(table, ("arrivals", *rates), ("arrivals",))

    def add(name: str, cells: Sequence[str]) -> None:
        table.add_row(name, *cells)

    add("requests completed", [f"{run['completed']} of {run['requests']}" for run in runs])
    add("requests/s", [f"{run['requests_per_s']:.2f}" for run in runs])
    add("output tokens/s", [f"{run['output_tokens_per_s']:.1f}" for run in runs])
    add("total tokens/s", [f"{run['total_tokens_per_s']:.1f}" for run in runs])
    if report["slo_ms"] is not None:
        goodputs = [f"{run['goodput_per_s']:.2f} ({run['slo_attainment']:.0%})" for run in runs]
        add("goodput, requests/s", goodputs)
    add(
        "in flight, mean and peak",
        [f"{run['mean_concurrency']:.1f}, {run['peak_concurrency']}" for run in runs],
    )
    for key, name in LATENCIES.items():
        table.add_section()
        for statistic in STATISTICS:
            add(f"{name} {_shown(statistic)}", [_cell(run[key], statistic) for run in runs])
    table.add_section()
    add("client late, P99", [_cell(run["client_lateness_ms"], "p99") for run in runs])
    return table


def comparison_table(report: Mapping[str, Any]) -> Table:
    """A row a server: medians over rounds, and ours over the other, round by round."""
    table = Table(
        title=f"{report['model']} in {report['dtype']}, {report['num_requests']} requests, "
        f"{report['max_concurrency']} under way"
    )
    names = ("server", "output tokens/s", "TTFT median", "ITL median", "ITL P99", "TPOT P99")
    add_columns(table, names, ("server",))
    for server, figures in report["servers"].items():
        keys = [key for key in figures if key not in ("rounds", "ours_over_it")]
        cells = [f"{figures[key]:.1f}" + (" ms" if "_ms" in key else "") for key in keys]
        table.add_row(server, *cells)
        if ratios := figures.get("ours_over_it"):
            table.add_row(f"ours over {server}", *(f"{ratios[key]:.2f}" for key in keys))
    return table


def remarks(report: Mapping[str, Any]) -> list[str]:
    """What a reader of the table must know: failures by reason, and a client that lagged."""
    found = []
    for run in report["runs"]:
        name = rate_name(run["rate_per_s"])
        found += [f"{name}: {count} failed: {reason}" for reason, count in run["failed"].items()]
        late_ms = run["client_lateness_ms"]["p99"]
        if is_late(run):
            found.append(
                f"{name}: the client sent its requests late, by {late_ms:.0f} ms at P99: it lacks "
                f"a core of its own, and the load was not the one asked for"
            )
    return found


def _shown(statistic: str) -> str:
    return statistic.upper() if statistic.startswith("p") else statistic


def _cell(summary: Mapping[str, float] | None, statistic: str) -> str:
    return NOT_MEASURED if summary is None else f"{summary[statistic]:.1f} ms"
