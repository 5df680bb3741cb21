"""The figures of a serving benchmark: latencies, throughput, and goodput under an SLO.

Answers "which number would you put on the dashboard?": goodput, the requests a second that were
served as promised; throughput alone can be had by letting everybody wait. Torch-free.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean
from typing import Any

from infra_lab.bench.arrivals import Arrivals
from infra_lab.bench.openai_endpoint import Exchange, error_counts
from infra_lab.bench.runs import PERCENTILES
from infra_lab.bench.serving import ServingRun
from infra_lab.engine.simulation import percentile
from infra_lab.errors import UsageError

LATE_MS, LATE_SHARE = 20.0, 0.1  # of P99, and of the median E2E latency: both are passed by a
# client that shapes the load and not only sends it


@dataclass(frozen=True, slots=True)
class Slo:
    """What a request was promised, in milliseconds; None promises nothing."""

    ttft: float | None = None
    tpot: float | None = None
    e2e: float | None = None

    def is_met(self, exchange: Exchange) -> bool:
        """TPOT does not count for an answer of one token."""
        found_s = {"ttft": exchange.ttft_s, "tpot": exchange.tpot_s, "e2e": exchange.latency_s}
        limits = self.limits
        return all(
            found_s[name] is None or 1e3 * found_s[name] <= limit  # type: ignore[operator]
            for name, limit in limits.items()
        )

    @property
    def limits(self) -> dict[str, float]:
        given = {"ttft": self.ttft, "tpot": self.tpot, "e2e": self.e2e}
        return {name: limit for name, limit in given.items() if limit is not None}


def parse_slo(text: str) -> Slo:
    """ "ttft=500,tpot=50" -> Slo(500, 50); UsageError for anything else."""
    limits: dict[str, float] = {}
    for part in text.split(","):
        name, _, number = (piece.strip() for piece in part.partition("="))
        try:
            limit = float(number)
        except ValueError:
            limit = math.nan
        if name not in ("ttft", "tpot", "e2e") or name in limits or not 0 < limit < math.inf:
            raise UsageError(
                f"--slo takes milliseconds of ttft, tpot and e2e, each once, such as "
                f"ttft=500,tpot=50, not {text!r}"
            )
        limits[name] = limit
    return Slo(**limits)


def run_figures(run: ServingRun, arrivals: Arrivals, slo: Slo | None) -> dict[str, Any]:
    """One run as a JSON-ready object; milliseconds where a name ends in _ms.

    Latencies are those of completed requests, throughput counts their tokens; what failed is
    counted by reason.
    """
    done, seconds = run.completed, run.duration_s
    prompt_tokens = sum(one.prompt_tokens for one in done)
    output_tokens = sum(one.output_tokens for one in done)
    num_pieces = sum(len(one.piece_times_s) for one in done)
    tpots = [one.tpot_s for one in done if one.tpot_s is not None]
    gaps = [gap for one in done for gap in one.inter_token_s]
    figures: dict[str, Any] = {
        "rate_per_s": None if math.isinf(arrivals.rate_per_s) else arrivals.rate_per_s,
        "requests": len(run.exchanges),
        "completed": len(done),
        "failed": error_counts(run.exchanges),
        "duration_s": seconds,
        "prompt_tokens": prompt_tokens,
        "output_tokens": output_tokens,
        "requests_per_s": len(done) / seconds,
        "output_tokens_per_s": output_tokens / seconds,
        "total_tokens_per_s": (prompt_tokens + output_tokens) / seconds,
        "tokens_per_piece": output_tokens / num_pieces if num_pieces else None,
        "mean_concurrency": sum(one.latency_s for one in run.exchanges) / seconds,
        "peak_concurrency": max(count for _, count in in_flight(run)),
        "ttft_ms": summary_ms([one.ttft_s for one in done]),
        "tpot_ms": summary_ms(tpots),
        "itl_ms": summary_ms(gaps),
        "e2e_ms": summary_ms([one.latency_s for one in done]),
        "client_lateness_ms": summary_ms([one.lateness_s for one in run.exchanges]),
    }
    if slo is not None:
        num_good = sum(slo.is_met(one) for one in done)
        figures["goodput_per_s"] = num_good / seconds
        figures["slo_attainment"] = num_good / len(run.exchanges)
    return figures


def is_late(figures: Mapping[str, Any]) -> bool:
    """Whether the client could not keep its own schedule, so that the load was another one."""
    late_ms, latencies = figures["client_lateness_ms"]["p99"], figures["e2e_ms"]
    if latencies is None or late_ms <= LATE_MS:
        return False
    return bool(late_ms > LATE_SHARE * latencies["median"])


def in_flight(run: ServingRun) -> list[tuple[float, int]]:
    """(seconds since the start, requests under way from then on), at every change."""
    changes = [(one.sent_s, 1) for one in run.exchanges]
    changes += [(one.ended_s, -1) for one in run.exchanges]
    steps, count = [], 0
    for time_s, change in sorted(changes):  # at one moment, ends come before beginnings
        count += change
        steps.append((time_s - run.started_s, count))
    return steps


def summary_ms(values_s: Sequence[float]) -> dict[str, float] | None:
    """Mean, median, P90, P99 and the largest, in milliseconds; None of nothing."""
    if not values_s:
        return None
    found = {"mean": 1e3 * mean(values_s)}
    for percent in PERCENTILES:
        found["median" if percent == 50 else f"p{percent}"] = 1e3 * percentile(values_s, percent)
    return found | {"max": 1e3 * max(values_s)}
