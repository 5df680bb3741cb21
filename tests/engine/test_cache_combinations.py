"""Quantized caches and budgets in the company of every other feature: each answer is what the same
cache gives to the request alone.

The examples are always the same ones. With 8-bit codes the last bit of a product may decide which
code a number gets, and two tokens that received all but the same attention may change places in
the order of eviction, so one example in many thousands has two right answers.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from infra_lab.config import EngineConfig
from infra_lab.sampling_params import SamplingParams
from tests.engine.test_combinations import (
    QUICK,
    Arrival,
    Scenario,
    answer_of,
    folder,
    keeps_only_its_law,
    make_engine,
    run,
    scenarios,
)

__all__ = ["folder"]  # the fixture

CACHES: list[dict[str, Any]] = [
    {"kv_cache_dtype": "int8_per_token_head"},
    {"kv_cache_dtype": "fp8_per_token_head"},
    {"kv_cache_dtype": "int8_per_channel_keys"},
    {"sparse_kv": True},
    {"sparse_kv": True, "kv_cache_dtype": "int8_per_token_head"},
]


@st.composite
def scenarios_with_budgets(draw: st.DrawFn) -> Scenario:
    """Scenarios in which any sampled or greedy request may have a budget."""
    scenario = draw(scenarios())
    budgets = st.sampled_from([None, 1, 2, 5, 9, 16, 40])
    arrivals = [
        replace(arrival, params=replace(arrival.params, kv_budget=draw(budgets)))
        if isinstance(arrival.params, SamplingParams)
        else arrival
        for arrival in scenario.arrivals
    ]
    return replace(scenario, arrivals=arrivals)


def check(folder: Path, scenario: Scenario, cache: dict[str, Any]) -> None:
    config = {**scenario.config, **cache, "attention": "torch", "device": "cpu"}
    if cache.get("kv_cache_dtype") == "int8_per_channel_keys":
        size = config["block_size"]
        config |= {"block_size": 16, "num_blocks": -(-config["num_blocks"] * size // 16)}
    outputs, _ = run(make_engine(folder, EngineConfig(**config)), scenario)
    plain = {"num_blocks": 200, "enable_prefix_caching": False, "device": "cpu"}
    for number, arrival in enumerate(scenario.arrivals):
        got = answer_of(outputs[number])
        if any(reason == "abort" for _, reason in got):
            assert arrival.aborted_after is not None
            continue
        alone = make_engine(folder, EngineConfig(**{**plain, **cache}))
        arrival_alone = Arrival(0, arrival.prompt, arrival.params, lora=arrival.lora)
        expected, _ = run(alone, Scenario({}, [arrival_alone]))
        if keeps_only_its_law(scenario, arrival.params):
            assert len(got) == len(answer_of(expected[0]))
            continue
        assert got == answer_of(expected[0]), f"request {number}"


@pytest.mark.parametrize("cache", CACHES, ids=str)
def test_any_cache_in_any_company_gives_the_answers_it_gives_alone(
    folder: Path,
    cache: dict[str, Any],
) -> None:
    kinds = scenarios_with_budgets() if "sparse_kv" in cache else scenarios()
    settings(QUICK, max_examples=12, derandomize=True, database=None)(
        given(kinds)(lambda scenario: check(folder, scenario, cache))
    )()


@pytest.mark.slow
@pytest.mark.parametrize("cache", CACHES, ids=str)
def test_any_cache_in_much_company(folder: Path, cache: dict[str, Any]) -> None:
    kinds = scenarios_with_budgets() if "sparse_kv" in cache else scenarios()
    settings(QUICK, max_examples=200, derandomize=True, database=None)(
        given(kinds)(lambda scenario: check(folder, scenario, cache))
    )()
