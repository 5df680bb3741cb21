"""Faults that people reported of other exercise systems, each tried on this one.

Not here: 8 to 11 (paths, watching, state and reset), which concern the commands and stand in
their tests; 25 (a race in an official solution) and 33 (the interpreter of kernels), which
concern kernels and stand in tests/kernels.
"""

from __future__ import annotations

import ast
import json
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

import infra_lab.practice
from infra_lab.practice import catalog
from infra_lab.practice.folder_check import check_folder
from infra_lab.practice.grade import FAIL, FAULT, Grade, Verdict
from infra_lab.practice.problem import ProblemError, load_problem
from infra_lab.practice.sandbox import Sandbox, grade
from tests.practice.doubling import (
    GRADER,
    RIGHT,
    STARTER,
    TOML,
    Graders,
    make_problem,
    make_whole_problem,
)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as sandbox:
        yield sandbox


@pytest.fixture
def tiny(tmp_path: Path, sandbox: Sandbox) -> Graders:
    return Graders(make_problem(tmp_path), sandbox, tmp_path)


def with_grader(tmp_path: Path, sandbox: Sandbox, grader: str) -> Graders:
    return Graders(make_problem(tmp_path, grader=grader), sandbox, tmp_path)


def catalog_graders(slug: str, tmp_path: Path, sandbox: Sandbox) -> Graders:
    return Graders(catalog.load(slug), sandbox, tmp_path)


# 1: rustlings#1873, a function that returns 0 passed. 6: rustlings#108, the constant 1 passed.
@pytest.mark.parametrize("constant", ["0", "1", "2", "None", "True", "0.0", "[]"])
def test_a_constant_is_rejected(tiny: Graders, constant: str) -> None:
    result = tiny.grade(f"def double(value): return {constant}")
    assert result.verdict is Verdict.WRONG_ANSWER
    assert result.exit_status == FAIL


# 2: rustlings#152, a test that says `assert False` passed, because it was only compiled.
def test_a_grader_that_always_fails_does_fail(tmp_path: Path, sandbox: Sandbox) -> None:
    always = GRADER.replace(".equals(0)", '.fail("anything else")')
    assert with_grader(tmp_path, sandbox, always).grade(RIGHT).verdict is Verdict.WRONG_ANSWER


# 3: rustlings#187, the file with the tests was never run.
@pytest.mark.parametrize(
    "grader",
    [
        "",
        GRADER.replace("def test_", "def check_"),
        GRADER.replace("import given", "import give"),
        "import pytest\n\npytest.skip('not today', allow_module_level=True)\n",
    ],
    ids=["empty", "misnamed", "broken", "skipped"],
)
def test_a_grader_that_runs_no_test_is_its_own_fault(
    tmp_path: Path, sandbox: Sandbox, grader: str
) -> None:
    result = with_grader(tmp_path, sandbox, grader).grade(RIGHT)
    assert result.verdict is Verdict.GRADER_FAULT
    assert result.exit_status == FAULT
    assert result.fault


# 5: rustlings#294 and PR#144, the unsolved exercise passed.
def test_the_unsolved_starter_is_rejected(tiny: Graders) -> None:
    result = tiny.grade(STARTER)
    assert result.verdict is Verdict.UNSOLVED
    assert result.exit_status == FAIL


# 12: exercism/exercism#6006, a time-out was shown as an error without a word of what and where.
def test_a_time_out_says_the_limit_the_test_and_the_input(tiny: Graders) -> None:
    result = tiny.grade("def double(value):\n    while value > 99: pass\n    return 2 * value")
    assert result.verdict is Verdict.TIMED_OUT
    (failed,) = result.failed_tests()
    assert failed.name == "test_sum"
    assert failed.failure is not None
    assert failed.failure.got == "no answer after 0.5 s"
    assert failed.failure.call.startswith("double(")
    shown = result.exercism()
    assert shown["verdict"] == "timed_out"
    messages = [test["message"] for test in shown["tests"] if test["status"] == "error"]
    assert "no answer after 0.5 s" in messages[0]
    assert "double(" in messages[0]


# 14: jetbrains-academy/introduction_to_python PR#96, NousResearch/hermes-agent#39880: time limits
# by SIGALRM, which Windows does not have.
def test_limits_need_no_signal_and_no_fork(tiny: Graders, monkeypatch: pytest.MonkeyPatch) -> None:
    for path in Path(infra_lab.practice.__file__).parent.glob("*.py"):
        tree = ast.parse(path.read_text(encoding="utf-8"))
        imported = {
            name.name
            for node in ast.walk(tree)
            if isinstance(node, ast.Import)
            for name in node.names
        }
        assert not imported & {"signal", "fcntl", "pwd", "multiprocessing"}, path.name
    monkeypatch.delattr(signal, "SIGALRM", raising=False)
    assert tiny.grade("def double(value):\n    while True: pass").verdict is Verdict.TIMED_OUT


# 15: allure-python#641, the process was ended by a time-out, and the report with it.
def test_the_report_outlives_the_process(tiny: Graders) -> None:
    result = tiny.grade(
        "import os\ndef double(value): return 2 * value if not value else os._exit(1)"
    )
    assert result.verdict is Verdict.EXITED
    assert [test.verdict for test in result.tests] == [Verdict.PASSED, Verdict.EXITED, None]
    assert result.tests[1].failure is not None
    assert result.tests[1].failure.call.startswith("double(")
    assert json.dumps(result.exercism())


STACK_TOML = TOML.replace("double(value: int) -> int", "Stack(items: list[int])").replace(
    '"double"', '"Stack"'
)
STACK_GRADER = '''\
"""Grades a stack, with two of them alive at once."""

from infra_lab.practice.kit import Solution, states


@states("two stacks share nothing", "两个栈互不共享")
def test_two_stacks(solution: Solution) -> None:
    first, second = solution.new("Stack"), solution.new("Stack")
    first.call("push", 1)
    second.call("size").equals(0)
    first.call("size").equals(1)
'''


# 17: exercism/python PR#1414, state shared between tests by `def __init__(self, items=[])`.
def test_state_that_objects_share_is_rejected(tmp_path: Path, sandbox: Sandbox) -> None:
    problem = make_problem(tmp_path, grader=STACK_GRADER, toml=STACK_TOML)
    stacks = Graders(problem, sandbox, tmp_path)
    source = """
        class Stack:
            def __init__(self, items={default}):
                self.items = {own}
            def push(self, item):
                self.items.append(item)
            def size(self):
                return len(self.items)
        """
    shared = stacks.grade(source.format(default="[]", own="items"))
    assert shared.verdict is Verdict.WRONG_ANSWER
    assert shared.first_failure is not None
    assert shared.first_failure.call == "stack = Stack()\nstack.size()"
    assert stacks.grade(source.format(default="()", own="[*items]")).verdict is Verdict.PASSED


# 20: Deep-ML#526, #338, #412: right numbers were rejected for their rounding.
def test_numbers_are_compared_with_a_tolerance_and_never_as_text(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    grader = GRADER.replace(".equals(value + value)", ".close_to(2.0 * value, rtol=1e-9)")
    thirds = with_grader(tmp_path, sandbox, grader)
    source = "def double(value): return {} * 6 if value else 0"
    assert thirds.grade(source.format("value / 3")).verdict is Verdict.PASSED
    assert thirds.grade(source.format("round(value / 3, 4)")).verdict is Verdict.WRONG_ANSWER


# 22: Deep-ML#382, the reference solution was wrong, and was the oracle.
def test_a_wrong_reference_solution_is_noticed(tmp_path: Path, sandbox: Sandbox) -> None:
    problem = make_whole_problem(tmp_path)
    solution = problem.approaches()[0]
    solution.write_text(RIGHT.replace("value + value", "value * value"))
    faults = check_folder(problem, sandbox).all_faults
    assert any("solution.py is right, but was wrong_answer" in fault for fault in faults)


# 23: Deep-ML#496, a comma was missing, and some tests were not run.
def test_a_slip_in_the_files_of_a_problem_is_a_fault(tmp_path: Path, sandbox: Sandbox) -> None:
    problem = make_problem(tmp_path, toml=TOML)
    broken = problem.folder / "problem.toml"
    broken.write_text(TOML.replace("tags = []", 'tags = ["a" "b"]'))
    with pytest.raises(ProblemError, match=r"problem\.toml"):
        load_problem(problem.folder, problem.solutions.parent)
    problem.grader.write_text(
        GRADER.replace("solution: Solution, value", "solution: Solution value")
    )
    result = Graders(problem, sandbox, tmp_path).grade(RIGHT)
    assert result.verdict is Verdict.GRADER_FAULT


# 26: KernelBench PR#82, a kernel that zeroes its inputs, or returns stale memory, passed.
def test_a_solution_that_spoils_its_input_is_rejected(tiny: Graders) -> None:
    result = tiny.grade(
        RIGHT.replace(
            "return [double(value) for value in values]", "values.clear()\n    return values"
        )
    )
    assert result.verdict is Verdict.WRONG_ANSWER
    assert result.first_failure is not None
    assert result.first_failure.expected.startswith("the argument still to be [")


# 26, the other half: an answer kept from the call before.
def test_an_answer_that_the_next_call_overwrites_is_rejected(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    grader = GRADER + (
        '\n\n@follow_up("double_all")\n@states("an answer stays as it was", "答案不随后变化")\n'
        "def test_kept(solution: Solution) -> None:\n"
        '    first = solution.call("double_all", [1])\n'
        '    solution.call("double_all", [2])\n'
        "    first.equals([2])\n"
    )
    source = RIGHT.replace("def double_all", "buffer = []\n\n\ndef double_all").replace(
        "return [double(value) for value in values]",
        "buffer[:] = [double(value) for value in values]\n    return buffer",
    )
    assert with_grader(tmp_path, sandbox, grader).grade(source).verdict is Verdict.WRONG_ANSWER


# 27: reference-kernels PR#102, #104, #142, #162: answers cached by the input's id, or replayed.
def test_answers_cached_by_the_id_of_the_input_are_rejected(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    grader = GRADER + (
        '\n\n@follow_up("double_all")\n@states("the same list, changed", "同一列表，内容已变")\n'
        "def test_changed_between_calls(solution: Solution) -> None:\n"
        "    values = [1]\n"
        '    solution.call("double_all", values).equals([2])\n'
        "    values[0] = 5\n"
        '    solution.call("double_all", values).equals([10])\n'
    )
    source = RIGHT.replace("def double_all", "cache = {}\n\n\ndef double_all").replace(
        "return [double(value) for value in values]",
        "return cache.setdefault(id(values), [double(value) for value in values])",
    )
    cached = with_grader(tmp_path, sandbox, grader)
    assert cached.grade(source).verdict in (Verdict.WRONG_ANSWER, Verdict.FLAKY)
    assert cached.grade(RIGHT).verdict is Verdict.PASSED


# 27, replay: the right answers in the order of another seed's inputs.
def test_answers_replayed_by_the_number_of_the_call_are_rejected(tiny: Graders) -> None:
    source = """
        answers = iter([0] + [2 * n for n in (0, 1, -1, 7, 100)] * 100)
        def double(value):
            return next(answers)
        """
    assert tiny.grade(source).verdict in (Verdict.WRONG_ANSWER, Verdict.FLAKY)


# 29: otter#138, "All tests passed" was said although hidden tests failed.
def test_passed_means_every_test_and_a_follow_up_that_was_skipped_is_named(tiny: Graders) -> None:
    result = tiny.grade("def double(value): return 2 * value")
    assert result.verdict is Verdict.PASSED
    assert result.follow_ups() == {"double_all": "not attempted"}
    wrong = tiny.grade(
        "def double(value): return 2 * value\ndef double_all(values): return values\n"
    )
    assert wrong.verdict is Verdict.WRONG_ANSWER
    assert wrong.is_solved
    assert wrong.follow_ups() == {"double_all": "failed"}


# 30: otter#419, #429, a failure was buried in a traceback.
@pytest.mark.parametrize("body", ["return value", "return value / 0", "raise ValueError('a\\nb')"])
def test_a_failure_is_three_lines_and_no_traceback(tiny: Graders, body: str) -> None:
    failure = tiny.grade(f"def double(value):\n    {body}\n").first_failure
    assert failure is not None
    for text in (failure.call, failure.got, failure.expected):
        assert text
        assert "\n" not in text
        assert "Traceback" not in text


# 31: nbgrader#917, the feedback showed the hidden tests.
def test_a_report_shows_the_call_and_nothing_of_the_graders_source(tiny: Graders) -> None:
    shown = json.dumps(tiny.grade("def double(value): return value").exercism())
    assert "double(1)" in shown
    for line in GRADER.splitlines():
        if line.strip().startswith(("solution.", "def ", "@given", "from ")):
            assert line.strip() not in shown


# 34: meta-llama/llama#899, the mask was wrong for several new tokens after a cache.
def test_a_mask_that_forgets_the_cached_tokens_is_rejected(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    problem = catalog.load("grouped_query_attention_with_kv_cache")
    masks = [path for path in (problem.folder / "mutants").glob("*.py") if "mask" in path.stem]
    assert masks
    for path in masks:
        assert sandbox.grade(problem, path, stop_first=True).exit_status == FAIL


# 35: TrenTorch PR#192, the memory of a KV cache was four times what it is, and the tests vacuous.
def test_kv_memory_that_is_four_times_too_much_is_rejected(
    tmp_path: Path, sandbox: Sandbox
) -> None:
    problem = catalog.load("kv_cache_memory")
    name = problem.entry_points[0].name
    right = problem.approaches()[0].read_text(encoding="utf-8")
    four = f"\n\nright = {name}\n\n\ndef {name}(*args, **named):\n"
    four += "    return 4 * right(*args, **named)\n"
    path = tmp_path / "solution.py"
    path.write_text(right + four, encoding="utf-8")
    assert sandbox.grade(problem, path, stop_first=True).verdict is Verdict.WRONG_ANSWER


# 35, the other half.
def test_a_test_that_never_calls_the_solution_is_noticed(tmp_path: Path, sandbox: Sandbox) -> None:
    problem = make_whole_problem(tmp_path)
    problem.grader.write_text(
        GRADER.replace('solution.call("double", 0).equals(0)', "assert 2 * 0 == 0")
    )
    faults = check_folder(problem, sandbox).all_faults
    assert "test_zero never calls solution.py: it tests nothing" in faults


# 36: adventjs-issues#48, everything passed for those who were not logged in.
@pytest.mark.parametrize(
    "line",
    [
        "import pytest\n\npytestmark = pytest.mark.skipif(True, reason='not logged in')",
        "import pytest\n\npytestmark = pytest.mark.xfail(strict=False)",
        "import pytest\n\n@pytest.fixture(autouse=True)\ndef login():\n    pytest.skip('no')\n",
    ],
    ids=["skipped", "expected to fail", "a fixture that skips"],
)
def test_a_grader_that_is_switched_off_passes_nobody(
    tmp_path: Path, sandbox: Sandbox, line: str
) -> None:
    off = with_grader(
        tmp_path, sandbox, GRADER.replace("from infra_lab", f"{line}\nfrom infra_lab")
    )
    result = off.grade("def double(value): return 0\n")
    assert result.verdict is not Verdict.PASSED, result.fault


def test_one_skipped_test_among_others_is_no_pass(tmp_path: Path, sandbox: Sandbox) -> None:
    """Only a follow-up may be skipped, and only by the grading itself."""
    grader = GRADER.replace("import given", "import given\nimport pytest").replace(
        '    solution.call("double", value)',
        '    pytest.skip("no")\n    solution.call("double", value)',
    )
    result: Grade = with_grader(tmp_path, sandbox, grader).grade("def double(value): return 0\n")
    assert result.verdict is Verdict.GRADER_FAULT


def test_a_grade_in_a_process_of_its_own_is_the_same(tmp_path: Path) -> None:
    problem = make_problem(tmp_path)
    path = tmp_path / "solution.py"
    path.write_text(RIGHT)
    assert grade(problem, path).verdict is Verdict.PASSED
