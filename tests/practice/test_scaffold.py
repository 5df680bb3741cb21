"""New folders of problems: they load and grade at once, and say what is still to be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from infra_lab.errors import UsageError
from infra_lab.practice.catalog import load
from infra_lab.practice.folder_check import check_texts
from infra_lab.practice.grade import Verdict
from infra_lab.practice.sandbox import Sandbox
from infra_lab.practice.scaffold import scaffold

SIGNATURES = [
    None,
    "two_sum(numbers: list[int], target: int) -> list[int]",
    "halve(value: float, *, places: int=2) -> float",
    "greet(name: str = 'you') -> str",
    "nothing() -> None",
    "merge(lists: list[list[int]], /, key: object | None = None) -> list[int]",
    "scale(x: np.ndarray, kind: type = np.float32) -> np.ndarray",
    "zeros() -> np.ndarray",
    "count(items: Iterable[int]) -> Counter[int]",
    "pick(a: int, *, k: int) -> int",
    "total(*values: int, k: int, **more: int) -> int",
]


@pytest.mark.parametrize("signature", SIGNATURES)
def test_a_new_problem_loads_and_its_starter_is_unsolved(
    tmp_path: Path, signature: str | None
) -> None:
    written = scaffold("new_one", signature, root=tmp_path)
    assert all(path.is_file() for path in written)
    problem = load("new_one", tmp_path)
    with Sandbox() as sandbox:
        result = sandbox.grade(problem, problem.starter)
        assert result.verdict is Verdict.UNSOLVED, result.fault


def test_keyword_only_parameters_are_passed_by_keyword(tmp_path: Path) -> None:
    scaffold("pick", "pick(a: int, *, k: int) -> int", root=tmp_path)
    right = tmp_path / "right.py"  # the oracle of a new problem gives None
    right.write_text("def pick(a, *, k):\n    assert 0 <= k <= 9\n")
    with Sandbox() as sandbox:
        result = sandbox.grade(load("pick", tmp_path), right)
        assert result.verdict is Verdict.PASSED, result.fault


def test_numpy_is_imported_and_required_where_the_signature_names_it(tmp_path: Path) -> None:
    scaffold("scale", "scale(x: np.ndarray) -> np.ndarray", root=tmp_path)
    scaffold("plain", root=tmp_path)
    assert load("scale", tmp_path).requires == ("numpy",)
    assert load("plain", tmp_path).requires == ()
    for name in ("solutions/{}/solution.py", "problems/{}/starter.py", "problems/{}/grader.py"):
        assert "import numpy as np\n" in (tmp_path / name.format("scale")).read_text("utf-8")
        assert "numpy" not in (tmp_path / name.format("plain")).read_text("utf-8")


@pytest.mark.parametrize(
    ("signature", "why"),
    [
        ("f(solution: int) -> int", "'solution', which the grader uses"),
        ("f(*, solution: int) -> int", "'solution', which the grader uses"),
        ("f(*solution: int) -> int", "'solution', which the grader uses"),
        ("f(oracle: int) -> int", "'oracle', which the grader uses"),
        ("f(*, name: str) -> int", "'name', which Solution.call takes itself"),
    ],
)
def test_a_parameter_that_the_grader_cannot_pass_is_refused_and_nothing_is_written(
    tmp_path: Path, signature: str, why: str
) -> None:
    with pytest.raises(UsageError, match=why):
        scaffold("new_one", signature, root=tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_the_check_lists_what_is_to_be_written_and_nothing_else(tmp_path: Path) -> None:
    scaffold("new_one", SIGNATURES[1], root=tmp_path)
    faults = check_texts(load("new_one", tmp_path))
    unwritten = [fault for fault in faults if "is still to be written: TODO" in fault]
    assert {fault.split()[0] for fault in unwritten} == {
        "README.md",
        "README.zh.md",
        "approach_other.py",
        "grader.py",
        "hints.toml",
        "interview.toml",
        "notes.md",
        "notes.zh.md",
        "problem.toml",
        "solution.py",
        "starter.py",
    }
    assert [fault for fault in faults if fault not in unwritten] == [
        "0 mutants, at least 10 are wanted",
        "0 accepted variants, at least 3 are wanted",
    ]


def test_numbers_go_on_from_the_highest_also_beside_a_damaged_folder(tmp_path: Path) -> None:
    folder = tmp_path / "problems" / "old"
    folder.mkdir(parents=True)
    (folder / "problem.toml").write_text("number = 41\ntitle = {")
    scaffold("new_one", root=tmp_path)
    scaffold("new_two", root=tmp_path)
    assert [load(slug, tmp_path).number for slug in ("new_one", "new_two")] == [42, 43]


def test_track_and_level_are_taken(tmp_path: Path) -> None:
    scaffold("new_one", track="serving", level="hard", root=tmp_path)
    problem = load("new_one", tmp_path)
    assert (problem.track, problem.level) == ("serving", "hard")


@pytest.mark.parametrize(
    "slug",
    [
        "",
        "Two_Sum",
        "two-sum",
        "2sum",
        "two__sum",
        "_sum",
        "sum_",
        "../sum",
        "a/b",
        "class",
        "总和",
    ],
)
def test_a_bad_name_is_refused_and_nothing_is_written(tmp_path: Path, slug: str) -> None:
    with pytest.raises(UsageError, match="lower-case words"):
        scaffold(slug, root=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("folder", ["problems", "solutions"])
def test_a_folder_that_is_there_is_left_alone(tmp_path: Path, folder: str) -> None:
    (tmp_path / folder / "mine").mkdir(parents=True)
    with pytest.raises(UsageError, match="is there already"):
        scaffold("mine", root=tmp_path)
    assert list((tmp_path / folder / "mine").iterdir()) == []


@pytest.mark.parametrize(
    "signature",
    ["two_sum", "f(a)", "f(a) -> ", "x = 1", "f(): pass\ndef g()", "f(a: int, a: int) -> int"],
)
def test_a_bad_signature_is_refused_and_nothing_is_written(tmp_path: Path, signature: str) -> None:
    with pytest.raises(UsageError, match="a signature is"):
        scaffold("new_one", signature, root=tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("choice", [{"track": "poetry"}, {"level": "divine"}])
def test_an_unknown_track_or_level_is_refused(tmp_path: Path, choice: dict[str, str]) -> None:
    with pytest.raises(UsageError, match="must be one of"):
        scaffold("new_one", root=tmp_path, **choice)
    assert list(tmp_path.iterdir()) == []
