"""`infra-lab dev`: what an author sees, what a script reads, and how each command ends."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra_lab.practice.folder_check import GENERIC_MUTANTS
from tests.practice.doubling import make_whole_problem

Run = Callable[..., Any]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("INFRA_LAB_PROBLEMS", str(tmp_path))
    return tmp_path


def test_new_writes_the_folders_and_names_the_next_command(run_command: Run, root: Path) -> None:
    result = run_command("dev", "new", "two_sum", "--signature", "two_sum(n: int) -> int")
    assert result.status == 0
    lines = result.out.splitlines()
    assert lines[0] == "problems/two_sum/problem.toml"
    assert all((root / line).is_file() for line in lines[:-1])
    assert "`infra-lab dev check two_sum`" in lines[-1]


def test_new_refuses_a_bad_name_and_one_that_is_taken(run_command: Run, root: Path) -> None:
    bad = run_command("dev", "new", "Two-Sum")
    assert bad.status == 2
    assert bad.err.startswith("error: a problem's name is")
    run_command("dev", "new", "two_sum")
    again = run_command("dev", "new", "two_sum")
    assert again.status == 2
    assert "is there already" in again.err


def test_check_then_mutate_then_check_of_a_whole_problem(run_command: Run, root: Path) -> None:
    make_whole_problem(root)
    before = run_command("dev", "check", "double")
    assert before.status == 1
    assert "fault: double: mutation.json is missing" in before.out
    assert before.out.splitlines()[-1] == "Next: `infra-lab dev mutate double`."

    mutated = run_command("dev", "mutate", "double")
    assert mutated.status == 0
    assert "0 survive" in mutated.out
    assert mutated.out.splitlines()[-1] == "Next: `infra-lab dev check double`."

    after = run_command("dev", "check", "double")
    assert after.status == 0
    assert "off_3" in after.out
    assert "test_sum" in after.out
    assert "\033" not in after.out
    assert not any(line != line.rstrip() for line in after.out.splitlines())
    assert after.out.splitlines()[-1] == "All is as it must be. Next: `infra-lab test double`."

    as_json = run_command("dev", "check", "--json")
    assert as_json.status == 0
    report = json.loads(as_json.out)
    assert report["mutants"] == {
        "ok": 10 + len(GENERIC_MUTANTS),
        "total": 10 + len(GENERIC_MUTANTS),
    }
    assert report["accepted"] == {"ok": 5, "total": 5}
    assert report["starters"] == {"ok": 1, "total": 1}
    assert report["ast_mutants"]["ok"] == report["ast_mutants"]["total"] > 5
    assert report["faults"] == []
    assert report["problems"]["double"]["kills"]["off_0"] == "test_zero"


def test_check_says_each_fault_and_ends_with_one(run_command: Run, root: Path) -> None:
    run_command("dev", "new", "two_sum")
    result = run_command("dev", "check")
    assert result.status == 1
    assert "fault: two_sum: README.md is still to be written" in result.out
    assert result.out.splitlines()[-1].endswith("then `infra-lab dev check two_sum`.")
    assert "checking 1 problem" in result.err
    report = json.loads(run_command("dev", "check", "two_sum", "--json").out)
    assert report["starters"] == {"ok": 1, "total": 1}
    assert report["accepted"] == {"ok": 0, "total": 2}
    assert any("0 mutants, at least 10" in fault for fault in report["faults"])


def test_check_without_problems_is_no_success(run_command: Run, root: Path) -> None:
    result = run_command("dev", "check")
    assert result.status == 1
    assert "infra-lab dev new" in result.out


def test_an_unknown_problem_is_named(run_command: Run, root: Path) -> None:
    run_command("dev", "new", "two_sum")
    for command in ("check", "mutate"):
        result = run_command("dev", command, "two_sun")
        assert result.status == 2
        assert "did you mean 'two_sum'?" in result.err
        assert result.out == ""


def test_mutate_shows_what_survives_and_records_it(run_command: Run, root: Path) -> None:
    problem = make_whole_problem(root)
    solution = problem.approaches()[0]
    text = solution.read_text(encoding="utf-8")
    idle = text.replace("    return value + value", "    value += 0\n    return value + value")
    solution.write_text(idle, encoding="utf-8")
    result = run_command("dev", "mutate", "double")
    assert result.status == 1
    assert "    - value += 0\n    + value -= 0\n" in result.out
    assert "[[mutant]]" in result.out
    record = json.loads((problem.folder / "mutation.json").read_text(encoding="utf-8"))
    assert record["survivors"]
    report = json.loads(run_command("dev", "mutate", "double", "--json").out)
    assert [one["id"] for one in report["survivors"]] == record["survivors"]


def test_mutants_of_one_approach_are_not_recorded(run_command: Run, root: Path) -> None:
    problem = make_whole_problem(root)
    result = run_command("dev", "mutate", "double", "--approach", "approach_shift")
    assert result.status == 0
    assert "nothing is recorded" in result.out
    assert not (problem.folder / "mutation.json").exists()
    unknown = run_command("dev", "mutate", "double", "--approach", "approach_none")
    assert unknown.status == 2
    assert "there are solution, approach_shift" in unknown.err


@pytest.mark.parametrize("command", ["new", "check", "mutate"])
def test_help_has_an_example(run_command: Run, command: str) -> None:
    result = run_command("dev", command, "--help")
    assert result.status == 0
    assert f"Example: infra-lab dev {command} " in result.out
