"""The grading process: each way in which a solution can go wrong has a verdict of its own, shows
the call, ends in time and leaves no process behind."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

from infra_lab.practice.grade import Verdict
from infra_lab.practice.grading_process import OUTPUT_KEPT, Output
from infra_lab.practice.sandbox import Sandbox, grade
from tests.practice.doubling import GRADER, RIGHT, STARTER, Graders, make_problem

LONGEST_S = 60.0  # for any of these grades, on a very busy machine


@pytest.fixture(scope="module")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Graders]:
    root = tmp_path_factory.mktemp("tiny")
    with Sandbox() as sandbox:
        yield Graders(make_problem(root), sandbox, root)


@pytest.fixture(autouse=True)
def no_process_is_left() -> Iterator[None]:
    """Every process that a test starts is a descendant of this one, or names the marker."""
    yield
    strays = [
        process
        for process in psutil.process_iter(["cmdline"])
        if "stray-of-a-solution" in " ".join(process.info["cmdline"] or [])
    ]
    for stray in strays:
        stray.kill()
    assert not strays


def test_a_right_solution_passes_and_its_calls_are_counted(tiny: Graders) -> None:
    result = tiny.grade(RIGHT)
    assert result.verdict is Verdict.PASSED
    assert [test.verdict for test in result.tests] == [Verdict.PASSED] * 3
    assert result.tests[0].calls == 1
    assert result.tests[1].calls >= 20
    assert result.tests[0].states == {"en": "twice 0 is 0", "zh": "0 的两倍是 0"}
    assert result.exit_status == 0


def test_without_the_follow_up_it_passes_and_the_follow_up_is_skipped(tiny: Graders) -> None:
    result = tiny.grade("def double(value): return 2 * value")
    assert result.verdict is Verdict.PASSED
    assert [test.skipped for test in result.tests] == [False, False, True]


def test_the_starter_is_unsolved(tiny: Graders) -> None:
    result = tiny.grade(STARTER)
    assert result.verdict is Verdict.UNSOLVED
    assert result.exit_status == 1


def test_a_wrong_answer_shows_the_smallest_call(tiny: Graders) -> None:
    result = tiny.grade("def double(value): return value * 2 if value < 100 else 0")
    failure = result.first_failure
    assert result.verdict is Verdict.WRONG_ANSWER
    assert failure is not None
    assert (failure.call, failure.got, failure.expected) == ("double(100)", "0", "200")


STOPPED = {
    "an endless loop": (
        "def double(value):\n    while True:\n        pass",
        Verdict.TIMED_OUT,
    ),
    "an endless loop that swallows every exception": (
        """
        def double(value):
            while True:
                try:
                    while True:
                        pass
                except BaseException:
                    pass
        """,
        Verdict.TIMED_OUT,
    ),
    "an endless sleep": ("import time\ndef double(value): time.sleep(1e6)", Verdict.TIMED_OUT),
    "one operation without an end, which holds the interpreter": (
        "def double(value): return sum(range(10**13))",
        Verdict.TIMED_OUT,
    ),
    "a memory bomb at once": (
        "def double(value): return len(bytearray(1 << 40))",
        Verdict.MEMORY_EXCEEDED,
    ),
    "a memory bomb by growth": (
        "def double(value):\n    kept = []\n    while True:\n        kept.append(bytes(1 << 20))",
        Verdict.MEMORY_EXCEEDED,
    ),
    "a memory bomb by lists": (
        "def double(value):\n    kept = []\n    while True:\n        kept.append([0] * 10**6)",
        Verdict.MEMORY_EXCEEDED,
    ),
    "sys.exit": ("import sys\ndef double(value): sys.exit(0)", Verdict.EXITED),
    "os._exit": ("import os\ndef double(value): os._exit(0)", Verdict.EXITED),
    "a crash of the interpreter": (
        "import ctypes\ndef double(value): return ctypes.string_at(0)",
        Verdict.EXITED,
    ),
    "a flood of prints": (
        "def double(value):\n    while True:\n        print('x' * 10000)",
        Verdict.OUTPUT_FLOOD,
    ),
}


@pytest.mark.parametrize("name", STOPPED)
def test_what_does_not_come_back_is_stopped_and_its_call_is_shown(tiny: Graders, name: str) -> None:
    source, verdict = STOPPED[name]
    started = time.monotonic()
    # On a busy machine half a second may be too short to fill the memory.
    result = tiny.grade(source, call_s=0.5 if verdict is Verdict.TIMED_OUT else 10.0)
    assert result.verdict is verdict, result.fault
    assert time.monotonic() - started < LONGEST_S
    failure = result.first_failure
    assert failure is not None
    assert failure.call == "double(0)"
    assert result.tests[0].verdict is verdict


AT_IMPORT = {
    "a loop": ("while True: pass", Verdict.TIMED_OUT),
    "sys.exit": ("import sys\nsys.exit(3)", Verdict.EXITED),
    "os._exit": ("import os\nos._exit(3)", Verdict.EXITED),
    "a memory bomb": ("kept = bytearray(1 << 40)", Verdict.MEMORY_EXCEEDED),
    "a flood": ("while True: print('x' * 10000)", Verdict.OUTPUT_FLOOD),
    "a missing module": ("import no_such_module_anywhere", Verdict.IMPORT_FAILED),
    "an exception": ("1 / 0", Verdict.IMPORT_FAILED),
    "a syntax error": ("def double(value)\n    return 2", Verdict.SYNTAX_ERROR),
    "a null byte": ("def double(value): return 2\0", Verdict.SYNTAX_ERROR),
    "another name": ("def duoble(value): return 2 * value", Verdict.MISSING_ENTRY_POINT),
    "a value of that name": ("double = 2", Verdict.MISSING_ENTRY_POINT),
    "nothing": ("", Verdict.MISSING_ENTRY_POINT),
}


@pytest.mark.parametrize("name", AT_IMPORT)
def test_what_goes_wrong_at_import_has_its_own_verdict(tiny: Graders, name: str) -> None:
    source, verdict = AT_IMPORT[name]
    started = time.monotonic()
    result = tiny.grade(source + "\n")
    assert result.verdict is verdict, result.fault
    assert result.failure is not None
    assert result.exit_status == 1
    assert time.monotonic() - started < LONGEST_S + 5
    if verdict is Verdict.TIMED_OUT:
        assert result.failure.call == "import solution.py"


def test_a_syntax_error_shows_the_line(tiny: Graders) -> None:
    failure = tiny.grade("x = 1\ndef double(value)\n    return 2\n").failure
    assert failure is not None
    assert (failure.line, failure.call) == (2, "def double(value)")


def test_a_misspelt_entry_point_is_shown_with_what_is_there(tiny: Graders) -> None:
    failure = tiny.grade("def duoble(value): return 2 * value").failure
    assert failure is not None
    assert "duoble" in failure.got
    assert "double" in failure.expected


def test_a_crash_shows_the_exception_and_the_line_of_the_solution(tiny: Graders) -> None:
    result = tiny.grade("def double(value):\n    half = value\n    return half / 0\n")
    failure = result.first_failure
    assert result.verdict is Verdict.CRASHED
    assert failure is not None
    assert failure.got == "ZeroDivisionError: division by zero"
    assert (failure.call, failure.line) == ("double(0)", 3)


def test_endless_recursion_is_a_crash(tiny: Graders) -> None:
    result = tiny.grade("def double(value): return double(value)")
    assert result.verdict is Verdict.CRASHED
    assert result.first_failure is not None
    assert result.first_failure.got.startswith("RecursionError")


@pytest.mark.parametrize(
    "raised", ["KeyboardInterrupt", "GeneratorExit", "StopIteration", "AssertionError('x')"]
)
def test_any_exception_is_the_solutions_own_crash(tiny: Graders, raised: str) -> None:
    result = tiny.grade(f"def double(value): raise {raised}")
    assert result.verdict is Verdict.CRASHED, result.fault
    assert result.first_failure is not None
    assert result.first_failure.call == "double(0)"


def test_exceptions_that_pytest_and_hypothesis_use_prove_nothing(tiny: Graders) -> None:
    """A solution that skips its own test is not passed."""
    for raised in (
        "import pytest\ndef double(value): pytest.skip('no')",
        "import pytest\ndef double(value): pytest.xfail('no')",
        "import pytest\ndef double(value): pytest.exit('no', 0)",
        "import unittest\ndef double(value): raise unittest.SkipTest",
        "import hypothesis\ndef double(value): hypothesis.reject()",
        "import hypothesis\ndef double(value): hypothesis.assume(False)",
    ):
        result = tiny.grade(raised)
        assert result.verdict is Verdict.CRASHED, (raised, result.verdict, result.fault)


def test_answers_drawn_at_random_are_never_passed(tiny: Graders) -> None:
    result = tiny.grade(
        """
        import random
        def double(value):
            return 2 * value + (random.SystemRandom().random() < 0.3 and value != 0)
        """
    )
    assert result.verdict in (Verdict.WRONG_ANSWER, Verdict.FLAKY)
    assert result.first_failure is not None
    assert result.first_failure.call.startswith("double(")


def test_an_answer_that_is_wrong_once_is_flaky_and_says_so(tiny: Graders) -> None:
    result = tiny.grade(
        """
        calls = 0
        def double(value):
            global calls
            calls += 1
            return 2 * value + (calls == 10)
        """
    )
    assert result.verdict is Verdict.FLAKY
    assert result.first_failure is not None
    assert result.first_failure.call.startswith("double(")
    assert "keeps state" in result.first_failure.note


WRONG_IN_DISGUISE = {
    "forged events on every file descriptor": """
        import json, os
        def double(value):
            for fd in range(3, 40):
                for event in ("collected", "passed", "finished"):
                    line = {"nonce": "", "event": event, "name": "test_zero", "tests": []}
                    try:
                        os.write(fd, (json.dumps(line) + "\\n").encode())
                    except OSError:
                        pass
            return 1
        """,
    "half a line on every file descriptor": """
        import os
        def double(value):
            for fd in range(3, 40):
                try:
                    os.write(fd, b'{"event": "passed", ')
                except OSError:
                    pass
            return 1
        """,
    "bytes that are no text": """
        import os
        def double(value):
            for fd in range(1, 40):
                try:
                    os.write(fd, b"\\xff\\x00\\n[1]\\nnull\\n7\\n")
                except OSError:
                    pass
            return 1
        """,
    "closed streams": """
        import sys
        def double(value):
            sys.stdin.close(); sys.stdout.close(); sys.stderr.close()
            return 1
        """,
    "no streams": """
        import sys
        sys.stdin = sys.stdout = sys.stderr = None
        def double(value):
            return 1
        """,
    "another folder, then removed": """
        import os, tempfile
        folder = tempfile.mkdtemp()
        os.chdir(folder)
        os.rmdir(folder)
        def double(value):
            return 1
        """,
    "no way to find modules": """
        import sys
        sys.path.clear()
        def double(value):
            return 1
        """,
    "the numbers that stand in its grader": """
        import inspect, re
        def double(value):
            for frame in inspect.stack():
                if frame.filename.endswith("grader.py"):
                    with open(frame.filename) as file:
                        return int(re.findall(r"\\d+", file.read())[-1])
        """,
    "an answer equal to everything": """
        class Any(int):
            def __eq__(self, other): return True
            def __int__(self): return 0
            __hash__ = int.__hash__
        def double(value):
            return Any(7)
        """,
}


@pytest.mark.parametrize("name", WRONG_IN_DISGUISE)
def test_a_wrong_answer_stays_one_whatever_else_the_solution_does(tiny: Graders, name: str) -> None:
    result = tiny.grade(WRONG_IN_DISGUISE[name])
    assert result.verdict is Verdict.WRONG_ANSWER, (result.verdict, result.fault)
    assert result.first_failure is not None
    assert result.first_failure.call.startswith("double(")


def test_closing_every_file_descriptor_ends_in_a_verdict(tiny: Graders) -> None:
    result = tiny.grade("import os\ndef double(value):\n    os.closerange(0, 100)\n    return 0")
    assert result.verdict is Verdict.EXITED


@pytest.mark.parametrize(
    "patch",
    [
        "import builtins\nbuiltins.sum = lambda *a: 0",
        "import time\ntime.monotonic = lambda: 0.0",
        "import hypothesis\nhypothesis.given = lambda **k: lambda f: (lambda solution: None)",
        "import hypothesis.strategies as st\nst.integers = lambda *a: st.just(0)",
        "import infra_lab.practice.equality as equality\nequality._equal = lambda a, b: True",
        "import infra_lab.practice.kit as kit\nkit.Call.equals = lambda *a: None",
        "import pytest\npytest.main = lambda *a, **k: 0",
    ],
)
def test_a_solution_that_replaces_parts_of_python_or_of_the_grader_is_refused(
    tiny: Graders, patch: str
) -> None:
    result = tiny.grade(f"{patch}\ndef double(value): return 0\n")
    assert result.verdict is Verdict.TAMPERED, result.fault
    assert result.first_failure is not None
    assert "replaced" in result.first_failure.got


def test_a_replacement_made_during_a_call_is_refused_too(tiny: Graders) -> None:
    result = tiny.grade(
        """
        def double(value):
            import infra_lab.practice.equality as equality
            equality._equal = lambda a, b: True
            return 0
        """
    )
    assert result.verdict is Verdict.TAMPERED


def test_a_replaced_clock_does_not_keep_an_endless_loop_alive(tiny: Graders) -> None:
    started = time.monotonic()
    result = tiny.grade(
        """
        import time
        def double(value):
            time.monotonic = time.time = time.perf_counter = lambda: 0.0
            while True:
                pass
        """
    )
    assert result.verdict in (Verdict.TIMED_OUT, Verdict.TAMPERED)
    assert time.monotonic() - started < LONGEST_S


def test_input_finds_an_empty_stdin_and_does_not_wait(tiny: Graders) -> None:
    result = tiny.grade("def double(value): return int(input())")
    assert result.verdict is Verdict.CRASHED
    assert result.first_failure is not None
    assert result.first_failure.got.startswith("EOFError")


def test_threads_that_outlive_the_grade_do_not_hold_it_up(tiny: Graders) -> None:
    result = tiny.grade(
        """
        import threading, time
        threading.Thread(target=time.sleep, args=(1e6,)).start()
        def double(value):
            return 2 * value
        """
    )
    assert result.verdict is Verdict.PASSED


@pytest.mark.parametrize("own_session", [False, True])
def test_processes_that_a_solution_starts_end_with_the_grade(
    tmp_path: Path, own_session: bool
) -> None:
    source = f"""
import subprocess, sys
subprocess.Popen(
    [sys.executable, "-c", "import time; time.sleep(600)", "stray-of-a-solution"],
    start_new_session={own_session},
)
def double(value):
    return 2 * value
"""
    path = tmp_path / "solution.py"
    path.write_text(source)
    assert grade(make_problem(tmp_path), path).verdict is Verdict.PASSED


@pytest.mark.skipif(sys.platform == "win32", reason="there is no fork")
def test_an_orphan_in_a_session_of_its_own_ends_with_the_grade(tmp_path: Path) -> None:
    source = """
import os, sys
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        os.execv(sys.executable, [sys.executable, "-c", "import time; time.sleep(600)",
                                  "stray-of-a-solution"])
    os._exit(0)
def double(value):
    return 2 * value
"""
    path = tmp_path / "solution.py"
    path.write_text(source)
    assert grade(make_problem(tmp_path), path).verdict is Verdict.PASSED


def test_what_is_printed_below_the_limit_is_kept(tiny: Graders) -> None:
    result = tiny.grade("def double(value):\n    print('值', value)\n    return 2 * value")
    assert result.verdict is Verdict.PASSED
    assert "值 0\n" in result.output
    assert tiny.grade(RIGHT).output == ""


def test_long_output_keeps_its_beginning_and_its_end(tiny: Graders) -> None:
    result = tiny.grade(
        "def double(value):\n    print('begin' + 'x' * 100_000 + 'end')\n    return 2 * value + 1"
    )
    assert result.output.startswith("begin")
    assert "bytes left out" in result.output
    assert len(result.output) < 3 * OUTPUT_KEPT


def test_output_is_waited_for_as_far_as_its_end_mark() -> None:
    """What is printed and the news that a file is graded come by two pipes."""
    reading, writing = os.pipe()
    output = Output()
    with os.fdopen(reading, "rb") as stream:
        thread = threading.Thread(target=output.read, args=(stream,), daemon=True)
        thread.start()
        os.write(writing, b"printed ")
        threading.Timer(0.2, lambda: os.write(writing, b"late\nMARK")).start()
        assert output.take("MARK") == "printed late\n"
        assert output.take() == ""
        started = time.monotonic()
        os.write(writing, b"more")
        assert output.take("MARK") == "more"  # the mark does not come
        assert 0.5 < time.monotonic() - started < 5
        os.close(writing)
        thread.join()


def test_a_process_that_does_not_start_is_no_fault_of_the_solution(tmp_path: Path) -> None:
    problem = replace(make_problem(tmp_path), requires=("no_such_library",))
    with Sandbox() as sandbox:
        grade = Graders(problem, sandbox, tmp_path).grade(RIGHT)
    assert grade.verdict is Verdict.GRADER_FAULT
    assert grade.exit_status == 3
    assert "No module named 'no_such_library'" in grade.fault


def test_the_same_seed_gives_the_same_grade(tiny: Graders) -> None:
    source = "def double(value): return 2 * value if value % 7 else 2 * value + (value > 50)"
    first, second = tiny.grade(source), tiny.grade(source)
    assert first.first_failure == second.first_failure
    assert [one.calls for one in first.tests] == [one.calls for one in second.tests]


def test_after_a_file_that_broke_the_process_the_next_is_graded_as_ever(tiny: Graders) -> None:
    assert tiny.grade("import os\ndef double(value): os._exit(1)").verdict is Verdict.EXITED
    assert tiny.grade(RIGHT).verdict is Verdict.PASSED


def test_state_of_one_file_does_not_reach_the_next(tiny: Graders) -> None:
    tiny.grade("import sys\nsys.setrecursionlimit(200)\nimport os\nos.chdir('/')\n" + RIGHT)
    leak = (
        "import os\nwhere = os.getcwd()\ndef double(value): return 2 * value if where != '/' else 0"
    )
    assert tiny.grade(leak).verdict is Verdict.PASSED


def test_each_problem_is_graded_by_its_own_grader_in_one_process(
    tiny: Graders, tmp_path: Path
) -> None:
    halving = make_problem(tmp_path, grader=GRADER.replace("value + value", "value"))
    with Sandbox() as sandbox:
        for _ in range(2):
            assert sandbox.grade(tiny.problem, tiny.file(RIGHT)).verdict is Verdict.PASSED
            assert sandbox.grade(halving, tiny.file(RIGHT)).verdict is Verdict.WRONG_ANSWER


def test_an_edited_grader_is_read_again(tmp_path: Path) -> None:
    problem = make_problem(tmp_path)
    path = tmp_path / "solution.py"
    path.write_text(RIGHT)
    with Sandbox() as sandbox:
        assert sandbox.grade(problem, path).verdict is Verdict.PASSED
        problem.grader.write_text(GRADER.replace(".equals(0)", ".equals(1)"))
        assert sandbox.grade(problem, path).verdict is Verdict.WRONG_ANSWER


def test_a_file_that_cannot_be_read_is_said_so(tiny: Graders, tmp_path: Path) -> None:
    with Sandbox() as sandbox:
        result = sandbox.grade(tiny.problem, tmp_path / "nowhere.py")
        assert result.verdict is Verdict.IMPORT_FAILED
        latin = tmp_path / "latin.py"
        latin.write_bytes(b"# caf\xe9\ndef double(value): return 2 * value\n")
        assert sandbox.grade(tiny.problem, latin).verdict is Verdict.SYNTAX_ERROR


def test_only_the_named_tests_run(tiny: Graders) -> None:
    with Sandbox() as sandbox:
        path = tiny.file("def double(value): return 0")
        assert sandbox.grade(tiny.problem, path, tests=["test_zero"]).verdict is Verdict.PASSED
        result = sandbox.grade(tiny.problem, path, tests=["test_sum"])
        assert [one.name for one in result.tests] == ["test_sum"]
        assert result.verdict is Verdict.WRONG_ANSWER


def test_a_grade_leaves_no_thread_and_no_open_file(tiny: Graders) -> None:
    process = psutil.Process()
    with Sandbox() as sandbox:
        sandbox.grade(tiny.problem, tiny.file(RIGHT))
    threads, files = threading.active_count(), len(process.open_files())
    handles = process.num_fds() if os.name == "posix" else 0
    for _ in range(3):
        with Sandbox() as sandbox:
            sandbox.grade(tiny.problem, tiny.file(RIGHT))
    assert threading.active_count() <= threads
    assert len(process.open_files()) <= files
    assert (process.num_fds() if os.name == "posix" else 0) <= handles


def test_a_seed_draws_the_same_inputs_for_every_solution(tmp_path: Path) -> None:
    """Hypothesis would draw constants of the code it has seen: this file's and others'."""
    problem = make_problem(tmp_path)
    prints = "def double(value):\n    print(value)\n    return 2 * value\n"
    numbers = f"NUMBERS = {[*range(-999, 1000, 7)]}\n"
    outputs = []
    for number, sources in enumerate(([prints], [numbers + prints], [numbers + prints, prints])):
        folder = tmp_path / str(number)
        folder.mkdir()
        with Sandbox() as sandbox:
            graders = Graders(problem, sandbox, folder)
            outputs.append([graders.grade(source).output for source in sources][-1])
    assert outputs[0].strip()
    assert outputs == [outputs[0]] * 3
