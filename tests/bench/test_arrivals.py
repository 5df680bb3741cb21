"""Arrivals and lengths: the laws of their distributions, and what a seed promises."""

from __future__ import annotations

import json
import math
import random
from itertools import pairwise
from pathlib import Path
from statistics import mean, median, variance

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.bench.arrivals import Arrivals
from infra_lab.bench.serving_requests import (
    DATASETS,
    LogNormal,
    ServingRequest,
    Uniform,
    WordCost,
    draw_requests,
    parse_lengths,
    read_requests,
    take,
)
from infra_lab.errors import UsageError

MANY = 20_000


@given(
    rate=st.floats(0.01, 1000),
    burstiness=st.one_of(st.floats(0.05, 50), st.just(math.inf)),
    count=st.integers(2, 60),
    seed=st.integers(0, 2**32),
)
def test_arrivals_ascend_from_zero_at_the_rate_exactly(
    rate: float, burstiness: float, count: int, seed: int
) -> None:
    times_s = Arrivals(rate, burstiness).times_s(count, seed)
    assert len(times_s) == count
    assert times_s[0] == 0.0
    assert times_s == sorted(times_s)
    assert times_s[-1] == pytest.approx((count - 1) / rate, rel=1e-6)
    assert times_s == Arrivals(rate, burstiness).times_s(count, seed)


@pytest.mark.parametrize("burstiness", [0.25, 1.0, 4.0])
def test_gaps_vary_as_the_burstiness_says(burstiness: float) -> None:
    times_s = Arrivals(2.0, burstiness).times_s(MANY, seed=3)
    gaps = [after - before for before, after in pairwise(times_s)]
    assert variance(gaps) == pytest.approx(0.25 / burstiness, rel=0.1)


def test_burstiness_one_is_a_poisson_process() -> None:
    """Counts in windows have their mean as variance, and gaps no memory."""
    times_s = Arrivals(1.0).times_s(MANY, seed=5)
    counts = [0] * (MANY // 10)
    for time_s in times_s[:-1]:
        counts[int(time_s / 10)] += 1
    assert variance(counts) / mean(counts) == pytest.approx(1.0, rel=0.1)
    gaps = [after - before for before, after in pairwise(times_s)]
    for t in (0.5, 1.0, 2.0):
        assert sum(gap > t for gap in gaps) / len(gaps) == pytest.approx(math.exp(-t), rel=0.05)


def test_infinite_burstiness_is_even_and_an_infinite_rate_is_at_once() -> None:
    assert Arrivals(4.0, math.inf).times_s(5, 0) == [0.0, 0.25, 0.5, 0.75, 1.0]
    assert Arrivals().times_s(3, 0) == [0.0, 0.0, 0.0]
    assert Arrivals(5.0).times_s(1, 0) == [0.0]


@pytest.mark.parametrize(("rate", "burstiness"), [(0, 1), (-1, 1), (math.nan, 1), (1, 0), (1, -2)])
def test_arrivals_without_sense_are_refused(rate: float, burstiness: float) -> None:
    with pytest.raises(UsageError, match="must be above 0"):
        Arrivals(rate, burstiness)


@pytest.mark.parametrize("name", DATASETS)
@pytest.mark.parametrize("position", [0, 1])
def test_lengths_of_a_dataset_have_its_mean_and_stay_within_its_bounds(
    name: str, position: int
) -> None:
    lengths = parse_lengths("--prompt-len", name, position)
    assert isinstance(lengths, LogNormal)
    draw = random.Random(1)
    drawn = [lengths.draw(draw) for _ in range(MANY)]
    assert min(drawn) >= 4
    assert max(drawn) <= 1024
    # The law of a log-normal: its median is its mean / exp(sigma^2 / 2). The cut takes a tenth of
    # the longest mean.
    assert median(drawn) == pytest.approx(lengths.mean / math.exp(0.5), rel=0.05)
    assert 0.85 * lengths.mean < mean(drawn) < 1.05 * lengths.mean


@given(st.integers(1, 500), st.integers(0, 500), st.integers(0, 2**32))
def test_uniform_lengths_reach_their_bounds_and_no_further(low: int, span: int, seed: int) -> None:
    lengths, draw = Uniform(low, low + span), random.Random(seed)
    assert all(low <= lengths.draw(draw) <= low + span for _ in range(20))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("shakespeare", "must be sharegpt, alpaca"),
        ("", "MIN:MAX"),
        ("1:x", "MIN:MAX"),
        ("0", "at least 1"),
        ("9:3", "from 9 to 3"),
    ],
)
def test_lengths_without_sense_are_refused(text: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        parse_lengths("--output-len", text, 1)


@given(st.floats(0.5, 6), st.floats(0, 100), st.integers(1, 2000))
def test_a_prompt_gets_as_many_words_as_its_tokens_need(
    each: float, fixed: float, num_tokens: int
) -> None:
    words = WordCost(each, fixed).num_words(num_tokens)
    assert words >= 1
    if num_tokens >= fixed + each:
        assert abs(words * each + fixed - num_tokens) <= each / 2 + 1e-9


def test_an_endpoint_that_counts_nothing_is_not_believed() -> None:
    with pytest.raises(UsageError, match="cannot be relied on"):
        WordCost.of_two((16, 7), (144, 7))


def test_requests_are_the_same_for_a_seed_and_share_no_beginning() -> None:
    lengths = (Uniform(40, 60), Uniform(1, 9))
    requests = draw_requests(50, *lengths, WordCost(), seed=4)
    assert requests == draw_requests(50, *lengths, WordCost(), seed=4)
    assert requests != draw_requests(50, *lengths, WordCost(), seed=5)
    assert all(40 <= len(str(one.prompt).split()) <= 60 for one in requests)
    assert all(1 <= one.max_tokens <= 9 for one in requests)
    beginnings = {tuple(str(one.prompt).split()[:4]) for one in requests}
    assert len(beginnings) == 50


def test_requests_are_read_from_lines_of_json(tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "hi"}]
    lines = [{"prompt": "one"}, {"messages": chat, "max_tokens": 5}]
    file = tmp_path / "prompts.jsonl"
    file.write_text("\n\n".join(map(json.dumps, lines)) + "\n")
    requests = read_requests(file, max_tokens=9)
    assert requests == [ServingRequest("one", 9), ServingRequest(tuple(chat), 5)]
    assert take(requests, 5) == [*requests, *requests, requests[0]]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has no request in it"),
        ('{"prompt": "a"}\n{nonsense', "line 2: is not JSON"),
        ("[1]", "line 1: must be an object"),
        ('{"prompt": ""}', "give either prompt"),
        ('{"prompt": "a", "messages": []}', "give either prompt"),
        ('{"messages": []}', "give either prompt"),
        ('{"prompt": "a", "max_tokens": 0}', "at least 1"),
        ('{"prompt": "a", "max_tokens": true}', "whole number"),
        ('{"prompt": "a", "top_k": 3}', "'top_k' is none of"),
        (b"\xff\xfe", "cannot be read"),
    ],
)
def test_a_line_at_fault_is_named(tmp_path: Path, text: str | bytes, message: str) -> None:
    file = tmp_path / "prompts.jsonl"
    file.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(UsageError, match=message):
        read_requests(file, max_tokens=9)
