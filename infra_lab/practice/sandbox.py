"""Runs grading processes under limits and writes the grades: wall clock, CPU time, memory,
output. It uses no signals and no fork, so that it works on every system.
"""

from __future__ import annotations

import json
import queue
import secrets
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Self

from infra_lab.practice.failures import Failure
from infra_lab.practice.grade import Grade, TestResult, Verdict
from infra_lab.practice.grading_process import GradingProcess
from infra_lab.practice.problem import Problem

OUTPUT_LIMIT = 4 << 20  # bytes of output from which it is a flood
POLL_S = 0.05
STUCK_S = 5.0  # without a heartbeat, beyond the limit of one call
GRACE_S = 2.0  # for a call to end that was told to
IMPORT_S = 10.0  # for a solution's file to load, libraries included
START_S = 60.0  # for Python and the libraries to load, on a slow disk
EXAMPLES = 100


class Sandbox:
    """Grades files one after another, as a context manager.

    The process is kept for the next file unless a solution broke it, which is for files of our
    own: a learner's file gets a Sandbox of its own.
    """

    def __init__(self) -> None:
        self._child: GradingProcess | None = None

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
            "file": str(file.resolve()),
            "grader": str(problem.grader.resolve()),
            "entry_points": problem.required_names,
            "requires": list(problem.requires),
            "tests": None if tests is None else list(tests),
            "seed": seed,
            "stop_first": stop_first,
            "call_s": limit_s,
            "import_s": max(limit_s, IMPORT_S),
            "memory_mb": problem.budget.memory_mb,
            "examples": examples,
            "announce": False,
        }
        started = time.monotonic()
        run = self._run(problem, job)
        if run.lost_the_call is not None:
            # The process ended before it could say in which call. The seed gives the same calls
            # again, and this time each is named before it begins.
            again = self._run(problem, job | {"tests": [run.lost_the_call], "announce": True})
            run.take_call_from(again)
        run.grade.elapsed_s = time.monotonic() - started
        return run.grade

    def _run(self, problem: Problem, job: dict[str, Any]) -> _Run:
        if self._child is None or not self._child.is_alive():
            self.close()
            self._child = GradingProcess()
        run = _Run(
            problem,
            self._child,
            job | {"nonce": secrets.token_hex(16), "end_of_output": secrets.token_hex(16)},
        )
        run.finish()
        if not run.child_is_clean:
            self.close()
        return run


def grade(problem: Problem, file: Path, seed: int = 0) -> Grade:
    """Grades one file in a process of its own."""
    with Sandbox() as sandbox:
        return sandbox.grade(problem, file, seed=seed)


class _Run:
    """One job: follows its events and limits, and writes the grade."""

    def __init__(self, problem: Problem, child: GradingProcess, job: dict[str, Any]) -> None:
        self._problem = problem
        self._child = child
        self._job = job
        self._call_s: float = job["call_s"]
        self.grade = Grade(problem.slug, Verdict.PASSED)
        self._tests: dict[str, TestResult] = {}
        self._running: TestResult | None = None
        self._last_call = ""
        self._told_to_end: float | None = None
        self._is_finished = False
        self._is_ready = False
        self._collected = False
        self.child_is_clean = False
        self.lost_the_call: str | None = None  # the test during which the process was lost

    def finish(self) -> None:
        self._child.send(self._job)
        failure = self._follow()
        if failure is not None:
            self.child_is_clean = False
            self._child.kill()
            self._blame(failure)
        end = self._job["end_of_output"] if self._is_finished else ""
        self.grade.output = self._child.output.take(end)
        self.grade.tests = list(self._tests.values())
        self._conclude()

    def take_call_from(self, again: _Run) -> None:
        """The call during which the second run ended as this one did."""
        first, second = self.grade.failed_tests(), again.grade.failed_tests()
        if first and second and first[-1].verdict is second[-1].verdict:
            assert first[-1].failure is not None
            first[-1].failure = replace(first[-1].failure, call=again._last_call)

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
                    return self._died() if self._is_ready else self._did_not_start()
                event = self._parse(line)
                if event is not None:
                    last_event = time.monotonic()
                    self._handle(event)
                    if self._is_finished:
                        return None
                    if self._is_ready and not is_started:
                        is_started, started = True, last_event
                        memory_at_start, cpu_at_start = self._child.usage()
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
            limit_s = self._call_s if self._collected else self._job["import_s"]
            is_deaf = self._told_to_end is not None and now - self._told_to_end > GRACE_S
            if is_deaf or now - last_event > limit_s + STUCK_S:
                got = f"no answer after {limit_s:g} s"
                return self._broken("timed_out", got, "an answer in time")
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
        if kind == "alive":
            return
        self._told_to_end = time.monotonic() if kind == "slow" else None
        if kind == "finished":
            self._is_finished = True
            self.child_is_clean = event["is_clean"]
        elif kind == "ready":
            self._is_ready = True
        elif kind == "collected":
            self._collected = True
            for test in event["tests"]:
                self._tests[test["name"]] = TestResult(
                    test["name"], test["states"], test["follow_up"]
                )
        elif kind in ("slow", "call"):
            self._last_call = event["call"]
        elif kind == "fault":
            self.grade.fault = event["text"]
        elif kind == "failed":
            self.grade.failure = Failure(**event["failure"])
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

    def _did_not_start(self) -> Failure:
        """Before any code of the solution ran: a library is missing, say."""
        self._child.kill()
        said = self._child.output.take().strip().splitlines()
        reason = said[-1] if said else f"status {self._child.status}"
        return Failure("grader_fault", note=f"the grading process did not start: {reason}")

    def _died(self) -> Failure:
        self._child.kill()
        status = self._child.status or 0
        got = f"the process ended by itself, with status {status}"
        if status < 0:
            got = f"the process ended by itself, by signal {-status}"
        return self._broken("exited", got, "an answer")

    def _broken(self, verdict: str, got: str, expected: str) -> Failure:
        return Failure(verdict, self._last_call, got, expected)

    def _blame(self, failure: Failure) -> None:
        if failure.verdict == "grader_fault":
            self.grade.fault = failure.note
        elif self._running is not None:
            self._running.failure = failure
            self._running.verdict = Verdict(failure.verdict)
            if not failure.call:
                self.lost_the_call = self._running.name.split("[")[0]
        else:
            self.grade.failure = failure

    def _conclude(self) -> None:
        grade = self.grade
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
