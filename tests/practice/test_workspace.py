"""The learner's folder: nothing they wrote is ever overwritten."""

from __future__ import annotations

import os
import threading
from pathlib import Path

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
