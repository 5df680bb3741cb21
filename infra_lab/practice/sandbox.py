"""Runs grading processes under limits and writes the grades: wall clock, CPU time, memory,
output. It uses no signals and no fork, so that it works on every system.
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
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any, Self

import psutil

from infra_lab.practice.failures import Failure
from infra_lab.practice.grade import Grade, TestResult, Verdict
from infra_lab.practice.problem import Problem

OUTPUT_KEPT = 8 << 10  # characters of a solution's output that a grade keeps, at either end
OUTPUT_LIMIT = 4 << 20  # bytes of output from which it is a flood
POLL_S = 0.05
STUCK_S = 5.0  # without a heartbeat, beyond the limit of one call
START_S = 60.0  # for Python and the libraries to load, on a slow disk
EXAMPLES = 100


class Sandbox:
    """Grades files one after another, as a context manager.

    The process is kept for the next file unless a solution broke it, which is for files of our
    own: a learner's file gets a Sandbox of its own.
    """

    def __init__(self) -> None:
        self._child: _Child | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if self._child is not None:
            self._child.kill()
            self._child = None

    def grade(
        self,
        problem: Problem,
        file: Path,
        tests: Sequence[str] | None = None,
        seed: int = 0,
        stop_first: bool = False,
        call_s: float | None = None,
        examples: int = EXAMPLES,
    ) -> Grade:
        """Grades one file.

        Args:
            tests: names of test functions; None runs all.
            seed: of the generated inputs; the same seed gives the same inputs.
            stop_first: end with the first failure.
            call_s: another limit for one call than the problem's.
            examples: inputs a property is tried on, where the grader names no number.
        """
        limit_s = problem.budget.call_s if call_s is None else call_s
        job = {
            "nonce": secrets.token_hex(16),
            "file": str(file.resolve()),
            "grader": str(problem.grader.resolve()),
            "entry_points": [e.name for e in problem.entry_points if not e.is_follow_up],
            "requires": list(problem.requires),
            "tests": None if tests is None else list(tests),
            "seed": seed,
            "stop_first": stop_first,
            "call_s": limit_s,
            "memory_mb": problem.budget.memory_mb,
            "examples": examples,
        }
        if self._child is None or not self._child.is_alive():
            self._child = _Child()
        started = time.monotonic()
        run = _Run(problem, self._child, job, limit_s)
        grade = run.finish()
        grade.elapsed_s = time.monotonic() - started
        if not run.child_is_clean:
            self.close()
        return grade


def grade(problem: Problem, file: Path, seed: int = 0) -> Grade:
    """Grades one file in a process of its own."""
    with Sandbox() as sandbox:
        return sandbox.grade(problem, file, seed=seed)


class _Child:
    """A grading process, and threads that read what it says."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="infra-lab-", ignore_cleanup_errors=True)
        environment = os.environ | {
            "PYTHONHASHSEED": "0",
            "PYTHONIOENCODING": "utf-8:backslashreplace",
            "PYTHONDONTWRITEBYTECODE": "1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
            "MKL_NUM_THREADS": "1",
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
        self.events: queue.Queue[bytes | None] = queue.Queue()
        self.output = _Output()
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
        """Ends it and whatever it started."""
        processes = [self._handle]
        with suppress(psutil.Error):
            processes += self._handle.children(recursive=True)
        for process in processes:
            with suppress(psutil.Error):
                process.kill()
        self._process.wait()
        for stream in (self._process.stdin, self._process.stdout, self._process.stderr):
            if stream is not None:
                with suppress(OSError):
                    stream.close()
        self._folder.cleanup()

    def join_output(self) -> None:
        for reader in self._readers:
            reader.join(timeout=1.0)

    def _read_events(self, stream: IO[bytes]) -> None:
        with suppress(OSError, ValueError):  # closed while reading
            for line in stream:
                self.events.put(line)
        self.events.put(None)


class _Output:
    """The beginning and the end of what a solution prints, and how much it was."""

    def __init__(self) -> None:
        self.size = 0
        self._head = b""
        self._tail = b""

    def read(self, stream: IO[bytes]) -> None:
        with suppress(OSError, ValueError):
            while chunk := os.read(stream.fileno(), 1 << 16):
                self.size += len(chunk)
                missing = OUTPUT_KEPT - len(self._head)
                self._head += chunk[:missing]
                self._tail = (self._tail + chunk[max(missing, 0) :])[-OUTPUT_KEPT:]

    def take(self) -> str:
        """The text so far, which is then forgotten."""
        left_out = self.size - len(self._head) - len(self._tail)
        middle = f"\n... {left_out:,} bytes left out ...\n".encode() if left_out > 0 else b""
        text = (self._head + middle + self._tail).decode("utf-8", "replace")
        self.size, self._head, self._tail = 0, b"", b""
        return text


class _Run:
    """One job: follows its events and limits, and writes the grade."""

    def __init__(self, problem: Problem, child: _Child, job: dict[str, Any], call_s: float) -> None:
        self._problem = problem
        self._child = child
        self._job = job
        self._call_s = call_s
        self._grade = Grade(problem.slug, Verdict.PASSED)
        self._tests: dict[str, TestResult] = {}
        self._running: TestResult | None = None
        self._slow_call = ""
        self._is_finished = False
        self._collected = False
        self.child_is_clean = False

    def finish(self) -> Grade:
        self._child.send(self._job)
        failure = self._follow()
        self.child_is_clean = failure is None and self._is_finished
        if failure is not None:
            self._child.kill()
            self._child.join_output()
            self._blame(failure)
        self._grade.output = self._child.output.take()
        self._grade.tests = list(self._tests.values())
        self._conclude()
        return self._grade

    def _follow(self) -> Failure | None:
        """Until the job is finished (None) or broke a limit."""
        budget = self._problem.budget
        started = last_event = time.monotonic()
        memory_at_start, cpu_at_start, is_started = 0, 0.0, False
        next_look = started
        while True:
            try:
                line = self._child.events.get(timeout=POLL_S)
            except queue.Empty:
                pass
            else:
                if line is None:
                    return self._died()
                event = self._parse(line)
                if event is not None:
                    now = last_event = time.monotonic()
                    if not is_started:
                        is_started, started = True, now
                        memory_at_start, cpu_at_start = self._child.usage()
                    self._handle(event)
                    if self._is_finished:
                        return None
            now = time.monotonic()
            if self._child.output.size > OUTPUT_LIMIT:
                printed = f"{OUTPUT_LIMIT >> 20} MiB printed"
                return self._broken("output_flood", f"more than {printed}", "less output")
            if not is_started:
                if now - started > START_S:
                    return Failure("grader_fault", note="the grading process does not start")
                continue
            if now - started > budget.wall_s:
                return self._broken("timed_out", f"no end in {budget.wall_s:g} s", "an end in time")
            if now - last_event > self._call_s + STUCK_S:
                return self._broken(
                    "timed_out", "no answer yet", f"an answer in {self._call_s:g} s"
                )
            if now >= next_look:
                next_look = now + 2 * POLL_S
                memory, cpu = self._child.usage()
                if memory - memory_at_start > budget.memory_mb << 20:
                    got = f"more than {budget.memory_mb} MiB in use"
                    return self._broken("memory_exceeded", got, "an answer in less memory")
                if cpu - cpu_at_start > budget.cpu_s:
                    got = f"more than {budget.cpu_s:g} s of CPU time used"
                    return self._broken("timed_out", got, "an end in time")

    def _parse(self, line: bytes) -> dict[str, Any] | None:
        """An event of this job; None for anything else that came this way."""
        try:
            event: dict[str, Any] = json.loads(line)
            return event if event["nonce"] == self._job["nonce"] else None
        except (ValueError, KeyError, TypeError):
            return None

    def _handle(self, event: dict[str, Any]) -> None:
        kind = event["event"]
        if kind == "finished":
            self._is_finished = True
        elif kind == "collected":
            self._collected = True
            for test in event["tests"]:
                self._tests[test["name"]] = TestResult(
                    test["name"], test["states"], test["follow_up"]
                )
        elif kind == "slow":
            self._slow_call = event["call"]
        elif kind == "fault":
            self._grade.fault = event["text"]
        elif kind == "failed":
            self._grade.failure = Failure(**event["failure"])
        elif kind in ("started", "passed", "skipped", "test_failed"):
            self._handle_test(kind, event)

    def _handle_test(self, kind: str, event: dict[str, Any]) -> None:
        test = self._tests[event["name"]]
        if kind == "started":
            self._running = test
            return
        self._running = None
        test.calls = event.get("calls", 0)
        if kind == "skipped":
            test.skipped = True
        elif kind == "passed":
            test.verdict = Verdict.PASSED
            test.budgets = {name: (used, of) for name, (used, of) in event["budgets"].items()}
        else:
            test.failure = Failure(**event["failure"])
            test.verdict = Verdict(test.failure.verdict)

    def _died(self) -> Failure:
        self._child.kill()
        got = f"the process ended by itself, with status {self._child.status}"
        return self._broken("exited", got, "an answer")

    def _broken(self, verdict: str, got: str, expected: str) -> Failure:
        where = f"in: {self._running.states['en']}" if self._running is not None else ""
        return Failure(verdict, self._slow_call, got, expected, where)

    def _blame(self, failure: Failure) -> None:
        if failure.verdict == "grader_fault":
            self._grade.fault = failure.note
        elif self._running is not None:
            self._running.failure = failure
            self._running.verdict = Verdict(failure.verdict)
        else:
            self._grade.failure = failure

    def _conclude(self) -> None:
        grade = self._grade
        failure = grade.first_failure
        if grade.fault:
            grade.verdict = Verdict.GRADER_FAULT
        elif failure is not None:
            grade.verdict = Verdict(failure.verdict)
        elif not grade.tests:
            grade.verdict = Verdict.GRADER_FAULT
            grade.fault = "the grader has no tests: nothing was graded"
        elif any(test.verdict is None and not test.skipped for test in grade.tests):
            grade.verdict = Verdict.GRADER_FAULT
            grade.fault = "some tests did not run, and nothing says why"
        elif all(test.skipped for test in grade.tests):
            grade.verdict = Verdict.GRADER_FAULT
            grade.fault = "every test was skipped: nothing was graded"
