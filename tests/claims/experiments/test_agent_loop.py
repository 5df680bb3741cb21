"""Steps in a row, passages found and commands let through, in cases small enough for a hand."""

from __future__ import annotations

import math
import os

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.claims.experiments import command_filters as filters
from infra_lab.claims.experiments import retrieval
from infra_lab.claims.experiments.agent_steps import Loop
from infra_lab.claims.experiments.retrieval import BM25, Question

shares = st.floats(0, 1)
words = st.lists(st.sampled_from("abcdefgh"), min_size=1, max_size=60)


@pytest.mark.parametrize(
    ("loop", "wanted"),
    [
        (Loop(10, 0.95), 0.95**10),
        (Loop(10, 0.95, 1), 0.9975**10),
        (Loop(10, 0.95, 1, 0.2), 0.988**10),
        (Loop(10, 0.95, 1, 0.5), 0.97375**10),
        (Loop(1, 0.5, 2), 0.875),
        (Loop(3, 0.0, 5), 0),
        (Loop(0, 0.5), 1),
    ],
)
def test_a_task_succeeds_as_often_as_worked_out_by_hand(loop: Loop, wanted: float) -> None:
    assert loop.task_success() == pytest.approx(wanted)


@given(st.integers(0, 6), shares, st.integers(0, 4), shares)
def test_retries_never_harm_and_missed_errors_never_help(
    num_steps: int, success: float, retries: int, missed: float
) -> None:
    loop = Loop(num_steps, success, retries, missed)
    assert -1e-12 <= loop.task_success() <= 1 + 1e-12
    assert loop.task_success() <= Loop(num_steps, success, retries + 1, missed).task_success()
    assert loop.task_success() <= Loop(num_steps, success, retries).task_success() + 1e-12
    assert 1 <= loop.tries() <= retries + 1


@given(st.integers(0, 2**31))
def test_a_played_loop_agrees_with_the_formula(seed: int) -> None:
    loop = Loop(4, 0.8, 2, 0.3)
    num_tasks = 2000
    spread = math.sqrt(0.25 / num_tasks)
    assert abs(loop.simulate(num_tasks, seed) - loop.task_success()) < 6 * spread


@given(words, st.integers(1, 20), st.data())
def test_chunks_are_the_text_and_share_what_they_should(
    text: list[str], size: int, data: st.DataObject
) -> None:
    overlap = data.draw(st.integers(0, size - 1))
    pieces = [piece.split() for piece in retrieval.chunks(text, size, overlap)]
    joined = pieces[0] + [word for piece in pieces[1:] for word in piece[overlap:]]
    assert joined == text
    assert all(len(piece) == size for piece in pieces[:-1])


def test_pieces_cannot_share_all_their_words() -> None:
    with pytest.raises(ValueError, match="pieces of 3 words cannot share 3"):
        retrieval.chunks(["a"], 3, 3)


def test_the_score_of_a_word_by_hand() -> None:
    """Two passages of two words: idf = log(1 + 1.5 / 1.5), and b drops out at mean length."""
    index = BM25(["red fox", "red dog"])
    assert index.score("fox", 0) == pytest.approx(math.log(2) * 2.2 / 2.2)
    assert index.score("fox", 1) == 0
    assert index.score("Fox, fox!", 0) == pytest.approx(2 * math.log(2))
    assert index.ranked("dog") == ["red dog", "red fox"]
    assert index.ranked("cat") == ["red fox", "red dog"]


def test_recall_counts_the_questions_answered_within_the_first_passages() -> None:
    index = BM25(["the fox is red", "the dog is brown", "nothing"])
    asked = [Question("fox?", "is red"), Question("dog red is?", "is brown"), Question("x", "blue")]
    found = retrieval.ranks(index, asked)
    assert found[0] == 1
    assert found[2] is None
    assert retrieval.recall([1, 3, None, 2], 2) == 0.5
    assert retrieval.share_cut(["the fox is", "red"], asked[:1]) == 1


def test_every_answer_stands_in_the_book_and_once_only() -> None:
    book = " ".join(retrieval.book_words())
    assert [one.answer for one in retrieval.questions() if book.count(one.answer) != 1] == []


def test_questions_ask_in_other_words_than_their_answer() -> None:
    for one in retrieval.questions():
        assert one.answer.lower() not in one.ask.lower()


@pytest.mark.parametrize(
    ("command", "wanted"),
    [
        ("ls work", ["ls", "work"]),
        ("grep 'rm -rf' notes.txt", ["grep", "rm -rf", "notes.txt"]),
        ("rm work", None),
        ("cat /etc/passwd", None),
        ("cat ../other", None),
        ("cat work/../../other", None),
        ("", None),
        ("echo 'open", None),
        ("/bin/ls", None),
    ],
)
def test_the_allowlist_takes_programs_and_paths_that_it_knows(
    command: str, wanted: list[str] | None
) -> None:
    assert filters.allowed_words(command) == wanted


@pytest.mark.parametrize("command", ["rm -rf /", "RM -RF x", "echo rm -f", "rmdir x"])
def test_the_denylist_stops_its_words_wherever_they_stand(command: str) -> None:
    assert filters.forbidden(command)


@pytest.mark.skipif(os.name != "posix", reason="commands are a POSIX shell's")
@pytest.mark.parametrize("name", filters.HARMFUL)
def test_every_way_to_lose_the_file_loses_it_in_a_shell_unless_it_is_stopped(name: str) -> None:
    command = filters.HARMFUL[name]
    deny, allow = filters.under_denylist(command), filters.under_allowlist(command)
    assert deny.intact == filters.forbidden(command)
    assert allow.intact
