"""The learner's folder: nothing they wrote is ever overwritten."""

from __future__ import annotations

import os
import threading
from pathlib import Path
from typing import Any

import pytest

from infra_lab.practice import catalog
from infra_lab.practice.problem import Problem
from infra_lab.practice.workspace import Workspace, WorkspaceError
from tests.practice.tiny_problem import STARTER, write_problem


@pytest.fixture
def problem(tmp_path: Path) -> Problem:
    write_problem(tmp_path)
    return catalog.load("double", tmp_path)


@pytest.fixture
def workspace(tmp_path: Path) -> Workspace:
    return Workspace(tmp_path / "work")


def test_start_copies_the_starter(problem: Problem, workspace: Workspace) -> None:
    assert workspace.start(problem)
    assert workspace.attempt("double").read_text(encoding="utf-8") == STARTER
    assert workspace.attempt("double").name == "solution.py"


def test_start_never_overwrites_an_attempt(problem: Problem, workspace: Workspace) -> None:
    workspace.start(problem)
    workspace.attempt("double").write_text("mine")
    assert not workspace.start(problem)
    assert workspace.attempt("double").read_text() == "mine"


def test_of_many_starts_at_once_one_makes_the_file(problem: Problem, workspace: Workspace) -> None:
    made: list[bool] = []
    threads = [
        threading.Thread(target=lambda: made.append(workspace.start(problem))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert made.count(True) == 1
    assert workspace.attempt("double").read_text(encoding="utf-8") == STARTER


def test_reset_keeps_every_old_attempt_under_a_number_of_its_own(
    problem: Problem, workspace: Workspace
) -> None:
    workspace.start(problem)
    kept = []
    for text in ("first", "second"):
        workspace.attempt("double").write_text(text)
        kept.append(workspace.reset(problem))
        assert workspace.attempt("double").read_text(encoding="utf-8") == STARTER
    assert [path.read_text() for path in kept if path] == ["first", "second"]
    assert workspace.kept_attempts("double") == kept
    assert [path.name for path in kept if path] == ["001.py", "002.py"]


def test_reset_reuses_no_number_of_an_attempt_that_was_deleted_before_others(
    problem: Problem, workspace: Workspace
) -> None:
    workspace.start(problem)
    for text in ("first", "second"):
        workspace.attempt("double").write_text(text)
        workspace.reset(problem)
    workspace.kept_attempts("double")[0].unlink()
    workspace.attempt("double").write_text("third")
    kept = workspace.reset(problem)
    assert kept is not None
    assert kept.name == "003.py"


def test_reset_keeps_bytes_that_are_no_text(problem: Problem, workspace: Workspace) -> None:
    workspace.start(problem)
    workspace.attempt("double").write_bytes(b"\xff\x00\r\n")
    kept = workspace.reset(problem)
    assert kept is not None
    assert kept.read_bytes() == b"\xff\x00\r\n"


def test_reset_of_an_untouched_starter_keeps_nothing(
    problem: Problem, workspace: Workspace
) -> None:
    workspace.start(problem)
    assert workspace.reset(problem) is None
    assert workspace.kept_attempts("double") == []


def test_nothing_else_is_left_in_the_folder(problem: Problem, workspace: Workspace) -> None:
    workspace.start(problem)
    workspace.attempt("double").write_text("mine")
    workspace.reset(problem)
    left = {path.relative_to(workspace.folder).as_posix() for path in workspace.folder.rglob("*.*")}
    assert left == {"double/solution.py", "double/attempts/001.py"}


@pytest.mark.parametrize("name", ["1_old.py", "2.old.py", "3b.py"])
def test_a_file_of_the_learners_own_beside_the_kept_ones_is_no_attempt(
    problem: Problem, workspace: Workspace, name: str
) -> None:
    workspace.start(problem)
    own = workspace.attempt("double").parent / "attempts" / name
    own.parent.mkdir()
    own.write_text("own")
    workspace.attempt("double").write_text("mine")
    kept = workspace.reset(problem)
    assert workspace.kept_attempts("double") == [kept]
    assert own.read_text() == "own"


def test_what_an_editor_saves_during_a_reset_is_kept_too(
    problem: Problem, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace.start(problem)
    path = workspace.attempt("double")
    path.write_text("mine")
    link, saves = os.link, ["saved late"]

    def save_then_link(source: Path, target: Path) -> None:
        if saves:
            path.write_text(saves.pop())
        link(source, target)

    monkeypatch.setattr(os, "link", save_then_link)
    kept = workspace.reset(problem)
    assert [one.read_text() for one in workspace.kept_attempts("double")] == ["mine", "saved late"]
    assert workspace.kept_attempts("double")[-1] == kept
    assert path.read_text(encoding="utf-8") == STARTER


def test_a_disk_that_fails_after_the_move_loses_nothing_and_says_where_it_is(
    problem: Problem, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    workspace.start(problem)
    workspace.attempt("double").write_text("mine")
    open_file = Path.open

    def fail_to_link(*_: object) -> None:
        raise OSError(5, "Input/output error")

    def fail_to_make(path: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        if path.name == "solution.py" and "x" in mode:
            raise OSError(5, "Input/output error")
        return open_file(path, mode, *args, **kwargs)

    monkeypatch.setattr(os, "link", fail_to_link)
    monkeypatch.setattr(Path, "open", fail_to_make)
    with pytest.raises(WorkspaceError, match=r"Input/output error; the attempt is kept as .*001"):
        workspace.reset(problem)
    assert [one.read_text() for one in workspace.kept_attempts("double")] == ["mine"]
    assert list(workspace.folder.rglob("*.tmp")) == []


@pytest.mark.parametrize("call", ["fsync", "replace"])
def test_a_reset_that_fails_before_the_move_leaves_the_attempt_in_its_place(
    problem: Problem, workspace: Workspace, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    workspace.start(problem)
    workspace.attempt("double").write_text("mine")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, call, full)
    with pytest.raises(WorkspaceError, match=r"No space left on device$"):
        workspace.reset(problem)
    left = [path for path in workspace.folder.rglob("*") if path.is_file()]
    assert left == [workspace.attempt("double")]
    assert left[0].read_text() == "mine"


def test_of_a_link_the_content_is_kept_and_its_target_stays(
    problem: Problem, workspace: Workspace
) -> None:
    path = workspace.attempt("double")
    path.parent.mkdir(parents=True)
    target = path.with_name("elsewhere.py")
    target.write_text("mine")
    try:
        path.symlink_to("elsewhere.py")
    except OSError:
        pytest.skip("this system makes no links")
    kept = workspace.reset(problem)
    assert kept is not None
    assert kept.read_text() == target.read_text() == "mine"
    assert path.read_text(encoding="utf-8") == STARTER


def test_a_file_system_without_hard_links_will_do(
    problem: Problem, workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_links(*_: object) -> None:
        raise OSError("no hard links here")

    monkeypatch.setattr(os, "link", no_links)
    assert workspace.start(problem)
    assert not workspace.start(problem)
    workspace.attempt("double").write_text("mine")
    kept = workspace.reset(problem)
    assert kept is not None
    assert kept.read_text() == "mine"


def test_a_folder_that_cannot_be_written_is_a_clear_error(problem: Problem, tmp_path: Path) -> None:
    (tmp_path / "work").write_text("a file where the folder should be")
    with pytest.raises(WorkspaceError, match="cannot write"):
        Workspace(tmp_path / "work").start(problem)
