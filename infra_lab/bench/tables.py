"""Benchmark reports as tables for a terminal; every cell is read from the report."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from typing import Any

from rich.table import Table

from infra_lab.bench.peers import OURS

NOT_MEASURED = "-"


def add_columns(table: Table, names: Iterable[str], to_the_left: Container[str] = ()) -> None:
    """Columns of numbers, set to the right, but for those of words."""
    for name in names:
        table.add_column(name, justify="left" if name in to_the_left else "right")


def throughput_table(report: Mapping[str, Any]) -> Table:
    table = _figures_table(f"Offline throughput: {report['model']}")
    spread = ""
    if report["repeats"] > 1:
        low, high = report["output_tokens_per_s_min"], report["output_tokens_per_s_max"]
        spread = f"  (median of {report['repeats']}; {low:.1f} to {high:.1f})"
    table.add_row("requests", str(report["requests"]))
    table.add_row("prompt, output tokens", _prompt_and_output(report))
    table.add_row("output tokens/s", f"{report['output_tokens_per_s']:.1f}{spread}")
    table.add_row("total tokens/s", f"{report['total_tokens_per_s']:.1f}")
    table.add_row("elapsed", f"{report['elapsed_s']:.2f} s")
    _add_common_rows(table, report)
    if report["step_time"]:
        table.add_section()
        _add_step_rows(table, report["step_time"])
    return table


def latency_table(report: Mapping[str, Any]) -> Table:
    table = _figures_table(f"Single-stream latency: {report['model']}")
    table.add_row("prompt, output tokens", _prompt_and_output(report))
    table.add_row("requests", str(report["repeats"]))
    table.add_row("output tokens/s", f"{report['output_tokens_per_s']:.1f}")
    table.add_row("TTFT", _milliseconds(report["ttft_ms"]))
    table.add_row("TPOT", _milliseconds(report["tpot_ms"]))
    for name, value in (report["itl_ms"] or {}).items():
        table.add_row(f"ITL {name}", _milliseconds(value))
    table.add_row("latency", _milliseconds(report["latency_ms"]))
    _add_common_rows(table, report)
    return table


def policies_table(report: Mapping[str, Any]) -> Table:
    """A row a policy: latency and TTFT on the trace, and throughput with all requests at once."""
    trace = report["trace"]
    table = Table(
        title=f"{trace['num_requests']} requests, {trace['rate_per_s']:g} a second, "
        f"seed {trace['seed']}; the clock is modelled"
    )
    names = ("latency mean", "P99", "max", "TTFT mean", "P99", "urgent TTFT mean", "P99")
    add_columns(table, ("policy", *names, "preemptions", "all at once, tokens/s"), ("policy",))
    for policy, figures in report["policies"].items():
        everyone, urgent = figures["all"], figures["urgent"] or {}
        seconds = [
            everyone["latency_mean_s"],
            everyone["latency_p99_s"],
            everyone["latency_max_s"],
            everyone["ttft_mean_s"],
            everyone["ttft_p99_s"],
            urgent.get("ttft_mean_s"),
            urgent.get("ttft_p99_s"),
        ]
        table.add_row(
            policy,
            *(NOT_MEASURED if value is None else f"{value:.2f} s" for value in seconds),
            str(figures["preemptions"]),
            f"{figures['saturated_output_tokens_per_s']:.1f}",
        )
    return table


def resume_table(report: Mapping[str, Any]) -> Table:
    """A row a length: what a preempted request waits for, both ways."""
    table = Table(title=f"Resuming a preempted request: {report['model']}, {report['dtype']}")
    names = ("tokens", "recompute", "swap", "of it in", "out before", "recompute / swap")
    add_columns(table, names)
    for row in report["resume"]:
        times = (row[f"{name}_ms"] for name in ("recompute", "swap", "swap_in", "swap_out"))
        table.add_row(str(row["tokens"]), *map(_milliseconds, times), f"{row['ratio']:.1f}x")
    return table


def speculation_table(report: Mapping[str, Any]) -> Table:
    """A row for each work, batch and kind of draft."""
    table = Table(
        title=f"Speculation, at most {report['num_speculative_tokens']} tokens drafted: "
        f"{report['model']}, {report['dtype']}, greedy, ids equal"
    )
    names = ("work", "at once", "draft", "tokens/step", "accepted", "by place", "speed-up")
    add_columns(table, names, ("work", "draft"))
    previous = None
    for run in report["runs"]:
        if previous not in (None, (run["work"], run["batch"])):
            table.add_section()
        previous = (run["work"], run["batch"])
        rate = run["acceptance_rate"]
        table.add_row(
            run["work"],
            str(run["batch"]),
            run["draft"],
            f"{run['tokens_per_step']:.2f}",
            NOT_MEASURED if rate is None else f"{100 * rate:.0f} %",
            " ".join(f"{100 * share:.0f}" for share in run["acceptance_rate_per_pos"]) or "-",
            f"{run['speedup']:.2f}x",
        )
    return table


def beams_table(report: Mapping[str, Any]) -> Table:
    """A row a width: KV blocks at the peak, shared and not."""
    table = Table(
        title=f"KV blocks of {report['block_size']} tokens at the peak: {report['model']}, "
        f"{report['output_len']} output tokens"
    )
    names = ("beam width", "prompts", "tokens", "copy on write", "without sharing", "saved")
    add_columns(table, names)
    for row in report["beams"]:
        table.add_row(
            str(row["beam_width"]),
            str(row["prompts"]),
            f"{row['prompt_tokens']:,}",
            f"{row['peak_kv_blocks']:,}",
            f"{row['peak_kv_blocks_unshared']:,}",
            f"{100 * row['saved']:.1f} %",
        )
    return table


def comparison_tables(report: Mapping[str, Any]) -> list[Table]:
    """Each engine's medians, then ours over each peer."""
    figures = Table(title="Side by side (medians)")
    speeds = ("output tokens/s", "total tokens/s", "single stream tokens/s", "TTFT", "TPOT")
    names = ("engine", *speeds, "peak memory", "runs", "versions")
    add_columns(figures, names, ("engine", "versions"))
    ratios = Table(title=f"{OURS} over peer (median of the rounds; above 1x we are faster)")
    add_columns(ratios, ("peer", "output tokens/s", "single stream", "peak memory"), ("peer",))
    for name, engine in report["engines"].items():
        figures.add_row(name, *_engine_cells(engine))
        if ratio := engine.get("ours_over_peer"):
            ratios.add_row(
                name,
                f"{ratio['output_tokens_per_s']:.2f}x",
                f"{ratio['single_stream_tokens_per_s']:.2f}x",
                f"{ratio['peak_rss_mb']:.2f}x",
            )
    return [figures, ratios] if ratios.row_count else [figures]


def perplexity_table(report: Mapping[str, Any]) -> Table:
    table = Table(title=f"Perplexity of {report['model']} on {report['text']}")
    names = ("KV cache", "tokens kept", "bytes a token", "a window", "perplexity", "difference")
    add_columns(table, names, ("KV cache",))
    for cache in report["caches"]:
        table.add_row(
            cache["kv_cache_dtype"],
            str(cache["kv_budget"] or "all"),
            f"{cache['kv_bytes_per_token']:,.0f}",
            f"{cache['kv_bytes'] / 1e6:.2f} MB",
            f"{cache['perplexity']:.4f}",
            f"{cache['difference']:+.4f}",
            f"{cache['mean_change']:.4f}",
        )
    table.caption = (
        f"windows of {report['window']} tokens; per token: mean change of its log-probability, nats"
    )
    return table


def _engine_cells(engine: Mapping[str, Any]) -> list[str]:
    if "output_tokens_per_s" not in engine:
        return ["failed", *[NOT_MEASURED] * 7]
    stream = engine["single_stream"]
    return [
        f"{engine['output_tokens_per_s']:.1f}",
        f"{engine['total_tokens_per_s']:.1f}",
        f"{stream['output_tokens_per_s']:.1f}",
        _milliseconds(stream["ttft_ms"]),
        _milliseconds(stream["tpot_ms"]),
        f"{engine['peak_rss_mb']:.0f} MiB",
        str(engine["repeats"]),
        ", ".join(f"{name} {version}" for name, version in engine["versions"].items()),
    ]


def _add_common_rows(table: Table, report: Mapping[str, Any]) -> None:
    machine = report["machine"]
    table.add_row("peak memory", f"{report['peak_rss_mb']:.0f} MiB")
    table.add_row("dtype, threads", f"{report['dtype']}, {report['threads']}")
    table.add_row("machine", f"{machine['cpu']}, {machine['cores']} cores")
    table.add_row("torch", str(machine["torch"]))


def _add_step_rows(table: Table, step_time: Mapping[str, float]) -> None:
    steps, total = step_time["steps"], step_time["total_ms"]
    table.add_row("steps", f"{steps}, {total / steps:.1f} ms each")
    if "draft_tokens" in step_time:
        drafted, accepted = step_time["draft_tokens"], step_time["accepted_tokens"]
        share = 100 * accepted / drafted
        table.add_row("draft tokens accepted", f"{accepted} of {drafted}, {share:.1f} %")
    # `execute` is the sum of what the worker reports of itself, where it does.
    hidden = {"total_ms", "execute_ms"} if "model_ms" in step_time else {"total_ms"}
    for key, value in step_time.items():
        if key.endswith("_ms") and key not in hidden:
            share = 100 * value / total if total else 0.0
            table.add_row(f"  {key.removesuffix('_ms')}", f"{value / steps:.2f} ms, {share:.1f} %")


def _figures_table(title: str) -> Table:
    table = Table(title=title, show_header=False)
    table.add_column("figure")
    table.add_column("value")
    return table


def _prompt_and_output(report: Mapping[str, Any]) -> str:
    return f"{report['prompt_tokens']}, {report['output_tokens']}"


def _milliseconds(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value:.1f} ms"
