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
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep  # by name: a solution may replace those of the module
from typing import Any

from infra_lab.practice.failures import CallTimedOut, Failure, SolutionStopped
from infra_lab.practice.integrity import Integrity
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
        self._import_text = ""
        self._fired = False
        threading.Thread(target=self._run, daemon=True).start()

    def watch_import(self, text: str, limit_s: float) -> None:
        self._import_text, self._import_limit_s, self._fired = text, limit_s, False
        self._importing_since = monotonic()

    def watch(self, solution: Solution | None) -> None:
        self._importing_since = None
        self._solution, self._fired = solution, False

    def _run(self) -> None:
        while True:
            sleep(HEARTBEAT_S)
            since, limit_s, text = self._importing_since, self._import_limit_s, self._import_text
            if self._solution is not None:
                current = self._solution.current
                since, limit_s = current.since, current.limit_s
            if since is None:
                self._fired = False
            elif monotonic() - since > limit_s and not self._fired:
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
        self._fd = os.dup(1)
        os.dup2(2, 1)
        self._lock = threading.Lock()
        self._pid = os.getpid()
        self.nonce = ""

    def __call__(self, event: str, **fields: Any) -> None:
        if os.getpid() != self._pid:
            os._exit(0)  # a copy that the solution forked: one process grades
        # A newline before it too: a solution may have written half a line here.
        text = "\n" + json.dumps({"nonce": self.nonce, "event": event, **fields}) + "\n"
        rest = text.encode()
        with self._lock:
            while rest:
                rest = rest[os.write(self._fd, rest) :]


class Surroundings:
    """What a solution or a grader may change for the files that are graded after it."""

    def __init__(self) -> None:
        self._streams = sys.stdin, sys.stdout, sys.stderr
        self._folder = Path.cwd()
        self._recursion_limit = sys.getrecursionlimit()
        self._threads = threading.active_count()
        self._path = [*sys.path]
        self._modules = {*sys.modules}

    def restore(self) -> None:
        sys.stdin, sys.stdout, sys.stderr = self._streams
        sys.setrecursionlimit(self._recursion_limit)
        sys.path[:] = self._path
        for name in {*sys.modules} - self._modules:
            # Every grader is called grader: pytest would take this one for the next.
            file = getattr(sys.modules[name], "__file__", None)
            if file is not None and Path(file).name == "grader.py":
                del sys.modules[name]
        with suppress(OSError):
            os.chdir(self._folder)
        for stream in (sys.stdout, sys.stderr):
            with suppress(OSError, ValueError):
                stream.flush()

    def are_clean(self) -> bool:
        """Whether nothing is left that cannot be restored."""
        are_open = not any(stream.closed for stream in self._streams)
        return are_open and threading.active_count() <= self._threads and not _has_children()


def draw_no_constants() -> None:
    """Keeps hypothesis from drawing numbers and texts that stand in the source of modules it has
    seen: the inputs of a grade would depend on the solution, on what was graded before and on
    where the repository lies. There is no public way; a test holds this one."""
    from hypothesis.internal.conjecture import providers

    none = providers._local_constants
    providers._get_local_constants = lambda: none


def _has_children() -> bool:
    if hasattr(os, "WNOHANG"):
        try:
            os.waitpid(-1, os.WNOHANG)  # far quicker than to look through all processes
        except ChildProcessError:
            return False
        return True
    import psutil

    return bool(psutil.Process().children())


def run_job(job: dict[str, Any], emit: Emit, watchdog: Watchdog) -> None:
    """Grades one file; the last event is "finished"."""
    surroundings = Surroundings()
    integrity = Integrity()
    file = Path(job["file"])
    is_intact = True
    limit_memory(job["memory_mb"])
    try:
        watchdog.watch_import(f"import {file.name}", job["import_s"])
        module = load_solution(file)
        watchdog.watch(None)
        surroundings.restore()
        failure = _tampering(integrity) or missing_entry_point(module, job["entry_points"])
        if failure is not None:
            emit("failed", failure=failure.as_dict())
        else:
            solution = Solution(module)
            solution.passes_interrupts_on = False  # no keyboard is here: it raised them itself
            solution.current.limit_s = job["call_s"]
            if job["announce"]:
                solution.current.announce = lambda text: emit("call", call=text)
            watchdog.watch(solution)
            _run_grader(job, solution, emit)
            failure = _tampering(integrity)
            if failure is not None:
                emit("failed", failure=failure.as_dict())
        is_intact = failure is None or failure.verdict != "tampered"
    except SolutionStopped as stopped:
        emit("failed", failure=stopped.failure.as_dict())
    except BaseException:
        emit("fault", text=traceback.format_exc())
        is_intact = False
    watchdog.watch(None)
    release_memory_limit()
    surroundings.restore()
    with suppress(OSError):
        os.write(2, job["end_of_output"].encode())  # what was printed comes by a pipe of its own
    emit("finished", is_clean=is_intact and surroundings.are_clean())


def _tampering(integrity: Integrity) -> Failure | None:
    name = integrity.replaced()
    if name is None:
        return None
    return Failure("tampered", "", f"{name} was replaced", "Python and the grader left as they are")


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
            # What a solution's generators and threads leave behind is no fault of the grader's.
            *("-p", "no:unraisableexception", "-p", "no:threadexception"),
            *("-p", "no:faulthandler"),  # whose frames would be ours, in the solution's output
            *("-o", "python_files=grader.py"),
            f"--hypothesis-seed={job['seed']}",
        ],
        plugins=[GradePlugin(solution, emit, job["tests"], job["stop_first"])],
    )


def main() -> None:
    emit = Emitter()
    jobs = os.fdopen(os.dup(0), encoding="utf-8")
    with Path(os.devnull).open("rb") as nothing:
        os.dup2(nothing.fileno(), 0)  # what a solution reads from stdin is its own fault
    watchdog = Watchdog(emit)
    for line in jobs:
        job = json.loads(line)
        emit.nonce = job["nonce"]
        for name in ("pytest", "hypothesis", "infra_lab.practice.pytest_plugin", *job["requires"]):
            __import__(name)
        draw_no_constants()
        emit("ready")
        run_job(job, emit, watchdog)


if __name__ == "__main__":
    main()
