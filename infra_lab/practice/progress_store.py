"""The progress file: one JSON file that moves with a learner from machine to machine.

It is written whole or not at all, a damaged one is set aside and never overwritten, and two
commands at once lose nothing.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from infra_lab.errors import InfraLabError
from infra_lab.practice.catalog import default_root
from infra_lab.practice.progress import (
    VERSION,
    DamagedError,
    Progress,
    as_table,
    is_whole,
    parse,
)
from infra_lab.texts import Say, english

PROGRESS_VARIABLE = "INFRA_LAB_PROGRESS"
LOCK_TIMEOUT_S = 10.0
ANOTHER_EN = f"Name another file with --progress or ${PROGRESS_VARIABLE}"
ANOTHER_ZH = f"可以用 --progress 或 ${PROGRESS_VARIABLE} 指定另一个文件"
BUSY_TIMEOUT_S = 2.0  # a reader has the file open far shorter
BUSY_PAUSE_S = 0.02


class ProgressError(InfraLabError):
    """The progress file cannot be used as it is; nothing was changed."""

    exit_status = 2  # 1 would say that a solution failed


class ProgressStore:
    """Reads and changes the file.

    Args:
        path: of the file; it need not exist.
        on_damage: told where a damaged file was set aside.
        say: makes what errors say.
    """

    def __init__(
        self,
        path: Path,
        on_damage: Callable[[Path], None] = lambda kept: None,
        say: Say = english,
    ) -> None:
        self.path = path.expanduser().resolve()  # of a link, the file is replaced, not the link
        self._on_damage = on_damage
        self._say = say

    def read(self) -> Progress:
        """Needs no lock: the file is only ever replaced whole."""
        try:
            return self._read()
        except DamagedError:
            with self._lock():
                return self._read_or_set_aside()

    @contextmanager
    def change(self) -> Iterator[Progress]:
        """The progress, which is written when the block ends without an exception."""
        with self._lock():
            progress = self._read_or_set_aside()
            yield progress
            self._write(progress)

    def _read_or_set_aside(self) -> Progress:
        try:
            return self._read()  # by now another command may have mended it
        except DamagedError:
            self._on_damage(self._set_aside())
            return Progress()

    def _read(self) -> Progress:
        try:
            text = self.path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return Progress()
        except UnicodeDecodeError as error:
            raise DamagedError(str(error)) from None
        except OSError as error:
            raise self._error(
                f"cannot read {self.path}: {error.strerror}. {ANOTHER_EN}",
                f"无法读取 {self.path}：{error.strerror}。{ANOTHER_ZH}",
            ) from None
        try:
            table = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise DamagedError(str(error)) from None
        version = table.get("version") if isinstance(table, dict) else None
        if isinstance(version, int) and version > VERSION:
            raise self._error(
                f"{self.path} is of version {version}, and this infra-lab reads up to {VERSION}: "
                f"update infra-lab. {ANOTHER_EN}",
                f"{self.path} 是第 {version} 版，当前 infra-lab 最多读到第 {VERSION} 版："
                f"请升级 infra-lab。{ANOTHER_ZH}",
            )
        if not is_whole(version) or version != VERSION:
            raise DamagedError(f"version {version!r}")
        return parse(table)

    def _set_aside(self) -> Path:
        stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S")
        kept = self.path.with_name(f"{self.path.stem}.damaged-{stamp}{self.path.suffix}")
        while kept.exists():
            kept = kept.with_stem(f"{kept.stem}-{os.urandom(2).hex()}")
        try:
            _until_free(lambda: self.path.rename(kept))
        except OSError as error:
            raise self._error(
                f"{self.path} is damaged and cannot be set aside: {error.strerror}. {ANOTHER_EN}",
                f"{self.path} 已损坏，又无法移开：{error.strerror}。{ANOTHER_ZH}",
            ) from None
        return kept

    def _write(self, progress: Progress) -> None:
        # In ASCII, for half of a surrogate pair, which JSON may hold, has no UTF-8.
        text = json.dumps(as_table(progress), indent=2, ensure_ascii=True) + "\n"
        new = self.path.with_name(f".{self.path.name}-{os.urandom(8).hex()}.tmp")
        try:
            with new.open("x", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            _until_free(lambda: new.replace(self.path))
            _sync_folder(self.path.parent)
        except OSError as error:
            raise self._unwritable(error) from None
        finally:
            with suppress(OSError):
                new.unlink(missing_ok=True)

    def _unwritable(self, error: OSError) -> ProgressError:
        return self._error(
            f"cannot write {self.path}: {error.strerror}. {ANOTHER_EN}",
            f"无法写入 {self.path}：{error.strerror}。{ANOTHER_ZH}",
        )

    def _error(self, en: str, zh: str) -> ProgressError:
        return ProgressError(self._say(en, zh))

    @contextmanager
    def _lock(self) -> Iterator[None]:
        from filelock import FileLock, Timeout

        lock = FileLock(self.path.with_name(f".{self.path.name}.lock"), timeout=LOCK_TIMEOUT_S)
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            lock.acquire()
        except Timeout:
            if not Path(lock.lock_file).exists():
                raise self._unwritable(PermissionError(0, "no file can be made there")) from None
            raise self._error(
                f"another infra-lab has been using {self.path} for {LOCK_TIMEOUT_S:g} s: end it, "
                f"or remove {lock.lock_file} if none runs",
                f"另一个 infra-lab 占用 {self.path} 已超过 {LOCK_TIMEOUT_S:g} 秒：请先结束它；"
                f"如果并没有在运行，删除 {lock.lock_file}",
            ) from None
        except OSError as error:
            raise self._unwritable(error) from None
        try:
            yield
        finally:
            lock.release()


def default_path(environ: Mapping[str, str] | None = None) -> Path:
    """$INFRA_LAB_PROGRESS, or the file beside the attempts, so that one folder holds all."""
    chosen = (os.environ if environ is None else environ).get(PROGRESS_VARIABLE)
    return Path(chosen) if chosen else default_root() / "work" / "progress.json"


def _until_free(move: Callable[[], Path]) -> Path:
    """Windows moves no file that another process has open, and `read` takes no lock."""
    deadline = time.monotonic() + BUSY_TIMEOUT_S
    while True:
        try:
            return move()
        except PermissionError:
            if time.monotonic() > deadline:
                raise
        time.sleep(BUSY_PAUSE_S)


def _sync_folder(folder: Path) -> None:
    """So that the new name outlives a power cut; not every system can."""
    with suppress(OSError):
        descriptor = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
