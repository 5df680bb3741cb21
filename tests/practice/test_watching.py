"""When a save is noticed: once each, whatever the editor does, with and without events."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from infra_lab.practice import watching
from infra_lab.practice.watching import contents_on_save, file_system_of


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "solution.py"
    path.write_bytes(b"first")
    return path


class Script:
    """A clock that, instead of sleeping, does the next thing that a learner does."""

    def __init__(self, *steps: Callable[[], Any]) -> None:
        self.steps = list(steps)

    def __call__(self, _: float) -> None:
        if self.steps:
            self.steps.pop(0)()


def nothing() -> None:
    pass


def polled(file: Path, script: Script) -> Iterator[bytes]:
    return contents_on_save(file, poll=True, sleep=script)


def test_the_content_at_the_start_comes_first(file: Path) -> None:
    assert next(polled(file, Script())) == b"first"


def test_each_save_with_another_content_comes_once(file: Path) -> None:
    script = Script()
    watched = polled(file, script)
    assert next(watched) == b"first"
    script.steps = [nothing, lambda: file.write_bytes(b"second")]
    assert next(watched) == b"second"
    script.steps = [nothing, lambda: file.write_bytes(b"and a third")]
    assert next(watched) == b"and a third"


def test_a_save_while_grading_is_noticed_afterwards(file: Path) -> None:
    watched = polled(file, Script())
    next(watched)
    file.write_bytes(b"saved while the first was graded")
    assert next(watched) == b"saved while the first was graded"


def test_touching_and_saving_unchanged_are_no_saves(file: Path) -> None:
    script = Script()
    watched = polled(file, script)
    next(watched)
    script.steps = [
        lambda: os.utime(file, ns=(1, 1)),
        nothing,
        lambda: file.write_bytes(b"first"),
        nothing,
        nothing,
        lambda: file.write_bytes(b"second"),
    ]
    assert next(watched) == b"second"


def test_a_file_written_in_steps_comes_once_and_whole(file: Path) -> None:
    def add(text: bytes) -> Callable[[], Any]:
        return lambda: file.open("ab").write(text)

    script = Script()
    watched = polled(file, script)
    next(watched)
    script.steps = [lambda: file.write_bytes(b"a"), add(b"b"), add(b"c"), add(b"d")]
    assert next(watched) == b"abcd"


def test_a_file_that_an_editor_replaces_comes_once(file: Path) -> None:
    def replace() -> None:
        new = file.with_suffix(".new")
        new.write_bytes(b"second")
        new.replace(file)

    script = Script()
    said: list[str] = []
    watched = contents_on_save(file, poll=True, on_gone=lambda: said.append("gone"), sleep=script)
    next(watched)
    script.steps = [file.unlink, nothing, replace]
    assert next(watched) == b"second"
    assert said == []


def test_a_file_that_is_gone_is_said_once_and_graded_when_it_is_back(file: Path) -> None:
    said: list[str] = []
    script = Script()
    watched = contents_on_save(file, poll=True, on_gone=lambda: said.append("gone"), sleep=script)
    next(watched)
    long = [nothing] * 100
    script.steps = [file.unlink, *long, lambda: file.write_bytes(b"first")]
    assert next(watched) == b"first"
    assert said == ["gone"]
    script.steps = [file.unlink, *long, lambda: file.write_bytes(b"second")]
    assert next(watched) == b"second"
    assert said == ["gone", "gone"]


def test_what_happens_beside_the_file_is_no_save(file: Path) -> None:
    script = Script()
    watched = polled(file, script)
    next(watched)
    script.steps = [
        lambda: file.with_name("progress.json").write_bytes(b"{}"),
        lambda: file.with_name("__pycache__").mkdir(),
        lambda: file.write_bytes(b"second"),
    ]
    assert next(watched) == b"second"


def save_soon(file: Path, content: bytes, after_s: float = 0.3) -> threading.Thread:
    def save() -> None:
        time.sleep(after_s)
        file.write_bytes(content)

    thread = threading.Thread(target=save)
    thread.start()
    return thread


def test_the_systems_events_are_used_where_there_are_some(file: Path) -> None:
    pytest.importorskip("watchfiles")
    said: list[str] = []
    watched = contents_on_save(file, on_polling=said.append)
    assert next(watched) == b"first"
    saving = save_soon(file, b"second")
    assert next(watched) == b"second"
    saving.join()
    assert said == []


@pytest.mark.parametrize("name", ["nfs4", "9p", "cifs"])
def test_a_file_system_that_does_not_report_changes_is_polled_and_said(
    file: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setattr(watching, "file_system_of", lambda path: name)
    said: list[str] = []
    script = Script()
    watched = contents_on_save(file, on_polling=said.append, sleep=script)
    next(watched)
    script.steps = [nothing, lambda: file.write_bytes(b"second")]
    assert next(watched) == b"second"
    assert said == [f"{name} does not report every change"]


def fake_watch(monkeypatch: pytest.MonkeyPatch, watch: Callable[..., Iterator[set[Any]]]) -> None:
    watchfiles = pytest.importorskip("watchfiles")
    monkeypatch.setattr(watchfiles, "watch", watch)


def test_a_change_that_the_system_does_not_report_turns_to_polling_and_says_so(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def watch(*_: object, **__: object) -> Iterator[set[Any]]:
        yield set()
        file.write_bytes(b"second")
        while True:
            yield set()

    fake_watch(monkeypatch, watch)
    said: list[str] = []
    watched = contents_on_save(file, on_polling=said.append, sleep=lambda _: None)
    assert [next(watched), next(watched)] == [b"first", b"second"]
    assert said == ["the file changed, and the system did not report it"]


def test_a_system_out_of_watches_is_polled_and_said(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def watch(*_: object, **__: object) -> Iterator[set[Any]]:
        raise OSError(28, "No space left on device (inotify watch limit reached)")
        yield set()

    fake_watch(monkeypatch, watch)
    said: list[str] = []
    script = Script()
    watched = contents_on_save(file, on_polling=said.append, sleep=script)
    next(watched)
    script.steps = [nothing, lambda: file.write_bytes(b"second")]
    assert next(watched) == b"second"
    assert "watch limit" in said[0]


def test_without_watchfiles_the_file_is_polled_and_said(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "watchfiles", None)
    said: list[str] = []
    script = Script()
    watched = contents_on_save(file, on_polling=said.append, sleep=script)
    next(watched)
    script.steps = [nothing, lambda: file.write_bytes(b"second")]
    assert next(watched) == b"second"
    assert said == ["the package watchfiles is not installed"]


def test_asked_for_polling_says_nothing(file: Path) -> None:
    said: list[str] = []
    script = Script()
    watched = contents_on_save(file, poll=True, on_polling=said.append, sleep=script)
    next(watched)
    script.steps = [nothing, lambda: file.write_bytes(b"second")]
    next(watched)
    assert said == []


def test_the_file_system_is_that_of_the_innermost_mount(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import psutil

    class Mount:
        def __init__(self, mountpoint: Path, fstype: str) -> None:
            self.mountpoint, self.fstype = str(mountpoint), fstype

    inner = tmp_path / "mnt"
    inner.mkdir()
    mounts = [Mount(Path(tmp_path.anchor), "ext4"), Mount(inner, "NFS4")]
    monkeypatch.setattr(psutil, "disk_partitions", lambda **_: mounts)
    assert file_system_of(inner / "work" / "solution.py") == "nfs4"
    assert file_system_of(tmp_path / "solution.py") == "ext4"
