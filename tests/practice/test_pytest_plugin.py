"""`pytest problems/<slug>`: the same graders without the command, on the learner's own file."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from infra_lab.practice.catalog import default_root
from infra_lab.practice.pytest_plugin import SOLUTION_VARIABLE

SLUG = "ring_walk"


@pytest.fixture(scope="module")
def repository(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One problem of the real repository, without an attempt at it."""
    root = tmp_path_factory.mktemp("repository")
    for name in ("problems", "solutions"):
        shutil.copytree(default_root() / name / SLUG, root / name / SLUG)
    shutil.copy(default_root() / "problems" / "conftest.py", root / "problems")
    return root


def run_pytest(root: Path, solution: Path | None = None) -> tuple[int, str]:
    environment = {name: text for name, text in os.environ.items() if name != SOLUTION_VARIABLE}
    if solution is not None:
        environment[SOLUTION_VARIABLE] = str(solution)
    options = ("-q", "-p", "no:cacheprovider", "-o", "python_files=grader.py", "--tb=short")
    run = subprocess.run(
        [sys.executable, "-m", "pytest", *options, f"--rootdir={root}", f"problems/{SLUG}"],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
    )
    return run.returncode, run.stdout


def test_a_right_file_passes_and_the_starter_is_unsolved(repository: Path) -> None:
    status, text = run_pytest(repository, default_root() / "solutions" / SLUG / "solution.py")
    assert status == 0, text
    assert "passed" in text
    status, text = run_pytest(repository)
    assert status == 1, text
    assert "unsolved" in text
    assert "this is the starter: `infra-lab start ring_walk`" in text
    assert "Traceback" not in text


def test_the_attempt_is_graded_where_there_is_one(repository: Path) -> None:
    attempt = repository / "work" / SLUG / "solution.py"
    attempt.parent.mkdir(parents=True)
    attempt.write_text("def count_ways(ring_size, steps):\n    return 7\n", encoding="utf-8")
    try:
        status, text = run_pytest(repository)
    finally:
        shutil.rmtree(repository / "work")
    assert status == 1, text
    assert "wrong answer\n  count_ways(" in text.replace("E   ", "")
    assert "got:      7" in text


def test_no_clock_and_no_database_decide(repository: Path, tmp_path: Path) -> None:
    """A call that is slow now and then is right all the same."""
    right = (default_root() / "solutions" / SLUG / "solution.py").read_text(encoding="utf-8")
    file = tmp_path / "solution.py"
    slow = (
        "\n\nimport time\n_right, _calls = count_ways, []\n\n"
        "def count_ways(ring_size, steps):\n"
        "    _calls.append(1)\n    time.sleep(0.3 if len(_calls) % 40 == 1 else 0)\n"
        "    return _right(ring_size, steps)\n"
    )
    file.write_text(right + slow, encoding="utf-8")
    status, text = run_pytest(repository, file)
    assert status == 0, text
    assert not (repository / ".hypothesis" / "examples").exists()


@pytest.mark.parametrize(
    ("source", "verdict", "detail"),
    [
        ("def countways(ring_size, steps):\n    return 1\n", "missing entry point", "countways"),
        ("def count_ways(ring_size, steps:\n", "syntax error", "line:     1"),
        ("raise SystemExit(3)\n", "exited", "SystemExit(3)"),
        ("import no_such_module\n", "import failed", "no_such_module"),
    ],
)
def test_a_file_that_cannot_be_graded_is_named_as_such(
    repository: Path, tmp_path: Path, source: str, verdict: str, detail: str
) -> None:
    file = tmp_path / "solution.py"
    file.write_text(source, encoding="utf-8")
    status, text = run_pytest(repository, file)
    assert status == 1, text
    assert verdict in text
    assert detail in text
    assert text.count(verdict) == 1
    assert "AttributeError" not in text
    assert "Traceback" not in text
