"""Workloads: the same requests everywhere, within their ranges, and whole after a round trip."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.bench.workload import BenchRequest, Job, Workload, load_job, parse_range, save_job
from infra_lab.errors import UsageError
from infra_lab.models.config import ModelConfig

CONFIG = ModelConfig(
    architecture="llama",
    vocab_size=300,
    hidden_size=8,
    intermediate_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=4,
    max_position_embeddings=100,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
)


@st.composite
def workloads(draw: st.DrawFn) -> Workload:
    prompt_min = draw(st.integers(1, 20))
    output_min = draw(st.integers(1, 20))
    return Workload(
        num_requests=draw(st.integers(1, 8)),
        prompt_len_min=prompt_min,
        prompt_len_max=prompt_min + draw(st.integers(0, 20)),
        output_len_min=output_min,
        output_len_max=output_min + draw(st.integers(0, 20)),
        vocab_size=draw(st.integers(1, 1000)),
        seed=draw(st.integers(0, 2**31)),
    )


@given(workloads())
def test_every_request_keeps_to_the_ranges(workload: Workload) -> None:
    requests = workload.requests()
    assert len(requests) == workload.num_requests
    for request in requests:
        assert workload.prompt_len_min <= request.prompt_len <= workload.prompt_len_max
        assert workload.output_len_min <= request.output_len <= workload.output_len_max
        assert all(0 <= token < workload.vocab_size for token in request.prompt_token_ids)


@given(workloads())
def test_the_same_workload_draws_the_same_requests(workload: Workload) -> None:
    assert workload.requests() == workload.requests()


def test_another_seed_draws_other_requests() -> None:
    assert Workload(seed=0).requests() != Workload(seed=1).requests()


def test_seed_zero_draws_these_very_requests_on_every_machine() -> None:
    requests = Workload().requests()
    assert sum(request.prompt_len for request in requests) == 5021
    assert sum(request.output_len for request in requests) == 2678
    assert requests[0].prompt_token_ids[:3] == (20671, 12726, 25130)


def test_all_lengths_of_a_range_occur() -> None:
    requests = Workload(200, 1, 3, 4, 6, seed=0).requests()
    assert {request.prompt_len for request in requests} == {1, 2, 3}
    assert {request.output_len for request in requests} == {4, 5, 6}


@given(batch=workloads(), stream=workloads(), threads=st.none() | st.integers(1, 8))
def test_a_saved_job_reads_back_equal(
    tmp_path_factory: pytest.TempPathFactory, batch: Workload, stream: Workload, threads: int | None
) -> None:
    job = Job(tuple(batch.requests()), tuple(stream.requests()), 128, 8, threads)
    path = tmp_path_factory.mktemp("job") / "job.json"
    save_job(job, path)
    assert load_job(path) == job


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"format": 2}', '{"format": 1, "requests": 3}'])
def test_a_file_that_is_no_job_is_refused_by_name(tmp_path: Path, text: str) -> None:
    path = tmp_path / "job.json"
    path.write_text(text)
    with pytest.raises(UsageError, match=r"job\.json is not a workload"):
        load_job(path)


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("num_requests", 0, "number of requests must be at least 1, not 0"),
        ("prompt_len_min", 0, "prompt lengths must be at least 1, not 0"),
        ("output_len_min", -4, "output lengths must be at least 1, not -4"),
        ("prompt_len_max", 31, "prompt lengths run from 32 to 31"),
        ("output_len_max", 1, "output lengths run from 32 to 1"),
    ],
)
def test_numbers_without_sense_are_refused(field: str, value: int, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        Workload(**{field: value})


def test_for_a_model_ids_come_from_its_vocabulary() -> None:
    workload = Workload(4, 1, 50, 1, 50).for_model(CONFIG)
    assert max(max(item.prompt_token_ids) for item in workload.requests()) < 300


def test_requests_longer_than_the_context_are_refused_with_the_numbers() -> None:
    with pytest.raises(UsageError, match=r"60 and an output of 41 tokens make 101.*context is 100"):
        Workload(1, 60, 60, 41, 41).for_model(CONFIG)


@pytest.mark.parametrize(("text", "expected"), [("32:256", (32, 256)), ("64", (64, 64))])
def test_a_range_is_two_numbers_or_one(text: str, expected: tuple[int, int]) -> None:
    assert parse_range("--prompt-len", text) == expected


@pytest.mark.parametrize("text", ["", ":", "a:b", "1:", ":2", "1:2:3", "1.5"])
def test_a_range_that_is_not_numbers_is_refused_with_an_example(text: str) -> None:
    with pytest.raises(UsageError, match=r"--prompt-len must be MIN:MAX.*32:256"):
        parse_range("--prompt-len", text)


def test_a_request_knows_its_prompt_length() -> None:
    assert BenchRequest((5, 6, 7), 2).prompt_len == 3
