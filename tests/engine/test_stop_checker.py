"""Stop strings: the result depends on the text, never on how it was cut."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from infra_lab.engine.stop_checker import StopChecker

texts = st.text(alphabet="abc", max_size=12)
stops = st.lists(st.text(alphabet="abc", min_size=1, max_size=4), max_size=4)


def run(pieces: list[str], stop: list[str], include: bool = False) -> tuple[list[str], str | None]:
    checker = StopChecker(stop, include)
    shown = [checker.append(piece) for piece in pieces]
    return [*shown, checker.flush()], checker.matched


def oracle(text: str, stop: list[str], include: bool) -> tuple[str, str | None]:
    """Reads one character at a time and stops at the first one that completes a stop string."""
    for end in range(1, len(text) + 1):
        complete = [item for item in stop if text[:end].endswith(item)]
        if complete:
            longest = max(complete, key=len)
            return text[: end if include else end - len(longest)], longest
    return text, None


@st.composite
def cut_texts(draw: st.DrawFn) -> tuple[str, list[str]]:
    text = draw(texts)
    cuts = sorted(draw(st.sets(st.integers(0, len(text)))) | {0, len(text)})
    return text, [text[low:high] for low, high in itertools.pairwise(cuts)]


@given(cut_texts(), stops, st.booleans())
def test_any_cutting_of_a_text_stops_at_the_same_character(
    cut: tuple[str, list[str]], stop: list[str], include: bool
) -> None:
    text, pieces = cut
    shown, matched = run(pieces, stop, include)
    assert ("".join(shown), matched) == oracle(text, stop, include)


@given(cut_texts(), stops, st.booleans())
def test_what_is_held_back_is_never_more_than_a_stop_string_could_still_need(
    cut: tuple[str, list[str]], stop: list[str], may_stop: bool
) -> None:
    checker = StopChecker(stop)
    seen = shown = ""
    for piece in cut[1]:
        seen += piece
        shown += checker.append(piece, may_stop=may_stop)
        if checker.matched is not None:
            return
        held = seen[len(shown) :]
        assert not held or any(item.startswith(held) and item != held for item in stop)


@given(texts, stops)
def test_without_permission_to_stop_the_whole_text_passes(text: str, stop: list[str]) -> None:
    checker = StopChecker(stop)
    shown = "".join(checker.append(char, may_stop=False) for char in text)
    assert shown + checker.flush() == text
    assert checker.matched is None


def test_a_stop_string_over_four_tokens_shows_nothing() -> None:
    assert run(["DEF", "G", "HI", "J"], ["DEFGHIJ"]) == ([""] * 5, "DEFGHIJ")


def test_the_text_before_a_stop_string_is_kept_and_the_rest_dropped() -> None:
    assert run(list("abcdeZ"), ["cd"]) == (["a", "b", "", "", "", "", ""], "cd")


def test_the_stop_string_stays_when_asked_for() -> None:
    assert "".join(run(list("abcdeZ"), ["cd"], include=True)[0]) == "abcd"


def test_the_earliest_occurrence_wins_over_the_order_of_the_list() -> None:
    assert run(["one two three"], ["three", "two"]) == (["one ", ""], "two")


def test_of_overlapping_stop_strings_the_one_that_completes_first_wins() -> None:
    assert run(["xabcdef"], ["abcdef", "cd"]) == (["xab", ""], "cd")


def test_of_stop_strings_that_complete_together_the_longest_wins() -> None:
    assert run(["abcd"], ["cd", "bcd"]) == (["a", ""], "bcd")


def test_only_the_beginning_of_a_stop_string_is_held_back() -> None:
    assert run(["hello E", "ND"], ["ENDING"]) == (["hello ", "", "END"], None)


def test_a_stop_string_that_began_before_stopping_was_allowed_counts_when_it_completes() -> None:
    checker = StopChecker(["abc"])
    assert checker.append("xab", may_stop=False) == "x"
    assert checker.append("c") == ""
    assert checker.matched == "abc"


def test_a_stop_string_that_completed_before_stopping_was_allowed_never_counts() -> None:
    checker = StopChecker(["cd", "abcdef"])
    assert checker.append("abcd", may_stop=False) == ""
    assert checker.append("x") == "abcdx"
    assert checker.matched is None


def test_after_a_match_nothing_more_is_let_through() -> None:
    checker = StopChecker(["b"])
    assert checker.append("abc") == "a"
    assert checker.append("abc") + checker.flush() == ""
