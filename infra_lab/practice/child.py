"""Grades solutions in a process of its own: `python -m infra_lab.practice.child`.

Jobs come as JSON lines on stdin, events go as JSON lines to stdout, and whatever the solution
prints goes to stderr. The parent (`sandbox.py`) writes every report, so none is lost when this
process dies. The learner's code runs in the main thread, a watchdog beside it.
"""

from __future__ import annotations

import ctypes
import json
import os
import sys
import threading
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from infra_lab.practice.failures import CallTimedOut, SolutionStopped
from infra_lab.practice.kit import Solution
from infra_lab.practice.loading import load_solution, missing_entry_point
from infra_lab.practice.memory import limit_memory, release_memory_limit

HEARTBEAT_S = 0.2
Emit = Callable[..., None]


class Watchdog:
    """Stops a call that runs too long, by an exception raised inside it, and shows the parent
    that this process lives. What blocks even this thread, the parent ends."""

    def __init__(self, emit: Emit) -> None:
        self._emit = emit
        self._main = threading.main_thread().ident
        self._solution: Solution | None = None
        self._importing_since: float | None = None
        self._import_limit_s = 0.0
        self._fired = False
        threading.Thread(target=self._run, daemon=True).start()

    def watch_import(self, limit_s: float) -> None:
        self._import_limit_s, self._fired = limit_s, False
        self._importing_since = time.monotonic()

    def watch(self, solution: Solution | None) -> None:
        self._importing_since = None
        self._solution, self._fired = solution, False

    def _run(self) -> None:
        while True:
            time.sleep(HEARTBEAT_S)
            since, text, limit_s = self._importing_since, "import", self._import_limit_s
            if self._solution is not None:
                current = self._solution.current
                since, limit_s = current.since, current.limit_s
            if since is None:
                self._fired = False
            elif time.monotonic() - since > limit_s and not self._fired:
                self._fired = True
                if self._solution is not None:
                    text = self._solution.current.text()
                self._emit("slow", call=text)
                ctypes.pythonapi.PyThreadState_SetAsyncExc(
                    ctypes.c_ulong(self._main or 0), ctypes.py_object(CallTimedOut)
                )
            self._emit("alive")


class Emitter:
    """Writes events, each marked with the job's nonce, which the solution is not told."""

    def __init__(self) -> None:
        self._stream = os.fdopen(os.dup(1), "w", encoding="utf-8")
        os.dup2(2, 1)
        self._lock = threading.Lock()
        self.nonce = ""

    def __call__(self, event: str, **fields: Any) -> None:
        line = json.dumps({"nonce": self.nonce, "event": event, **fields})
        with self._lock:
            self._stream.write(line + "\n")
            self._stream.flush()


def run_job(job: dict[str, Any], emit: Emit, watchdog: Watchdog) -> None:
    """Grades one file; the last event is "finished"."""
    try:
        watchdog.watch_import(max(job["call_s"], 10.0))
        module = load_solution(Path(job["file"]))
        watchdog.watch(None)
        failure = missing_entry_point(module, job["entry_points"])
        if failure is not None:
            emit("failed", failure=failure.as_dict())
        else:
            solution = Solution(module)
            solution.current.limit_s = job["call_s"]
            watchdog.watch(solution)
            _run_grader(job, solution, emit)
    except SolutionStopped as stopped:
        emit("failed", failure=stopped.failure.as_dict())
    except BaseException:
        emit("fault", text=traceback.format_exc())
    watchdog.watch(None)
    release_memory_limit()
    sys.stdout.flush()
    sys.stderr.flush()
    emit("finished")


def _run_grader(job: dict[str, Any], solution: Solution, emit: Emit) -> None:
    import pytest

    from infra_lab.practice.pytest_plugin import GradePlugin, use_profile

    use_profile(job["examples"])
    pytest.main(
        [
            job["grader"],
            "-s",
            "--import-mode=importlib",
            "--noconftest",
            "--strict-markers",
            f"--rootdir={Path(job['grader']).parent}",
            "-c",
            os.devnull,
            *("-p", "no:cacheprovider", "-p", "no:terminal", "-p", "_hypothesis_pytestplugin"),
            *("-o", "python_files=grader.py"),
            f"--hypothesis-seed={job['seed']}",
        ],
        plugins=[GradePlugin(solution, emit, job["tests"], job["stop_first"])],
    )


def main() -> None:
    emit = Emitter()
    watchdog = Watchdog(emit)
    for line in sys.stdin:
        job = json.loads(line)
        emit.nonce = job["nonce"]
        for name in job["requires"]:
            __import__(name)
        __import__("pytest")
        __import__("hypothesis")
        limit_memory(job["memory_mb"])
        run_job(job, emit, watchdog)


if __name__ == "__main__":
    main()
