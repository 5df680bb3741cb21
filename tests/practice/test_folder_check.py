"""What is checked of a problem's folder: every way in which one can be wrong is named."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from infra_lab.practice.catalog_check import check_problem, check_problems
from infra_lab.practice.folder_check import (
    GENERIC_MUTANTS,
    FolderReport,
    check_folder,
    check_texts,
    mutant_header,
)
from infra_lab.practice.problem import Problem
from infra_lab.practice.sandbox import Sandbox
from tests.practice.doubling import GRADER, INTERVIEW, STARTER, TOML, make_whole_problem

GENERIC = len(GENERIC_MUTANTS)


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as sandbox:
        yield sandbox


@pytest.fixture
def problem(tmp_path: Path) -> Problem:
    return make_whole_problem(tmp_path)


@pytest.fixture
def small(problem: Problem) -> Problem:
    """Without variants, to be quick; that they are missing is a fault, which no test looks at."""
    for name in ("mutants", "accepted"):
        for path in (problem.folder / name).glob("*.py"):
            path.unlink()
    return problem


def write(path: Path, text: str) -> None:
    path.write_text(text, encoding="utf-8")


def lines(report: FolderReport) -> str:
    return "\n".join(report.all_faults)


def test_a_whole_folder_has_no_fault(problem: Problem, sandbox: Sandbox) -> None:
    seen: list[str] = []
    report = check_folder(problem, sandbox, seen.append)
    assert report.all_faults == []
    counts = [
        (tally.ok, tally.total)
        for tally in (report.mutants, report.generic, report.accepted, report.starters)
    ]
    assert counts == [(10, 10), (GENERIC, GENERIC), (5, 5), (1, 1)]
    assert report.kills["off_0"] == "test_zero"
    assert report.kills["off_7"] == "test_sum"
    assert {"starter", "solution.py", "off_0.py"} <= set(seen)


def test_what_is_missing_is_named(problem: Problem) -> None:
    for path in (
        problem.folder / "README.md",
        problem.folder / "hints.toml",
        problem.starter,
        problem.solutions / "notes.zh.md",
        problem.solutions / "approach_shift.py",
        problem.folder / "mutants" / "off_3.py",
        problem.folder / "accepted" / "variant_0.py",
    ):
        path.unlink()
    said = "\n".join(check_texts(problem))
    for name in ("README.md", "hints.toml", "starter.py", "notes.zh.md"):
        assert f"{name} is missing" in said
    assert "9 mutants, at least 10 are wanted" in said
    assert "2 accepted variants, at least 3 are wanted" in said
    assert "1 approaches, at least 2 are wanted" in said


def test_texts_that_are_not_as_they_must_be_are_named(problem: Problem) -> None:
    folder = problem.folder
    write(folder / "hints.toml", '[[hint]]\nen = "a"\nzh = "b"\n')
    write(folder / "interview.toml", INTERVIEW.replace("minutes = 15", "").replace("zh", "fr"))
    statement = (folder / "README.md").read_text(encoding="utf-8")
    write(folder / "README.md", statement.replace("\n8\n", "\n9\n").replace("-> int", "-> str"))
    write(problem.solutions / "notes.md", "# Double\n\nTODO\n")
    said = "\n".join(check_texts(problem))
    assert "hints.toml has 1 hints, not 3" in said
    assert "minutes must be a whole number" in said
    assert "a [[follow_up]] lacks question in en and zh" in said
    assert "a [[rubric]] lacks text in en and zh" in said
    assert "README.md: an example is wrong" in said
    assert "README.md does not show `double(value: int) -> int`" in said
    assert "the two statements show different examples" in said
    assert "notes.md is still to be written: TODO in line 3" in said


def test_examples_are_needed_and_run_with_dataclasses_too(problem: Problem) -> None:
    solution = problem.approaches()[0]
    text = solution.read_text(encoding="utf-8").replace(
        "\n\ndef double(",
        "\nfrom __future__ import annotations\nfrom dataclasses import dataclass\n\n\n"
        "@dataclass\nclass Pair:\n    left: int\n    right: int\n\n\ndef double(",
        1,
    )
    write(solution, text)
    assert "\n".join(check_texts(problem)) == ""
    for name in ("README.md", "README.zh.md"):
        path = problem.folder / name
        write(path, path.read_text(encoding="utf-8").replace(">>> double(4)", "double(4)"))
    assert "README.md has no >>> examples" in "\n".join(check_texts(problem))


def test_one_signature_in_starter_solution_and_statement(problem: Problem) -> None:
    write(problem.starter, STARTER.replace("def double(value: int)", "def double(number: int)"))
    solution = problem.approaches()[0]
    text = solution.read_text(encoding="utf-8")
    write(solution, text.replace("def double(value: int) -> int:", "def double(value: int):"))
    said = "\n".join(check_texts(problem))
    assert "starter.py defines double(number:int)->int" in said
    assert "solution.py defines double(value:int)" in said


def test_files_that_are_no_python_are_named(small: Problem, sandbox: Sandbox) -> None:
    write(small.starter, "def double(value)\n")
    write(small.approaches()[0], "def double(value)\n")
    said = lines(check_folder(small, sandbox))
    assert "starter.py is no Python" in said
    assert "solution.py does not load" in said
    assert "solution.py is right, but was syntax_error" in said


def test_a_starter_that_is_solved_or_crashes_is_not_unsolved(
    small: Problem, sandbox: Sandbox
) -> None:
    for body, verdict in (("return 2 * value", "passed"), ("return value / 0", "crashed")):
        write(small.starter, f"def double(value: int) -> int:\n    {body}\n")
        assert f"starter.py is {verdict}, not unsolved" in lines(check_folder(small, sandbox))


def test_a_right_solution_that_is_rejected_is_shown_with_its_call(
    small: Problem, sandbox: Sandbox
) -> None:
    write(small.folder / "accepted" / "variant_0.py", "def double(value): return value * 2.0\n")
    said = lines(check_folder(small, sandbox))
    assert "variant_0.py is right, but was wrong_answer: double(0) gave 0.0, expected 0" in said


def test_the_solution_to_learn_from_must_solve_the_follow_ups(
    small: Problem, sandbox: Sandbox
) -> None:
    write(small.approaches()[0], "def double(value: int) -> int:\n    return 2 * value\n")
    said = lines(check_folder(small, sandbox))
    assert "solution.py must solve the follow-up double_all" in said


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("def double(value): return 1\n", "the first line must be"),
        ("# killed_by: zero — wrong\ndef double(value): return 1\n", "the first line must be"),
        ("# killed_by: test_zero - wrong\ndef double(value): return 1\n", "the first line must be"),
        (
            "# killed_by: test_zero — wrong\ndef double(value): return 2 * value\n",
            "mutant.py survives test_zero",
        ),
        (
            "# killed_by: test_zero — wrong\ndef double(value): return 3 * value\n",
            "mutant.py survives test_zero",
        ),
        (
            "# killed_by: test_no_such — wrong\ndef double(value): return 1\n",
            "mutant.py names test_no_such, which the grader does not have",
        ),
        (
            "# killed_by: test_zero, test_no_such — wrong\ndef double(value): return 1\n",
            "mutant.py names test_no_such, which the grader does not have",
        ),
        (
            "# killed_by: test_zero, test_sum — wrong\ndef double(value): return 3 * value\n",
            "mutant.py survives test_zero, which it says kills it",
        ),
        ("# killed_by: test_zero — wrong\ndef double(value)\n", "mutant.py is syntax_error"),
        ("# killed_by: test_zero — wrong\nimport no_such\n", "mutant.py is import_failed"),
        (
            "# killed_by: test_zero — wrong\ndef duoble(value): return 1\n",
            "mutant.py is missing_entry_point, which is no wrong answer",
        ),
    ],
)
def test_a_mutant_must_be_killed_by_a_test_that_it_names(
    small: Problem, sandbox: Sandbox, text: str, said: str
) -> None:
    write(small.folder / "mutants" / "mutant.py", text)
    report = check_folder(small, sandbox)
    assert (report.mutants.ok, report.mutants.total) == (0, 1)
    assert said in report.mutants.faults[0]


def test_a_header_gives_the_tests_and_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "mutant.py"
    write(path, "# killed_by: test_a, test_b — it forgets — sometimes\nx = 1\n")
    assert mutant_header(path) == (["test_a", "test_b"], "it forgets — sometimes")


def test_a_grader_that_passes_nothing_in_particular_is_noticed(
    small: Problem, sandbox: Sandbox
) -> None:
    """A grader that only looks at the type: a solution that returns 0 passes."""
    write(small.grader, GRADER.replace(".equals(value + value)", ".of_type(int)"))
    assert "a solution that returns 0 passes" in lines(check_folder(small, sandbox))


def test_a_grader_that_breaks_on_odd_answers_is_noticed(small: Problem, sandbox: Sandbox) -> None:
    broken = GRADER.replace(".equals(0)", ".value.bit_length()")
    write(small.grader, broken)
    said = lines(check_folder(small, sandbox))
    assert "a solution that returns None breaks the grader" in said
    assert "AttributeError" in said


def test_a_damaged_folder_is_a_fault_and_the_others_are_still_checked(tmp_path: Path) -> None:
    make_whole_problem(tmp_path)
    for slug, toml in (("broken", "number = "), ("twin", TOML)):
        folder = tmp_path / "problems" / slug
        folder.mkdir()
        write(folder / "problem.toml", toml)
    report = check_problems(["broken", "double", "twin"], tmp_path)
    assert [one.slug for one in report.problems] == ["broken", "double", "twin"]
    assert "problem.toml" in report.problems[0].faults[0]
    assert report.problems[1].tally("mutants").ok == 10 + GENERIC
    assert "double and twin have the same number 1" in report.faults
    shown = report.as_dict()
    assert shown["mutants"]["ok"] == sum(one["mutants"]["ok"] for one in shown["problems"].values())
    assert len(shown["faults"]) == len(report.all_faults)


def test_without_a_record_of_its_mutants_a_problem_is_not_whole(
    small: Problem, sandbox: Sandbox
) -> None:
    report = check_problem("double", sandbox, small.folder.parents[1])
    assert report.faults[-1] == "mutation.json is missing: run `infra-lab dev mutate double`"
    assert report.as_dict()["ast_mutants"] == {"ok": 0, "total": 0}
