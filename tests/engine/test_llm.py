"""`LLM` refuses what makes no sense before anything is computed, and says what is wrong where."""

from __future__ import annotations

from collections import UserList
from pathlib import Path
from typing import Any

import pytest

from infra_lab.engine.llm import LLM
from infra_lab.errors import InvalidRequestError, UsageError
from infra_lab.sampling_params import SamplingParams

pytestmark = pytest.mark.model

FINE = {"role": "user", "content": "hi"}
EMPTY = {"role": "user", "content": ""}
HALF = {"role": "user", "content": "a\ud800"}


@pytest.fixture(scope="module")
def llm(smollm2_path: Path) -> LLM:
    return LLM(smollm2_path, num_blocks=8)


@pytest.mark.parametrize(
    ("params", "kind"), [({"max_tokens": 3}, "dict"), ("greedy", "str"), (3, "int")]
)
def test_parameters_of_another_type_are_named_with_the_way_to_make_them(
    llm: LLM, params: Any, kind: str
) -> None:
    with pytest.raises(InvalidRequestError, match=f"not a {kind}; SamplingParams.from_dict"):
        llm.generate(["a"], params)


def test_parameters_come_one_for_all_or_one_for_each(llm: LLM) -> None:
    with pytest.raises(UsageError, match="2 prompts came with 3 sampling_params"):
        llm.generate(["a", "b"], [SamplingParams()] * 3)


@pytest.mark.parametrize(
    ("messages", "said"),
    [
        ([], "messages is empty"),
        ("hi", "messages must be a list"),
        (FINE, "messages must be a list"),
        ([EMPTY], r"^messages\[0\] is a user's message with empty content"),
        ([FINE, {"role": "assistant", "content": "ho"}, EMPTY], r"^messages\[2\] is a user's"),
        ([HALF], r"^messages\[0\]\['content'\] has half a surrogate pair"),
        ([[FINE], [EMPTY]], r"^conversation 1: messages\[0\] is a user's message with empty"),
        ([[FINE], [HALF]], r"^conversation 1: messages\[0\]\['content'\] has half a surrogate"),
        ([[FINE], []], "^conversation 1: messages must be a list of at least one"),
    ],
)
def test_a_chat_that_asks_nothing_or_is_no_text_is_refused_by_its_place(
    llm: LLM, messages: Any, said: str
) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        llm.chat(messages)


def test_only_the_last_message_must_say_something(llm: LLM) -> None:
    conversation = [EMPTY, {"role": "assistant", "content": "ho"}, FINE]
    (output,) = llm.chat(conversation, SamplingParams(max_tokens=1))
    assert len(output.outputs[0].token_ids) == 1


def test_priorities_come_one_for_all_or_one_for_each(smollm2_path: Path) -> None:
    ranked = LLM(smollm2_path, num_blocks=8, max_num_seqs=1, scheduling_policy="priority")
    params = SamplingParams(max_tokens=1)
    outputs = ranked.generate(["a", "b", "c"], params, priority=[2, 0, 1])
    firsts = [output.metrics.first_token_time_s or 0.0 for output in outputs]
    assert firsts[1] < firsts[2] < firsts[0]
    assert len(ranked.generate(["a", "b"], params, priority=5)) == 2
    outputs = ranked.generate(["a", "b"], UserList([params, params]), priority=UserList([1, 0]))
    assert len(outputs) == 2  # any sequence will do
    later, sooner = ranked.chat([[FINE], [FINE]], params, priority=[1, 0])
    assert (sooner.metrics.first_token_time_s or 0) < (later.metrics.first_token_time_s or 0)
    assert len(list(ranked.stream("a", params, priority=3))) == 1
    with pytest.raises(UsageError, match="2 prompts came with 1 priorities"):
        ranked.generate(["a", "b"], params, priority=[1])
    with pytest.raises(InvalidRequestError, match=r"prompt 1: .* priority 'high'"):
        ranked.generate(["a", "b"], params, priority=[1, "high"])  # type: ignore[list-item]


def test_a_priority_under_another_policy_is_refused(llm: LLM) -> None:
    with pytest.raises(InvalidRequestError, match="scheduling_policy is 'fcfs'"):
        llm.generate("a", SamplingParams(max_tokens=1), priority=1)
