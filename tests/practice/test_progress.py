"""The progress file: portable, written whole or not at all, and never lost silently."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.practice import progress_store
from infra_lab.practice.failures import Failure
from infra_lab.practice.grade import Grade, TestResult, Verdict
from infra_lab.practice.progress import VERSION, Attempt, ProblemProgress, Progress
from infra_lab.practice.progress_store import ProgressError, ProgressStore, default_path

ROOT = Path(__file__).resolve().parents[2]
STATED = {"en": "holds", "zh": "成立"}


@pytest.fixture
def store(tmp_path: Path) -> ProgressStore:
    return ProgressStore(tmp_path / "work" / "progress.json")


def grade_with(verdict: Verdict, *, core: Verdict, follow_up: Verdict | None = None) -> Grade:
    failure = Failure(str(verdict))
    tests = [
        TestResult("test_core", STATED, None, core, None if core is Verdict.PASSED else failure)
    ]
    if follow_up is not None:
        broken = None if follow_up is Verdict.PASSED else failure
        tests.append(TestResult("test_more", STATED, "more", follow_up, broken))
    return Grade("double", verdict, tests, elapsed_s=1.23456)


def attempts() -> st.SearchStrategy[Attempt]:
    return st.builds(
        Attempt,
        time=st.datetimes().map(lambda time: time.isoformat()),
        verdict=st.sampled_from(list(Verdict)).map(str),
        solved=st.booleans(),
        seed=st.integers(0, 2**64),
        hints=st.integers(0, 3),
        elapsed_s=st.floats(0, 1e6),
        follow_ups=st.lists(st.text(max_size=5), max_size=2).map(tuple),
        extra=st.dictionaries(st.sampled_from(["extra", "later"]), st.integers(), max_size=2),
    )


def problems() -> st.SearchStrategy[ProblemProgress]:
    times = st.none() | st.just("2026-01-02T03:04:05+00:00")
    return st.builds(
        ProblemProgress,
        started=times,
        attempts=st.lists(attempts(), max_size=3),
        hints=st.integers(0, 3),
        revealed=times,
        resets=st.integers(0, 9),
        extra=st.dictionaries(st.sampled_from(["review", "later"]), st.integers(), max_size=2),
    )


@given(st.dictionaries(st.text(max_size=8), problems(), max_size=3))
def test_what_is_written_is_read_again(
    tmp_path_factory: pytest.TempPathFactory, written: dict[str, ProblemProgress]
) -> None:
    store = ProgressStore(tmp_path_factory.mktemp("progress") / "progress.json")
    with store.change() as progress:
        progress.problems.update(written)
        progress.extra["review"] = {"due": 1}
    again = store.read()
    assert again.problems == written
    assert again.extra == {"review": {"due": 1}}


def test_the_file_is_one_portable_json_object(store: ProgressStore, tmp_path: Path) -> None:
    with store.change() as progress:
        progress.touch("double").hints = 2
    text = store.path.read_text(encoding="utf-8")
    assert json.loads(text)["version"] == VERSION
    assert str(tmp_path) not in text
    moved = ProgressStore(tmp_path / "elsewhere.json")
    moved.path.write_text(text, encoding="utf-8")
    assert moved.read().of("double").hints == 2


def test_a_problem_never_touched_is_new(store: ProgressStore) -> None:
    assert store.read().of("double").status == "new"
    assert not store.path.exists()


def test_status_goes_from_new_to_attempted_to_solved_and_stays() -> None:
    progress = Progress()
    progress.touch("double").started = "2026-01-01T00:00:00+00:00"
    assert progress.of("double").status == "attempted"
    for verdict in (Verdict.WRONG_ANSWER, Verdict.PASSED, Verdict.WRONG_ANSWER):
        progress.record(grade_with(verdict, core=verdict), seed=3)
    assert progress.of("double").status == "solved"
    assert [one.verdict for one in progress.of("double").attempts] == [
        "wrong_answer",
        "passed",
        "wrong_answer",
    ]


def test_an_attempt_keeps_seed_time_hints_and_duration() -> None:
    progress = Progress()
    progress.touch("double").hints = 2
    progress.record(grade_with(Verdict.PASSED, core=Verdict.PASSED), seed=7)
    (attempt,) = progress.of("double").attempts
    assert (attempt.seed, attempt.hints, attempt.elapsed_s) == (7, 2, 1.235)
    assert attempt.time.endswith("+00:00")


def test_a_wrong_follow_up_leaves_the_problem_solved() -> None:
    progress = Progress()
    wrong = grade_with(Verdict.WRONG_ANSWER, core=Verdict.PASSED, follow_up=Verdict.WRONG_ANSWER)
    progress.record(wrong, seed=0)
    assert progress.of("double").is_solved
    assert progress.of("double").solved_follow_ups == []


def test_a_right_follow_up_is_recorded() -> None:
    progress = Progress()
    right = grade_with(Verdict.PASSED, core=Verdict.PASSED, follow_up=Verdict.PASSED)
    progress.record(right, seed=0)
    assert progress.of("double").solved_follow_ups == ["more"]


@pytest.mark.parametrize("verdict", [Verdict.GRADER_FAULT, Verdict.UNSOLVED])
def test_what_is_nobodys_attempt_is_not_recorded(verdict: Verdict) -> None:
    progress = Progress()
    progress.record(Grade("double", verdict), seed=0)
    assert progress.of("double").attempts == []


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"{",
        b"\xff\xfe",
        b"[]",
        b"{}",
        b'{"version": "1", "problems": {}}',
        b'{"version": 0, "problems": {}}',
        b'{"version": true, "problems": {}}',
        b'{"version": 1}',
        b'{"version": 1, "problems": []}',
        b'{"version": 1, "problems": {"double": 3}}',
        b'{"version": 1, "problems": {"double": {"hints": -1}}}',
        b'{"version": 1, "problems": {"double": {"hints": true}}}',
        b'{"version": 1, "problems": {"double": {"started": 5}}}',
        b'{"version": 1, "problems": {"double": {"attempts": {}}}}',
        b'{"version": 1, "problems": {"double": {"attempts": [1]}}}',
        b'{"version": 1, "problems": {"double": {"attempts": [{"time": "x"}]}}}',
        b'{"version": 1, "problems": {"double": {"attempts": '
        b'[{"time": "x", "verdict": "passed", "solved": 1}]}}}',
        b'{"version": 1, "problems": {"double": {"attempts": '
        b'[{"time": "x", "verdict": "passed", "solved": true, "follow_ups": "no"}]}}}',
        b"[" * 100_000,
    ],
)
@pytest.mark.parametrize("by", ["read", "change"])
def test_a_damaged_file_is_set_aside_whole_and_said(
    tmp_path: Path, content: bytes, by: str
) -> None:
    kept: list[Path] = []
    store = ProgressStore(tmp_path / "progress.json", kept.append)
    store.path.write_bytes(content)
    if by == "read":
        assert store.read() == Progress()
    else:
        with store.change() as progress:
            progress.touch("double").hints = 1
        assert store.read().of("double").hints == 1
    assert [path.read_bytes() for path in kept] == [content]


def test_two_damaged_files_within_a_second_are_both_kept(tmp_path: Path) -> None:
    kept: list[Path] = []
    store = ProgressStore(tmp_path / "progress.json", kept.append)
    for content in ("one", "two"):
        store.path.write_text(content)
        store.read()
    assert [path.read_text() for path in kept] == ["one", "two"]


@pytest.mark.parametrize("by", ["read", "change"])
def test_a_file_of_a_newer_version_is_refused_and_left_alone(store: ProgressStore, by: str) -> None:
    store.path.parent.mkdir()
    newer = json.dumps({"version": VERSION + 1, "problems": "of another shape"})
    store.path.write_text(newer)
    use = store.read if by == "read" else store.change().__enter__
    with pytest.raises(ProgressError, match=r"of version 2, .* reads up to 1: update infra-lab"):
        use()
    assert store.path.read_text() == newer


def test_unknown_fields_of_this_version_are_kept(store: ProgressStore) -> None:
    store.path.parent.mkdir()
    table: dict[str, Any] = {
        "version": 1,
        "problems": {
            "double": {
                "hints": 1,
                "attempts": [{"time": "x", "verdict": "passed", "solved": True, "editor": ["vim"]}],
                "review": {"due": "2026-02-01"},
            }
        },
        "mock": [1, 2],
    }
    store.path.write_text(json.dumps(table))
    with store.change() as progress:
        progress.touch("double").hints += 1
    after = json.loads(store.path.read_text())
    assert after["mock"] == [1, 2]
    assert after["problems"]["double"]["review"] == {"due": "2026-02-01"}
    assert after["problems"]["double"]["hints"] == 2
    assert after["problems"]["double"]["attempts"][0]["editor"] == ["vim"]


def test_half_of_a_surrogate_pair_is_kept_as_it_is(store: ProgressStore) -> None:
    store.path.parent.mkdir()
    store.path.write_text('{"version": 1, "problems": {}, "note": "\\ud800 和"}', encoding="utf-8")
    with store.change() as progress:
        progress.touch("double").hints = 1
    assert store.read().extra == {"note": "\ud800 和"}


class Busy:
    """os.replace or os.rename of a system where another process has the file open."""

    def __init__(self, name: str, refusals: int) -> None:
        self.move, self.refusals = getattr(os, name), refusals

    def __call__(self, source: Path, target: Path) -> None:
        self.refusals -= 1
        if self.refusals >= 0:
            raise PermissionError(13, "Access is denied")
        self.move(source, target)


def test_a_file_that_a_reader_has_open_is_replaced_once_it_is_free(
    store: ProgressStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "replace", Busy("replace", 2))
    with store.change() as progress:
        progress.touch("double").hints = 1
    assert store.read().of("double").hints == 1


def test_a_damaged_file_that_a_reader_has_open_is_set_aside_once_it_is_free(
    store: ProgressStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.path.parent.mkdir()
    store.path.write_text("{")
    monkeypatch.setattr(os, "rename", Busy("rename", 2))
    assert store.read() == Progress()
    assert not store.path.exists()


def test_a_file_that_is_never_free_is_an_error_in_the_end(
    store: ProgressStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_store, "BUSY_TIMEOUT_S", 0.05)
    monkeypatch.setattr(os, "replace", Busy("replace", 1_000))
    with pytest.raises(ProgressError, match="Access is denied"), store.change():
        pass
    assert list(store.path.parent.glob(".*.tmp")) == []


def test_an_interrupted_write_leaves_nothing_behind(
    store: ProgressStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupt)
    with pytest.raises(KeyboardInterrupt), store.change():
        pass
    assert list(store.path.parent.glob(".*.tmp")) == []


def test_a_write_that_fails_half_way_leaves_the_old_file(
    store: ProgressStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    with store.change() as progress:
        progress.touch("double").hints = 1
    before = store.path.read_bytes()

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(progress_store.os, "fsync", full)
    with pytest.raises(ProgressError, match="No space left"), store.change() as progress:
        progress.touch("double").hints = 2
    assert store.path.read_bytes() == before
    assert [path.name for path in store.path.parent.glob("*.tmp")] == []
    assert [path.name for path in store.path.parent.glob(".*.tmp")] == []


def test_an_exception_in_a_change_writes_nothing(store: ProgressStore) -> None:
    def change() -> None:
        with store.change() as progress:
            progress.touch("double").hints = 1
            raise RuntimeError

    with pytest.raises(RuntimeError):
        change()
    assert not store.path.exists()


def test_processes_at_once_lose_nothing(store: ProgressStore) -> None:
    program = (
        "import sys\n"
        "from pathlib import Path\n"
        "from infra_lab.practice.progress_store import ProgressStore\n"
        "for _ in range(20):\n"
        "    with ProgressStore(Path(sys.argv[1])).change() as progress:\n"
        "        progress.touch('double').hints += 1\n"
    )
    children = [
        subprocess.Popen([sys.executable, "-c", program, str(store.path)], cwd=ROOT)
        for _ in range(3)
    ]
    assert [child.wait(timeout=60) for child in children] == [0, 0, 0]
    assert store.read().of("double").hints == 60


def test_a_writer_that_never_ends_is_named(
    store: ProgressStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress_store, "LOCK_TIMEOUT_S", 0.1)
    second = ProgressStore(store.path)
    with store.change(), pytest.raises(ProgressError, match="another infra-lab"), second.change():
        pass


def test_a_linked_file_is_changed_where_it_lies(tmp_path: Path) -> None:
    target, link = tmp_path / "synced.json", tmp_path / "progress.json"
    try:
        link.symlink_to(target)
    except OSError:
        pytest.skip("this system makes no links")
    with ProgressStore(link).change() as progress:
        progress.touch("double").hints = 1
    assert link.is_symlink()
    assert ProgressStore(target).read().of("double").hints == 1


def test_a_file_that_cannot_be_read_is_an_error_and_no_damage(tmp_path: Path) -> None:
    (tmp_path / "progress.json").mkdir()
    with pytest.raises(ProgressError, match="cannot read"):
        ProgressStore(tmp_path / "progress.json").read()


def test_the_variable_names_another_file() -> None:
    assert default_path({"INFRA_LAB_PROGRESS": "/elsewhere/p.json"}) == Path("/elsewhere/p.json")
    assert default_path({}).parts[-2:] == ("work", "progress.json")


@pytest.mark.parametrize(
    ("revealed", "solved", "after"),
    [
        (None, "2026-01-02", False),
        ("2026-01-01", "2026-01-02", True),
        ("2026-01-03", "2026-01-02", False),
    ],
)
def test_a_solution_seen_before_the_first_pass_is_remembered(
    revealed: str | None, solved: str, after: bool
) -> None:
    problem = ProblemProgress(revealed=revealed, attempts=[Attempt(solved, "passed", True)])
    assert problem.solved_after_reveal is after
