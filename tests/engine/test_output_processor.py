"""What a caller sees of each step: text, ids, stops, log-probabilities, times, samples."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.engine.output_processor import OutputProcessor, child_requests
from infra_lab.errors import InvalidRequestError
from infra_lab.outputs import RequestOutput
from infra_lab.sampling_params import MAX_SEED, SamplingParams
from infra_lab.step import TokenLogprobs

EOS = ord("Z")


class CodePoints:
    """Ids are code points; "Z" is the end-of-sequence token and special."""

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [ord(char) for char in text]

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return "".join(chr(item) for item in token_ids if not (skip_special_tokens and item == EOS))


class Words:
    """Ids are places in a list of pieces of text; others are unknown."""

    def __init__(self, *pieces: str) -> None:
        self.pieces = pieces

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return [self.pieces.index(text)]

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return "".join(self.pieces[item] for item in token_ids if item < len(self.pieces))


class FallbackBytes:
    """Every id is a byte-fallback token, so no text is certain before the run ends."""

    def __init__(self) -> None:
        self.backend = self

    def token_to_id(self, token: str) -> int:
        return int(token[3:5], 16)

    def encode(self, text: str, add_special_tokens: bool = True) -> list[int]:
        return list(text.encode())

    def decode(self, token_ids: Sequence[int], skip_special_tokens: bool = True) -> str:
        return bytes(token_ids).decode(errors="replace")


def started(params: SamplingParams | None = None, tokenizer: Any = None) -> OutputProcessor:
    processor = OutputProcessor(tokenizer or CodePoints())
    processor.add_request("r", "p", [ord("p")], params or SamplingParams(), 10.0)
    return processor


def one(processor: OutputProcessor) -> RequestOutput:
    (output,) = processor.collect()
    return output


def entry(token_id: int, logprob: float = -0.5) -> TokenLogprobs:
    return TokenLogprobs(token_id, logprob, 1, [(token_id, logprob)])


def ids(text: str) -> list[int]:
    return [ord(char) for char in text]


def test_each_step_gives_exactly_what_is_new() -> None:
    processor = started()
    processor.process("r", ids("ab"), 11.0)
    first = one(processor).outputs[0]
    processor.process("r", ids("c"), 12.0, finish_reason="length")
    second = one(processor).outputs[0]
    assert (first.text, first.new_text, first.new_token_ids) == ("ab", "ab", ids("ab"))
    assert (second.text, second.new_text, second.new_token_ids) == ("abc", "c", ids("c"))
    assert (first.finish_reason, second.finish_reason) == (None, "length")


def test_what_was_not_collected_is_new_in_the_next_output() -> None:
    processor = started()
    processor.process("r", ids("a"), 11.0)
    processor.process("r", ids("b"), 12.0)
    assert one(processor).outputs[0].new_text == "ab"


def test_a_step_without_news_gives_no_output() -> None:
    processor = started(SamplingParams(prompt_logprobs=1))
    processor.process("r", [], 11.0, prompt_logprobs=[entry(1)])
    assert processor.collect() == []


def test_an_output_given_out_does_not_change_later() -> None:
    processor = started()
    processor.process("r", ids("a"), 11.0)
    output = one(processor)
    processor.process("r", ids("b"), 12.0)
    assert output.outputs[0].token_ids == ids("a")
    assert output.metrics.num_output_tokens == 1


def test_text_that_is_certain_only_at_the_end_is_shown_at_the_end() -> None:
    processor = started(tokenizer=FallbackBytes())
    processor.process("r", ids("ab"), 11.0)
    assert one(processor).outputs[0].text == ""
    processor.process("r", ids("c"), 12.0, finish_reason="length")
    assert one(processor).outputs[0].new_text == "abc"


@pytest.mark.parametrize(
    ("reason", "expected"), [("length", "stop"), ("stop", "stop"), ("abort", "abort")]
)
def test_a_stop_string_that_shows_up_only_at_the_end_still_cuts_the_text(
    reason: str, expected: str
) -> None:
    processor = started(SamplingParams(stop="b"), FallbackBytes())
    processor.process("r", ids("abc"), 11.0)
    processor.process("r", [], 12.0, finish_reason=reason)
    output = one(processor).outputs[0]
    assert (output.text, output.finish_reason) == ("a", expected)


def test_a_stop_string_over_four_tokens_streams_nothing_and_ends_the_request() -> None:
    processor = started(SamplingParams(stop="DEFGHIJ"), Words("DEF", "G", "HI", "J"))
    must_finish = [processor.process("r", [item], 11.0) for item in range(4)]
    output = one(processor).outputs[0]
    assert must_finish == [False, False, False, True]
    assert (output.text, output.token_ids) == ("", [0, 1, 2, 3])
    assert (output.finish_reason, output.stop_reason) == ("stop", "DEFGHIJ")


@pytest.mark.parametrize(("include", "text"), [(False, "ab"), (True, "abcd")])
def test_a_stop_string_before_the_end_of_sequence_wins(include: bool, text: str) -> None:
    processor = started(SamplingParams(stop="cd", include_stop_str_in_output=include))
    assert processor.process("r", ids("abcdeZ"), 11.0, finish_reason="stop") is False
    output = one(processor).outputs[0]
    assert (output.text, output.token_ids, output.stop_reason) == (text, ids("abcd"), "cd")


def test_a_step_after_the_stop_is_ignored() -> None:
    processor = started(SamplingParams(stop="b"))
    assert processor.process("r", ids("ab"), 11.0) is True
    assert processor.process("r", ids("c"), 12.0) is False
    assert one(processor).outputs[0].token_ids == ids("ab")
    assert processor.collect() == []


def test_text_held_back_for_a_stop_string_is_shown_at_the_end() -> None:
    processor = started(SamplingParams(stop="END"))
    processor.process("r", ids("aEN"), 11.0)
    assert one(processor).outputs[0].text == "a"
    processor.process("r", ids("x"), 12.0)
    assert one(processor).outputs[0].new_text == "ENx"
    processor.process("r", ids("E"), 13.0, finish_reason="length")
    assert one(processor).outputs[0].new_text == "E"


@pytest.mark.parametrize(("include", "text"), [(False, "a"), (True, "a.")])
def test_a_stop_token_is_an_id_of_the_output_and_its_text_only_when_asked_for(
    include: bool, text: str
) -> None:
    params = SamplingParams(stop_token_ids=[ord(".")], include_stop_str_in_output=include)
    processor = started(params)
    processor.process("r", ids("a."), 11.0, finish_reason="stop", stop_reason=ord("."))
    output = one(processor).outputs[0]
    assert (output.text, output.token_ids, output.stop_reason) == (text, ids("a."), ord("."))


def test_the_last_token_of_a_full_length_is_shown() -> None:
    processor = started()
    processor.process("r", ids("ab"), 11.0, finish_reason="length")
    assert one(processor).outputs[0].text == "ab"


def test_stop_strings_that_complete_before_min_tokens_do_not_count() -> None:
    processor = started(SamplingParams(stop="b", min_tokens=3))
    assert processor.process("r", ids("ba"), 11.0) is False
    assert processor.process("r", ids("b"), 12.0) is True
    output = one(processor).outputs[0]
    assert (output.text, output.token_ids) == ("ba", ids("bab"))


@given(
    st.text(alphabet="abZ", min_size=1, max_size=10),
    st.lists(st.text(alphabet="ab", min_size=1, max_size=3), max_size=2),
    st.integers(0, 3),
    st.lists(st.integers(1, 3), min_size=10, max_size=10),
    st.sampled_from(["stop", "length"]),
)
def test_the_result_does_not_depend_on_how_many_tokens_a_step_brings(
    text: str, stop: list[str], min_tokens: int, sizes: list[int], reason: str
) -> None:
    def run(step_sizes: list[int]) -> tuple[str, list[int], str | None, str | int | None]:
        processor = started(SamplingParams(stop=stop, min_tokens=min_tokens, ignore_eos=True))
        left, pieces, last = ids(text), "", None
        for size in step_sizes:
            now, left = left[:size], left[size:]
            processor.process("r", now, 11.0, finish_reason=None if left else reason)
            for output in processor.collect():
                last = output.outputs[0]
                pieces += last.new_text
            if not left:
                break
        assert last is not None
        assert pieces == last.text
        return last.text, last.token_ids, last.finish_reason, last.stop_reason

    assert run(sizes) == run([1] * 10)


def test_logprobs_come_one_a_token_with_their_sum() -> None:
    processor = started(SamplingParams(logprobs=1))
    processor.process("r", ids("ab"), 11.0, logprobs=[entry(97, -1.0), entry(98, -0.25)])
    output = one(processor).outputs[0]
    assert output.logprobs == [entry(97, -1.0), entry(98, -0.25)]
    assert output.cumulative_logprob is not None
    assert math.isclose(output.cumulative_logprob, -1.25)


def test_logprobs_of_tokens_beyond_the_stop_are_dropped_with_them() -> None:
    processor = started(SamplingParams(logprobs=0, stop="a"))
    processor.process("r", ids("ab"), 11.0, logprobs=[entry(97), entry(98)])
    assert one(processor).outputs[0].logprobs == [entry(97)]


def test_logprobs_that_nobody_asked_for_are_none() -> None:
    processor = started()
    processor.process("r", ids("a"), 11.0)
    output = one(processor)
    assert output.prompt_logprobs is None
    assert output.outputs[0].logprobs is None
    assert output.outputs[0].cumulative_logprob is None


def test_prompt_logprobs_begin_with_none_and_grow_chunk_by_chunk() -> None:
    processor = started(SamplingParams(prompt_logprobs=1))
    processor.process("r", [], 11.0, prompt_logprobs=[entry(1), entry(2)])
    processor.process("r", ids("a"), 12.0, prompt_logprobs=[entry(3)])
    assert one(processor).prompt_logprobs == [None, entry(1), entry(2), entry(3)]


def test_times_are_those_of_the_first_schedule_the_first_and_the_last_token() -> None:
    processor = started()
    processor.note_scheduled("r", 11.0, num_cached_tokens=32)
    processor.process("r", ids("a"), 13.0)
    processor.note_preempted("r")
    processor.note_scheduled("r", 14.0, num_cached_tokens=48)
    processor.process("r", ids("b"), 16.0)
    processor.process("r", ids("c"), 17.0, finish_reason="length")
    output = one(processor)
    metrics = output.metrics
    assert (metrics.queue_time_s, metrics.ttft_s, metrics.tpot_s) == (1.0, 3.0, 2.0)
    assert (metrics.num_preemptions, output.num_cached_tokens) == (1, 32)


def test_a_request_of_three_samples_runs_as_three_children_with_consecutive_seeds() -> None:
    children = child_requests("r", SamplingParams(n=3, seed=MAX_SEED - 1, prompt_logprobs=2))
    assert [child.request_id for child in children] == ["r#0", "r#1", "r#2"]
    seeds = [child.sampling_params.seed for child in children]
    assert seeds == [MAX_SEED - 1, MAX_SEED, 0]
    assert {child.sampling_params.n for child in children} == {1}
    assert [child.sampling_params.prompt_logprobs for child in children] == [2, None, None]


def test_without_a_seed_the_children_have_none_either() -> None:
    assert {child.sampling_params.seed for child in child_requests("r", SamplingParams(n=2))} == {
        None
    }


def test_a_single_sample_runs_under_the_requests_own_id() -> None:
    params = SamplingParams(seed=5)
    (child,) = child_requests("r", params)
    assert (child.request_id, child.sampling_params) == ("r", params)


def test_samples_come_together_in_one_output_a_step() -> None:
    processor = started(SamplingParams(n=2))
    processor.process("r#1", ids("x"), 11.0)
    processor.process("r#0", ids("a"), 11.0)
    first = one(processor)
    processor.process("r#1", ids("y"), 12.0, finish_reason="length")
    second = one(processor)
    processor.process("r#0", ids("b"), 13.0, finish_reason="length")
    third = one(processor)
    assert [sample.text for sample in first.outputs] == ["a", "x"]
    assert [sample.new_text for sample in second.outputs] == ["", "y"]
    assert [sample.index for sample in third.outputs] == [0, 1]
    assert [output.finished for output in (first, second, third)] == [False, False, True]
    assert third.metrics.num_output_tokens == 2


def test_each_sample_stops_by_itself() -> None:
    processor = started(SamplingParams(n=2, stop="b"))
    assert processor.process("r#0", ids("ab"), 11.0) is True
    assert processor.process("r#1", ids("ac"), 11.0) is False
    assert [sample.finish_reason for sample in one(processor).outputs] == ["stop", None]
    assert processor.abort("r") == ["r#1"]


def test_an_aborted_request_shows_what_it_had_and_names_its_running_children() -> None:
    processor = started(SamplingParams(n=2, stop="END"))
    processor.process("r#0", ids("aE"), 11.0)
    assert processor.abort("r") == ["r#0", "r#1"]
    output = one(processor)
    assert [(item.text, item.finish_reason) for item in output.outputs] == [
        ("aE", "abort"),
        ("", "abort"),
    ]
    assert output.finished
    assert processor.process("r#0", ids("b"), 12.0) is False
    assert processor.collect() == []


def test_the_best_of_an_aborted_request_were_never_chosen() -> None:
    processor = started(SamplingParams(n=1, best_of=2, logprobs=0))
    entry = TokenLogprobs(ids("a")[0], -0.1, 1, [])
    processor.process("r#0", ids("a"), 11.0, logprobs=[entry], finish_reason="stop", stop_reason=7)
    assert processor.collect() == []
    assert processor.abort("r") == ["r#1"]
    (sample,) = one(processor).outputs
    assert (sample.finish_reason, sample.stop_reason) == ("abort", None)


def test_aborting_a_request_that_has_ended_does_nothing() -> None:
    processor = started()
    processor.process("r", ids("a"), 11.0, finish_reason="stop")
    assert processor.abort("r") == []
    assert one(processor).outputs[0].finish_reason == "stop"
    assert processor.abort("r") == []
    assert processor.abort("nobody") == []


def test_a_request_that_has_ended_can_no_longer_fail() -> None:
    processor = started()
    processor.process("r", ids("a"), 11.0, finish_reason="stop")
    assert processor.fail("r", "too late") == []
    assert one(processor).error is None


def test_a_request_given_up_by_the_engine_carries_the_reason() -> None:
    processor = started(SamplingParams(n=2))
    assert processor.fail("r#1", "needs 9 blocks of 8") == ["r#0", "r#1"]
    output = one(processor)
    assert output.error == "needs 9 blocks of 8"
    assert {sample.finish_reason for sample in output.outputs} == {"error"}
    assert output.finished


@pytest.mark.parametrize("taken", ["r", "r#1"])
def test_an_id_in_use_is_refused_and_leaves_the_other_request_alone(taken: str) -> None:
    processor = started(SamplingParams(n=2))
    with pytest.raises(InvalidRequestError, match=f"'{taken}' belongs to a request"):
        processor.add_request(taken, None, [1], SamplingParams(), 0.0)
    assert processor.num_unfinished_requests == 1


def test_an_id_may_be_used_again_once_its_last_output_was_collected() -> None:
    processor = started()
    processor.process("r", ids("a"), 11.0, finish_reason="stop")
    processor.collect()
    assert processor.num_unfinished_requests == 0
    processor.add_request("r", None, [1], SamplingParams(), 0.0)
    assert processor.num_unfinished_requests == 1


def test_without_a_tokenizer_texts_are_empty_and_stop_strings_refused() -> None:
    processor = OutputProcessor(None)
    processor.add_request("r", None, [1], SamplingParams(), 0.0)
    processor.process("r", [5, 6], 1.0, finish_reason="length")
    output = one(processor).outputs[0]
    assert (output.text, output.token_ids) == ("", [5, 6])
    with pytest.raises(InvalidRequestError, match="stop strings need a tokenizer"):
        processor.add_request("s", None, [1], SamplingParams(stop="x"), 0.0)


@given(st.lists(st.tuples(st.integers(0, 2), st.sampled_from("abZ"), st.booleans()), max_size=12))
def test_the_pieces_of_every_sample_concatenate_to_its_whole(
    steps: list[tuple[int, str, bool]],
) -> None:
    processor = started(SamplingParams(n=3, stop="ba"))
    outputs: list[RequestOutput] = []
    for index, letter, ends in steps:
        processor.process(f"r#{index}", ids(letter), 11.0, finish_reason="length" if ends else None)
        outputs += processor.collect()
    processor.abort("r")
    outputs += processor.collect()
    assert [output.finished for output in outputs] == [False] * (len(outputs) - 1) + [True]
    for index, whole in enumerate(outputs[-1].outputs):
        pieces = [output.outputs[index] for output in outputs]
        assert "".join(piece.new_text for piece in pieces) == whole.text
        assert [item for piece in pieces for item in piece.new_token_ids] == whole.token_ids
