"""The figures: definitions checked by hand, and the laws of percentiles."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.bench.runs import BatchRun, StreamRun, batch_figures, stream_figures
from infra_lab.engine.simulation import percentile

times = st.floats(0, 1e6, allow_nan=False)


def test_throughput_counts_output_alone_and_prompt_with_output() -> None:
    run = BatchRun(elapsed_s=2.0, prompt_tokens=100, output_tokens=50)
    assert run.output_tokens_per_s == 25.0
    assert run.total_tokens_per_s == 75.0


def test_tpot_leaves_the_first_token_out() -> None:
    run = StreamRun(ttft_s=0.5, latency_s=2.5, output_tokens=11)
    assert run.tpot_s == pytest.approx(0.2)


def test_a_single_token_has_no_tpot() -> None:
    run = StreamRun(ttft_s=0.5, latency_s=0.5, output_tokens=1)
    assert run.tpot_s is None
    assert stream_figures([run])["tpot_ms"] is None


@given(st.lists(times, min_size=1))
def test_percentiles_run_from_the_least_to_the_greatest_and_never_fall(values: list[float]) -> None:
    assert percentile(values, 0) == min(values)
    assert percentile(values, 100) == max(values)
    assert percentile(values, 50) <= percentile(values, 90) <= percentile(values, 99)


def test_a_percentile_lies_linearly_between_neighbours() -> None:
    assert percentile([10.0, 20.0], 25) == 12.5
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0


def test_batch_figures_are_medians_with_the_spread_beside_them() -> None:
    runs = [BatchRun(seconds, 0, 100) for seconds in (4.0, 1.0, 2.0)]
    figures = batch_figures(runs)
    assert figures["elapsed_s"] == 2.0
    assert figures["output_tokens_per_s"] == 50.0
    assert (figures["output_tokens_per_s_min"], figures["output_tokens_per_s_max"]) == (25, 100)


def test_one_run_has_no_spread() -> None:
    assert "output_tokens_per_s_min" not in batch_figures([BatchRun(1.0, 1, 1)])


def test_stream_figures_are_medians_in_milliseconds() -> None:
    runs = [
        StreamRun(0.1, 1.1, 11, (0.1,) * 10),
        StreamRun(0.2, 1.2, 11, (0.1,) * 10),
        StreamRun(0.9, 9.9, 11, (0.9,) * 10),
    ]
    figures = stream_figures(runs)
    assert figures["ttft_ms"] == pytest.approx(200)
    assert figures["tpot_ms"] == pytest.approx(100)
    assert figures["itl_ms"]["p50"] == pytest.approx(100)
    assert figures["itl_ms"]["p99"] == pytest.approx(900)
    assert figures["repeats"] == 3


def test_without_gaps_there_are_no_itl_percentiles() -> None:
    assert stream_figures([StreamRun(0.1, 1.0, 3)])["itl_ms"] is None
