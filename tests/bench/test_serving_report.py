"""The figures of serving runs, checked by hand; the table and the figure that show them."""

from __future__ import annotations

import json
import math
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.bench.arrivals import Arrivals
from infra_lab.bench.openai_endpoint import Exchange
from infra_lab.bench.serving import ServingRun
from infra_lab.bench.serving_figure import draw_serving
from infra_lab.bench.serving_plan import ServingPlan
from infra_lab.bench.serving_report import Slo, in_flight, is_late, parse_slo, run_figures
from infra_lab.bench.serving_tables import remarks, serving_table
from infra_lab.errors import UsageError


def served(sent_s: float, *piece_times_s: float, tokens: int, late_s: float = 0.0) -> Exchange:
    times = [sent_s + time_s for time_s in piece_times_s]
    return Exchange(sent_s - late_s, sent_s, times, times[-1], 10, tokens, "length")


def failed(sent_s: float, ended_s: float, error: str = "HTTP 429: busy") -> Exchange:
    return Exchange(sent_s, sent_s, [], ended_s, error=error)


# Two that were served from 100.0 to 104.0 s, and one that was refused.
RUN = ServingRun(
    [
        served(100.0, 0.5, 1.0, 2.5, tokens=5),
        served(101.0, 1.0, 2.0, 3.0, tokens=3),
        failed(102.0, 102.5),
    ]
)


def test_figures_are_those_of_the_definitions() -> None:
    figures = run_figures(RUN, Arrivals(1.0), None)
    assert figures["duration_s"] == 4.0
    assert (figures["requests"], figures["completed"]) == (3, 2)
    assert figures["failed"] == {"HTTP 429: busy": 1}
    assert figures["requests_per_s"] == 0.5
    assert (figures["prompt_tokens"], figures["output_tokens"]) == (20, 8)
    assert figures["output_tokens_per_s"] == 2.0
    assert figures["total_tokens_per_s"] == 7.0
    assert figures["tokens_per_piece"] == pytest.approx(8 / 6)
    assert figures["ttft_ms"]["mean"] == pytest.approx(750)
    assert figures["tpot_ms"]["mean"] == pytest.approx((500 + 1000) / 2)
    assert figures["itl_ms"]["median"] == pytest.approx(1000)  # of 0.5, 1.5, 1.0, 1.0 s
    assert figures["itl_ms"]["max"] == pytest.approx(1500)
    assert figures["e2e_ms"]["median"] == pytest.approx(2750)
    assert figures["peak_concurrency"] == 3
    assert figures["mean_concurrency"] == pytest.approx((2.5 + 3.0 + 0.5) / 4)
    assert "goodput_per_s" not in figures


@pytest.mark.parametrize(
    ("slo", "good"),
    [
        (Slo(ttft=500), 1),
        (Slo(ttft=499), 0),
        (Slo(ttft=1000), 2),
        (Slo(tpot=500), 1),
        (Slo(ttft=1000, tpot=1000, e2e=3000), 2),
        (Slo(ttft=1000, tpot=1000, e2e=2900), 1),
    ],
)
def test_goodput_counts_those_that_kept_every_promise_and_the_failed_kept_none(
    slo: Slo, good: int
) -> None:
    figures = run_figures(RUN, Arrivals(1.0), slo)
    assert figures["goodput_per_s"] == good / 4
    assert figures["slo_attainment"] == pytest.approx(good / 3)


def test_an_answer_of_one_token_keeps_any_promise_about_its_pace() -> None:
    assert Slo(tpot=0.001).is_met(served(0.0, 5.0, tokens=1))


def test_limits_are_read_from_one_option() -> None:
    assert parse_slo("ttft=500,tpot=50") == Slo(500, 50)
    assert parse_slo(" e2e = 1e3 ").limits == {"e2e": 1000}


@pytest.mark.parametrize(
    "text", ["", "ttft", "ttft=", "ttft=x", "itl=5", "ttft=0", "ttft=-1", "ttft=inf", "tpot=nan",
             "ttft=1,ttft=2"]
)  # fmt: skip
def test_limits_without_sense_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--slo takes milliseconds"):
        parse_slo(text)


spans = st.lists(st.tuples(st.floats(0, 100), st.floats(0.001, 50)), min_size=1, max_size=20)


@given(spans)
def test_requests_under_way_begin_and_end_at_none_and_their_area_is_their_time(
    spans: list[tuple[float, float]],
) -> None:
    run = ServingRun([served(start, length, tokens=1) for start, length in spans])
    steps = in_flight(run)
    assert steps[-1][1] == 0
    assert all(count >= 0 for _, count in steps)
    area = sum(count * (after - before) for (before, count), (after, _) in pairwise(steps))
    assert area == pytest.approx(sum(one.latency_s for one in run.exchanges))
    # Little's law: mean in flight = arrival rate x mean latency.
    figures = run_figures(run, Arrivals(), None)
    assert figures["mean_concurrency"] == pytest.approx(
        figures["requests_per_s"] * figures["e2e_ms"]["mean"] / 1e3
    )


def test_a_run_in_which_all_failed_has_figures_and_no_latencies() -> None:
    figures = run_figures(ServingRun([failed(1.0, 2.0)] * 2), Arrivals(), Slo(ttft=1))
    assert figures["completed"] == figures["goodput_per_s"] == 0
    assert figures["ttft_ms"] is figures["itl_ms"] is None
    assert figures["failed"] == {"HTTP 429: busy": 2}
    assert not is_late(figures)


@pytest.mark.parametrize(
    ("late_s", "latency_s", "expected"),
    [(0.019, 0.1, False), (0.025, 0.1, True), (0.025, 1.0, False), (0.2, 1.0, True)],
)
def test_a_client_is_late_when_it_shows_against_what_is_measured(
    late_s: float, latency_s: float, expected: bool
) -> None:
    run = ServingRun([served(10.0, latency_s, tokens=1, late_s=late_s)])
    figures = run_figures(run, Arrivals(), None)
    assert figures["client_lateness_ms"]["p99"] == pytest.approx(1e3 * late_s)
    assert is_late(figures) is expected


def report_of(*runs: ServingRun, slo: Slo | None = None) -> dict[str, object]:
    plan = ServingPlan(
        tuple(Arrivals(rate) for rate in (2.0, math.inf)[: len(runs)]), len(RUN.exchanges), slo=slo
    )
    return plan.report("http://box/v1", "m", runs)


def test_a_report_is_json_and_says_what_was_sent() -> None:
    report = json.loads(json.dumps(report_of(RUN, RUN), allow_nan=False))
    assert [run["rate_per_s"] for run in report["runs"]] == [2.0, None]
    assert report["prompt_len"] == report["output_len"] == "sharegpt"
    assert report["parameters"] == {"temperature": 0.0, "ignore_eos": True}
    assert report["slo_ms"] is None
    assert report["client"]["cores"] >= 1


def test_the_table_has_a_column_a_rate_and_its_remarks_name_failures() -> None:
    late = ServingRun([served(10.0, 1.0, tokens=2, late_s=5.0)])
    report = report_of(RUN, late, slo=Slo(ttft=600))
    table = serving_table(report)
    assert [column.header for column in table.columns] == ["arrivals", "2/s", "all at once"]
    cells = [list(column.cells) for column in table.columns]
    row = cells[0].index("goodput, requests/s")
    assert [column[row] for column in cells[1:]] == ["0.25 (33%)", "0.00 (0%)"]
    assert remarks(report) == [
        "2/s: 1 failed: HTTP 429: busy",
        "all at once: the client sent its requests late, by 5000 ms at P99: it lacks a core of "
        "its own, and the load was not the one asked for",
    ]


@pytest.mark.parametrize("num_runs", [1, 2])
def test_the_figure_draws_what_was_measured_and_is_the_same_again(
    tmp_path: Path, num_runs: int
) -> None:
    runs = [RUN] * num_runs
    figures = report_of(*runs)["runs"]
    for name in ("one", "two")[:num_runs]:  # drawing takes a second
        draw_serving(tmp_path / f"{name}.svg", runs, figures)  # type: ignore[arg-type]
    drawn = (tmp_path / "one.svg").read_text()
    assert num_runs == 1 or drawn == (tmp_path / "two.svg").read_text()
    assert ("Latency at a throughput" in drawn) == (num_runs == 2)
    assert ("Output tokens a second" in drawn) == (num_runs == 1)
    assert "Requests under way" in drawn


def test_answers_of_one_token_are_drawn_without_the_paces_that_they_have_not(
    tmp_path: Path,
) -> None:
    runs = [ServingRun([served(1.0, length, tokens=1)]) for length in (0.5, 1.0)]
    draw_serving(tmp_path / "one.svg", runs, report_of(*runs)["runs"])  # type: ignore[arg-type]
    drawn = (tmp_path / "one.svg").read_text()
    assert "Latency at a throughput" in drawn
    assert ">TPOT<" not in drawn


def test_a_run_without_answers_is_left_out_of_the_figure(tmp_path: Path) -> None:
    runs = [RUN, ServingRun([failed(1.0, 2.0)])]
    draw_serving(tmp_path / "one.svg", runs, report_of(*runs)["runs"])  # type: ignore[arg-type]
    assert "Output tokens a second" in (tmp_path / "one.svg").read_text()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"api": "assistants"}, "--api must be"),
        ({"timeout_s": 0.0}, "--timeout must be"),
        ({"prompt_len": "long"}, "--prompt-len must be"),
        ({"output_len": "0"}, "at least 1"),
    ],
)
def test_a_plan_without_sense_is_refused(changes: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        ServingPlan(**changes)  # type: ignore[arg-type]
