"""What is timed: whole batches and single streams, on a fake engine and a fake clock."""

from __future__ import annotations

from typing import Any

import pytest

from infra_lab.bench.engine import EngineSettings, MeasurementError, run_batch, run_stream
from infra_lab.bench.latency import measure_latency
from infra_lab.bench.own_runner import run_job, settings_of
from infra_lab.bench.steps import StepRecorder
from infra_lab.bench.throughput import measure_throughput, warm_up
from infra_lab.bench.workload import BenchRequest, Job
from infra_lab.engine.event_log import RequestArrived, StepEvent

REQUESTS = (BenchRequest((1, 2, 3), 4), BenchRequest((9,), 6))


def step(number: int, start_s: float, sampled: int = 1, **parts: Any) -> StepEvent:
    return StepEvent(
        number, start_s, 1.0, 8.0, 1.0, num_sampled_tokens=sampled, prepare_ms=1.0, **parts
    )


def test_a_batch_is_timed_whole_and_its_tokens_are_counted(engine: Any) -> None:
    run = run_batch(engine, REQUESTS, engine.clock)
    assert (run.elapsed_s, run.prompt_tokens, run.output_tokens) == (1.0, 4, 10)


def test_requests_are_greedy_ignore_eos_and_ask_for_their_own_length(engine: Any) -> None:
    run_batch(engine, REQUESTS, engine.clock)
    prompts, params = engine.calls[0]
    assert prompts == [[1, 2, 3], [9]]
    assert [item.max_tokens for item in params] == [4, 6]
    assert all(item.temperature == 0 and item.ignore_eos for item in params)


def test_an_engine_that_stops_early_is_not_measured_but_named(short_engine: Any) -> None:
    with pytest.raises(MeasurementError, match=r"was to produce 6 tokens and produced 4: out of"):
        run_batch(short_engine, REQUESTS, short_engine.clock)


def test_a_stream_takes_its_ttft_from_the_engines_metrics(engine: Any) -> None:
    run = run_stream(engine, REQUESTS[1], engine.clock)
    assert (run.ttft_s, run.latency_s, run.output_tokens) == (0.25, 1.0, 6)


def test_warming_up_runs_the_same_prompts_with_a_short_output(engine: Any) -> None:
    warm_up(engine, REQUESTS, output_len=2)
    prompts, params = engine.calls[0]
    assert prompts == [[1, 2, 3], [9]]
    assert [item.max_tokens for item in params] == [2, 2]


def test_throughput_is_measured_as_often_as_asked_and_told_each_time(engine: Any) -> None:
    said: list[str] = []
    runs = measure_throughput(engine, REQUESTS, 3, said.append, engine.clock)
    assert len(runs) == len(engine.calls) == 3
    assert said[2] == "run 3 of 3: 10.0 output tokens/s"


def test_latency_takes_one_request_at_a_time(engine: Any) -> None:
    measure_latency(engine, REQUESTS, StepRecorder(), clock=engine.clock)
    assert [len(prompts) for prompts, _ in engine.calls] == [1, 1]


def test_the_runner_of_our_engine_warms_up_then_measures_what_peers_measure(engine: Any) -> None:
    job = Job(REQUESTS, REQUESTS[:1], max_model_len=64, max_num_seqs=2)
    result = run_job(engine, job)
    assert [[p.max_tokens for p in params] for _, params in engine.calls] == [
        [4, 4],  # warm-up
        [4, 6],  # the batch
        [1],  # time to first token
        [4],  # the stream
    ]
    assert result["output_tokens"] == 10
    assert result["single_stream"][0]["output_tokens"] == 4


def test_a_jobs_settings_reach_our_engine() -> None:
    job = Job(REQUESTS, REQUESTS, 64, 2, threads=3, dtype="bfloat16", kv_cache_bytes=4096)
    assert settings_of(job).engine_config() == {
        "dtype": "bfloat16",
        "max_model_len": 64,
        "max_num_seqs": 2,
        "kv_cache_bytes": 4096,
        "pretouch_kv_cache": True,
        "enable_prefix_caching": False,
    }


def test_settings_left_open_stay_the_engines_own() -> None:
    assert set(EngineSettings().engine_config()) == {
        "dtype",
        "enable_prefix_caching",
        "pretouch_kv_cache",
    }


def test_gaps_between_tokens_are_gaps_between_the_ends_of_steps() -> None:
    steps = StepRecorder()
    prompt_chunk = step(0, 0.0, sampled=0)
    for event in (prompt_chunk, step(1, 1.0), step(2, 1.5), step(3, 2.5)):
        steps(event)
    assert steps.inter_token_s(3) == pytest.approx((0.5, 1.0))


@pytest.mark.parametrize("sampled", [(1, 1), (2, 1)])
def test_steps_that_are_not_one_token_each_give_no_gaps(sampled: tuple[int, int]) -> None:
    steps = StepRecorder([step(n, float(n), sampled=s) for n, s in enumerate(sampled)])
    assert steps.inter_token_s(3) == ()


def test_the_summary_adds_up_the_parts_that_every_step_reports() -> None:
    steps = StepRecorder()
    steps(RequestArrived(0.0, "a", 3))
    steps(step(0, 0.0, model_ms=6.0))
    steps(step(1, 1.0))
    summary = steps.summary()
    assert summary is not None
    assert (summary["steps"], summary["total_ms"], summary["prepare_ms"]) == (2, 20.0, 2.0)
    assert "model_ms" not in summary


def test_an_engine_without_steps_has_no_summary() -> None:
    assert StepRecorder().summary() is None
