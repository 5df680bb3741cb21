"""The grading process as its parent sees it: started, spoken to, measured, and ended with all that
it began.
"""

from __future__ import annotations

import json
import os
import queue
import secrets
import subprocess
import sys
import tempfile
import threading
from contextlib import suppress
from typing import IO, Any

import psutil

OUTPUT_KEPT = 8 << 10  # characters of a solution's output that a grade keeps, at either end
MARK_WAIT_S = 1.0  # for what was printed to come through its pipe
MARK = "INFRA_LAB_GRADING"  # in the environment of whatever a grading process starts


class GradingProcess:
    """A grading process, and threads that read what it says."""

    def __init__(self) -> None:
        self._mark = secrets.token_hex(8)
        self._is_killed = False
        self._folder = tempfile.TemporaryDirectory(prefix="infra-lab-", ignore_cleanup_errors=True)
        environment = os.environ | {
            "PYTHONHASHSEED": "0",
            "PYTHONIOENCODING": "utf-8:backslashreplace",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
            MARK: self._mark,
        }
        environment.pop("PYTEST_ADDOPTS", None)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "infra_lab.practice.child"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            cwd=self._folder.name,
            env=environment,
            start_new_session=True,
        )
        self._handle = psutil.Process(self._process.pid)
        self._born = self._handle.create_time()
        self.events: queue.Queue[bytes | None] = queue.Queue()
        self.output = Output()
        assert self._process.stdout is not None
        assert self._process.stderr is not None
        self._readers = [
            threading.Thread(target=self._read_events, args=(self._process.stdout,), daemon=True),
            threading.Thread(target=self.output.read, args=(self._process.stderr,), daemon=True),
        ]
        for reader in self._readers:
            reader.start()

    def is_alive(self) -> bool:
        return self._process.poll() is None

    @property
    def status(self) -> int | None:
        return self._process.returncode

    def send(self, job: dict[str, Any]) -> None:
        assert self._process.stdin is not None
        with suppress(OSError):  # a dead child is seen by what it does not answer
            self._process.stdin.write(json.dumps(job).encode() + b"\n")
            self._process.stdin.flush()

    def usage(self) -> tuple[int, float]:
        """Bytes of memory and seconds of CPU, those of its own children included."""
        memory, cpu = 0, 0.0
        with suppress(psutil.Error):
            for process in (self._handle, *self._handle.children(recursive=True)):
                with suppress(psutil.Error):
                    memory += process.memory_info().rss
                    times = process.cpu_times()
                    cpu += times.user + times.system
        return memory, cpu

    def kill(self) -> None:
        """Ends it and whatever it started, orphans included."""
        if self._is_killed:
            return
        self._is_killed = True
        processes = [self._handle]
        with suppress(psutil.Error):
            processes += self._handle.children(recursive=True)
        for process in [*processes, *self._marked()]:
            with suppress(psutil.Error):
                process.kill()
        self._process.wait()
        for reader in self._readers:  # they end when the last writer has
            reader.join(timeout=1.0)
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        self._folder.cleanup()

    def _marked(self) -> list[psutil.Process]:
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error, OSError):
                is_younger = process.create_time() >= self._born
                if is_younger and process.environ().get(MARK) == self._mark:
                    found.append(process)
        return found

    def _read_events(self, stream: IO[bytes]) -> None:
        with suppress(OSError, ValueError):  # closed while reading
            for line in stream:
                self.events.put(line)
        self.events.put(None)


class Output:
    """The beginning and the end of what a solution prints, and how much it was."""

    def __init__(self) -> None:
        self.size = 0
        self._head = b""
        self._tail = b""
        self._more = threading.Condition()

    def read(self, stream: IO[bytes]) -> None:
        with suppress(OSError, ValueError):
            while chunk := os.read(stream.fileno(), 1 << 16):
                with self._more:
                    self.size += len(chunk)
                    missing = OUTPUT_KEPT - len(self._head)
                    self._head += chunk[:missing]
                    self._tail = (self._tail + chunk[max(missing, 0) :])[-OUTPUT_KEPT:]
                    self._more.notify_all()

    def take(self, until: str = "") -> str:
        """The text so far, which is then forgotten: as far as the mark `until`, if it is given
        and comes in time, which is left out."""
        mark = until.encode()
        with self._more:
            self._more.wait_for(lambda: mark in self._head + self._tail, MARK_WAIT_S)
            left_out = self.size - len(self._head) - len(self._tail)
            head, tail = self._head, self._tail
            self.size, self._head, self._tail = 0, b"", b""
        if left_out > 0:
            head += f"\n... {left_out:,} bytes left out ...\n".encode()
        return (head + tail).replace(mark, b"", 1 if mark else 0).decode("utf-8", "replace")
