"""A problem that takes a moment to grade, for tests of the grading itself."""

from __future__ import annotations

from pathlib import Path
from textwrap import dedent

from infra_lab.practice.grade import Grade
from infra_lab.practice.problem import Problem, load_problem
from infra_lab.practice.sandbox import Sandbox

TOML = """\
number = 1
title = { en = "Double", zh = "翻倍" }
summary = { en = "Twice a number.", zh = "一个数的两倍。" }
track = "algorithms"
level = "easy"
frequency = 1
tags = []
companies = []
sources = []

[[entry]]
name = "double"
signature = "double(value: int) -> int"

[[entry]]
name = "double_all"
signature = "double_all(values: list[int]) -> list[int]"
follow_up = true

[budget]
wall_s = 20
cpu_s = 20
call_s = 0.5
memory_mb = 128
"""

GRADER = '''\
"""Grades double against addition."""

from hypothesis import given
from hypothesis import strategies as st

from infra_lab.practice.kit import Solution, follow_up, states


@states("twice 0 is 0", "0 的两倍是 0")
def test_zero(solution: Solution) -> None:
    solution.call("double", 0).equals(0)


@states("twice a number is its sum with itself", "一个数的两倍等于它与自身之和")
@given(value=st.integers(-1000, 1000))
def test_sum(solution: Solution, value: int) -> None:
    solution.call("double", value).equals(value + value)


@follow_up("double_all")
@states("follow-up: each number is doubled, in order", "进阶：逐个翻倍，次序不变")
@given(values=st.lists(st.integers(0, 9), max_size=4))
def test_all(solution: Solution, values: list[int]) -> None:
    call = solution.call("double_all", values)
    call.equals([value + value for value in values])
    call.leaves_arguments_alone()
'''

STARTER = '''\
"""Double. The statement is in README.md."""


def double(value: int) -> int:
    """Twice `value`."""
    raise NotImplementedError


def double_all(values: list[int]) -> list[int]:
    """Follow-up: twice each value, in order."""
    raise NotImplementedError
'''

RIGHT = '''\
"""Doubling by addition: O(1)."""


def double(value: int) -> int:
    return value + value


def double_all(values: list[int]) -> list[int]:
    return [double(value) for value in values]
'''


def make_problem(
    root: Path, grader: str = GRADER, toml: str = TOML, starter: str = STARTER, slug: str = "double"
) -> Problem:
    """problems/<slug> and solutions/<slug> below `root`, as far as grading needs them."""
    folder = root / "problems" / slug
    folder.mkdir(parents=True)
    (root / "solutions" / slug).mkdir(parents=True)
    for name, text in (("problem.toml", toml), ("grader.py", grader), ("starter.py", starter)):
        (folder / name).write_text(text, encoding="utf-8")
    (root / "solutions" / slug / "solution.py").write_text(RIGHT, encoding="utf-8")
    return load_problem(folder, root / "solutions")


class Graders:
    """Grades texts of solutions for one problem, in one process while it lives."""

    def __init__(self, problem: Problem, sandbox: Sandbox, folder: Path) -> None:
        self.problem = problem
        self._sandbox = sandbox
        self._folder = folder
        self._count = 0

    def file(self, source: str) -> Path:
        self._count += 1
        path = self._folder / f"attempt_{self._count}" / "solution.py"
        path.parent.mkdir()
        path.write_text(dedent(source), encoding="utf-8")
        return path

    def grade(self, source: str, call_s: float | None = None) -> Grade:
        return self._sandbox.grade(self.problem, self.file(source), call_s=call_s)


STATEMENT = """\
# {title}

## Interface
`double(value: int) -> int`, `double_all(values: list[int]) -> list[int]`

## Examples
```python
>>> double(4)
8
```
"""

HINTS = '[[hint]]\nen = "a"\nzh = "b"\n' * 3

INTERVIEW = """\
minutes = 15

[[follow_up]]
question = { en = "a", zh = "b" }
answer = { en = "a", zh = "b" }

[[rubric]]
text = { en = "a", zh = "b" }
"""


def make_whole_problem(root: Path) -> Problem:
    """A problem in which nothing is missing, and nothing wrong."""
    problem = make_problem(root)
    texts = {
        "README.md": STATEMENT.format(title="Double"),
        "README.zh.md": STATEMENT.format(title="翻倍"),
        "hints.toml": HINTS,
        "interview.toml": INTERVIEW,
    }
    for number in range(10):
        killer, wrong = ("test_sum", "<") if number else ("test_zero", "==")
        header = f"# killed_by: {killer} — some numbers are wrong\n"
        body = f"def double(value):\n    return value * 2 + (value {wrong} {-number})\n"
        texts[f"mutants/off_{number}.py"] = header + body
    for number, text in enumerate(("value << 1", "value * 2", "sum((value, value))")):
        texts[f"accepted/variant_{number}.py"] = f"def double(value):\n    return {text}\n"
    for name, text in texts.items():
        path = problem.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text, encoding="utf-8")
    other = '"""Shift: O(1)."""\n\n\ndef double(value: int) -> int:\n    return value << 1\n'
    (problem.solutions / "approach_shift.py").write_text(other, encoding="utf-8")
    for name in ("notes.md", "notes.zh.md"):
        (problem.solutions / name).write_text("# Double\n", encoding="utf-8")
    return problem
