"""Quantiles out of buckets, rates out of counters, and `infra-lab top` over a server that runs."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable
from itertools import accumulate
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.errors import InfraLabError
from infra_lab.server.scrape import Reading, activity, quantile, read
from tests.server.running import MODEL, RunningServer

BOUNDS = [0.1, 0.5, 1.0, 5.0, math.inf]
Run = Callable[..., Any]


@given(st.lists(st.floats(0.001, 20), min_size=1, max_size=50), st.floats(0.01, 1.0))
def test_a_quantile_lies_in_the_bucket_of_the_value_itself(
    values: list[float], share: float
) -> None:
    buckets = {bound: float(sum(value <= bound for value in values)) for bound in BOUNDS}
    found = quantile(buckets, share)
    assert found is not None
    exact = sorted(values)[max(0, math.ceil(round(share * len(values), 9)) - 1)]
    high = next(bound for bound in BOUNDS if exact <= bound)
    low = max([0.0, *(bound for bound in BOUNDS if bound < high)])
    assert low <= found <= min(high, 5.0)


def test_a_quantile_is_prometheus_own() -> None:
    buckets = dict(zip(BOUNDS, accumulate([2.0, 6.0, 0.0, 2.0, 0.0]), strict=True))
    assert quantile(buckets, 0.1) == pytest.approx(0.05)
    assert quantile(buckets, 0.5) == pytest.approx(0.1 + 0.4 * 3 / 6)
    assert quantile(buckets, 0.9) == pytest.approx(1.0 + 4.0 * 1 / 2)
    assert quantile({0.1: 0.0, math.inf: 3.0}, 0.5) == 0.1
    assert quantile({0.1: 0.0, math.inf: 0.0}, 0.5) is None
    assert quantile({}, 0.5) is None


def test_rates_are_of_the_time_between_and_a_restart_begins_anew() -> None:
    before = Reading(10.0, {"vllm:generation_tokens_total": 100.0})
    after = Reading(12.0, {"vllm:generation_tokens_total": 160.0})
    assert activity(before, after).generation_tokens_per_s == 30
    restarted = Reading(12.0, {"vllm:generation_tokens_total": 8.0})
    assert activity(before, restarted).generation_tokens_per_s == 4


@pytest.mark.parametrize("text", ["", "<html>no</html>", "a_metric 1\n"])
def test_what_is_no_server_of_tokens_is_said_to_be_none(text: str) -> None:
    with pytest.raises(InfraLabError, match="what came"):
        read(text, 0.0)


def test_top_shows_what_a_server_does(tiny_server: RunningServer, run_command: Run) -> None:
    ends = threading.Event()

    def work() -> None:
        body = {"model": MODEL, "prompt": "abc", "max_tokens": 20, "ignore_eos": True}
        while not ends.is_set():
            tiny_server.http.post("/v1/completions", json=body)

    worker = threading.Thread(target=work)
    worker.start()
    try:
        lines = run_command("top", "--url", tiny_server.url, "--interval", "0.5", "--count", "2")
        found = run_command("top", "--url", tiny_server.url, "--interval", "0.5", "--json")
    finally:
        ends.set()
        worker.join()
    assert lines.status == found.status == 0
    assert len(lines.out.splitlines()) == 2
    assert "tokens/s  TTFT" in lines.out
    seen = json.loads(found.out)
    assert seen["generation_tokens_per_s"] > 0
    assert 0 < seen["ttft_s"][0] <= seen["ttft_s"][1]
    assert 0 <= seen["kv_cache_usage"] <= 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--url", "http://127.0.0.1:1"), "no server answers"),
        (("--url", "127.0.0.1:8000"), "give an address such as"),
        (("--interval", "0"), "0.1"),
        (("--count", "0"), "at least 1"),
    ],
)
def test_top_says_what_is_wrong_in_one_line(
    run_command: Run, arguments: tuple[str, ...], message: str
) -> None:
    result = run_command("top", *arguments)
    assert result.status in (1, 2)
    assert message in result.err
    assert "Traceback" not in result.err
