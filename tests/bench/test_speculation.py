"""The report on speculation: what is derived from the counts."""

from __future__ import annotations

import pytest

from infra_lab.bench.prompts import QUESTIONS, WORDS_PER_EXCERPT, work
from infra_lab.bench.speculation import SpeculationRun, methods, speculation_report
from infra_lab.bench.tables import speculation_table
from infra_lab.errors import UsageError


def run(method: str, accepted: int, drafted: int, elapsed_s: float) -> SpeculationRun:
    return SpeculationRun("chat", 8, method, 108, 8, accepted, drafted, (), elapsed_s)


def test_tokens_per_step_count_what_a_decoding_step_brings() -> None:
    assert run("none", 0, 0, 2.0).tokens_per_step == 1
    assert run("n-gram", 50, 70, 2.0).tokens_per_step == 2  # 100 tokens in 50 steps


def test_speed_is_measured_against_no_drafts_on_the_same_work() -> None:
    runs = [run("none", 0, 0, 3.0), run("n-gram", 50, 80, 2.0)]
    report = speculation_report("m", "float32", 4, 1, runs)
    assert [row["speedup"] for row in report["runs"]] == [1.0, 1.5]
    assert [row["acceptance_rate"] for row in report["runs"]] == [None, 0.625]
    assert speculation_table(report).row_count == 2


def test_each_kind_of_work_has_as_many_messages() -> None:
    assert len(work("chat")) == len(work("summary")) == len(QUESTIONS)
    assert len(set(work("summary"))) == len(QUESTIONS)
    assert all(len(text.split()) == WORDS_PER_EXCERPT + 3 for text in work("summary"))


def test_kinds_of_drafts_have_names_and_none_comes_first() -> None:
    kinds = methods(30, 3, "folder/small", [28])
    assert list(kinds) == ["none", "n-gram", "first 28 of 30 layers", "small"]
    assert kinds["none"] is None
    assert all(config.num_speculative_tokens == 3 for config in kinds.values() if config)
    with pytest.raises(UsageError, match="from 1 to 29 for this model, not 30"):
        methods(30, 3, None, [30])
