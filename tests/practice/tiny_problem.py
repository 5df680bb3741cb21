"""A whole problem folder, small enough to grade in a moment, for tests of what reads one."""

from __future__ import annotations

from pathlib import Path

TOML = """\
number = {number}
title = {{ en = "Double a number", zh = "翻倍" }}
summary = {{ en = "Return twice the number.", zh = "返回这个数的两倍。" }}
track = "{track}"
level = "{level}"
frequency = {frequency}
tags = ["{tag}"]
companies = ["Acme"]
sources = []

[[entry]]
name = "double"
signature = "double(number: int) -> int"

[[entry]]
name = "triple"
signature = "triple(number: int) -> int"
follow_up = true

[budget]
call_s = 2
memory_mb = 128
"""

STARTER = '''\
"""Double a number."""


def double(number: int) -> int:
    """Twice the number."""
    raise NotImplementedError


def triple(number: int) -> int:
    """Follow-up: three times the number."""
    raise NotImplementedError
'''

GRADER = """\
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.practice.kit import Solution, follow_up, states


@states("small numbers are doubled", "小的数会翻倍")
@pytest.mark.parametrize("number", range(5))
def test_small(solution: Solution, number: int) -> None:
    solution.call("double", number).equals(number + number)


@states("any number is doubled", "任意数会翻倍")
@given(number=st.integers(-1000, 1000))
def test_any(solution: Solution, number: int) -> None:
    solution.call("double", number).equals(number + number)


@states("a few lines are enough", "几行代码就够")
def test_work(solution: Solution) -> None:
    with solution.counting_lines() as lines:
        call = solution.call("double", 1000)
    call.equals(2000)
    solution.within("executed lines", lines.count, 10, call)


@follow_up("triple")
@states("follow-up: a number is tripled", "进阶：变成三倍")
def test_triple(solution: Solution) -> None:
    solution.call("triple", 5).equals(15)
"""

HINTS = """\
[[hint]]
en = "Think of addition."
zh = "想想加法。"

[[hint]]
en = "Add it to itself."
zh = "自己加自己。"

[[hint]]
en = "Return number + number."
zh = "返回 number + number。"
"""

RIGHT = "def double(number: int) -> int:\n    return 2 * number\n"
RIGHT_WITH_FOLLOW_UP = RIGHT + "\n\ndef triple(number: int) -> int:\n    return 3 * number\n"
WRONG = "def double(number: int) -> int:\n    return 0\n"


def write_problem(
    root: Path,
    slug: str = "double",
    number: int = 1,
    track: str = "algorithms",
    level: str = "easy",
    frequency: int = 3,
    tag: str = "arithmetic",
) -> Path:
    """Writes problems/<slug> and solutions/<slug> below `root`; returns the former."""
    folder, solutions = root / "problems" / slug, root / "solutions" / slug
    folder.mkdir(parents=True)
    solutions.mkdir(parents=True)
    files = {
        folder / "problem.toml": TOML.format(
            number=number, track=track, level=level, frequency=frequency, tag=tag
        ),
        folder / "starter.py": STARTER,
        folder / "grader.py": GRADER,
        folder / "hints.toml": HINTS,
        folder / "README.md": "# Double a number\n",
        folder / "README.zh.md": "# 翻倍\n",
        solutions / "solution.py": RIGHT_WITH_FOLLOW_UP,
        solutions / "approach_shift.py": "def double(number):\n    return number << 1\n",
        solutions / "notes.md": "# Notes\n\nBoth take one operation.\n",
        solutions / "notes.zh.md": "# 笔记\n\n都只要一次运算。\n",
    }
    for path, text in files.items():
        path.write_text(text, encoding="utf-8")
    return folder
