"""`infra-lab test` and `infra-lab watch`: exit statuses, what is recorded, and a clean end."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra_lab.cli import grading
from infra_lab.practice.grade import Grade, Verdict
from infra_lab.practice.progress_store import ProgressError, ProgressStore
from tests.practice.tiny_problem import RIGHT, RIGHT_WITH_FOLLOW_UP, STARTER, WRONG, write_problem

Run = Callable[..., Any]
REPOSITORY = Path(__file__).parents[2]


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    write_problem(tmp_path)
    monkeypatch.setenv("INFRA_LAB_PROBLEMS", str(tmp_path))
    monkeypatch.setenv("INFRA_LAB_LANG", "en")
    monkeypatch.delenv("INFRA_LAB_PROGRESS", raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def attempt(root: Path, source: str) -> Path:
    path = root / "work" / "double" / "solution.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")
    return path


def attempts(root: Path) -> list[str]:
    progress = ProgressStore(root / "work" / "progress.json").read()
    return [one.verdict for one in progress.of("double").attempts]


def test_a_right_attempt_passes_with_status_0(run_command: Run, root: Path) -> None:
    attempt(root, RIGHT_WITH_FOLLOW_UP)
    result = run_command("test", "double")
    assert (result.status, result.err) == (0, "")
    assert result.out.startswith("✓ double: passed, every property holds")
    assert "next: infra-lab solution double" in result.out
    assert attempts(root) == ["passed"]


def test_an_open_follow_up_is_offered(run_command: Run, root: Path) -> None:
    attempt(root, RIGHT)
    result = run_command("test", "double")
    assert result.status == 0
    assert "To go on here: the follow-up triple." in result.out


def test_a_wrong_attempt_fails_with_status_1_and_its_smallest_case(
    run_command: Run, root: Path
) -> None:
    path = attempt(root, WRONG)
    result = run_command("test", "double")
    assert result.status == 1
    assert "\ndouble(1)\n\ngot:      0\nexpected: 2\n" in result.out
    assert f"python -i {path.relative_to(root)}" in result.out
    assert "\033" not in result.out
    assert attempts(root) == ["wrong_answer"]


def test_the_second_failure_offers_a_hint(run_command: Run, root: Path) -> None:
    attempt(root, WRONG)
    assert "next: infra-lab test double" in run_command("test", "double").out
    assert "next: infra-lab hint double" in run_command("test", "double").out


def test_the_starter_fails_as_unsolved_and_is_no_attempt(run_command: Run, root: Path) -> None:
    run_command("start", "double")
    result = run_command("test", "double")
    assert result.status == 1
    assert result.out.startswith("✗ double: not solved yet")
    assert attempts(root) == []


def test_any_file_can_be_graded_and_is_not_recorded(run_command: Run, root: Path) -> None:
    other = root / "a folder" / "mine.py"
    other.parent.mkdir()
    for source, status in ((RIGHT, 0), (WRONG, 1), (STARTER, 1)):
        other.write_text(source, encoding="utf-8")
        result = run_command("test", "double", "--file", str(other))
        assert result.status == status
        assert "not recorded" in result.out
    assert "--file 'a folder" in result.out or os.name == "nt"
    assert not (root / "work").exists()


@pytest.mark.parametrize(
    ("file", "said"), [("missing.py", "there is no file"), (".", "is a folder")]
)
def test_a_file_that_is_none_is_a_usage_error(
    run_command: Run, root: Path, file: str, said: str
) -> None:
    result = run_command("test", "double", "--file", file)
    assert (result.status, result.out) == (2, "")
    assert said in result.err


def test_json_is_the_exercism_format(run_command: Run, root: Path) -> None:
    attempt(root, WRONG)
    result = run_command("test", "double", "--json")
    facts = json.loads(result.out)
    assert result.status == 1
    assert (facts["version"], facts["status"], facts["verdict"]) == (3, "fail", "wrong_answer")
    assert {test["status"] for test in facts["tests"]} == {"pass", "fail"}
    failing = next(test for test in facts["tests"] if test["status"] == "fail")
    assert failing["test_code"].startswith("double(")
    assert attempts(root) == ["wrong_answer"]


def test_json_names_the_line_of_an_exception(run_command: Run, root: Path) -> None:
    attempt(root, "def double(number):\n    return [][number]\n")
    facts = json.loads(run_command("test", "double", "--json").out)
    failing = next(test for test in facts["tests"] if test["message"])
    assert failing["message"].splitlines()[-1] == "line: 2"


def test_the_seed_reaches_the_grader_and_the_history(run_command: Run, root: Path) -> None:
    attempt(root, RIGHT)
    run_command("test", "double", "--seed", "7")
    progress = ProgressStore(root / "work" / "progress.json").read()
    assert [one.seed for one in progress.of("double").attempts] == [7]


@pytest.mark.parametrize("damage", ["raise RuntimeError('broken grader')", "import no_such_module"])
def test_a_fault_of_the_grader_is_status_3_and_no_attempt(
    run_command: Run, root: Path, damage: str
) -> None:
    grader = root / "problems" / "double" / "grader.py"
    grader.write_text(f"{damage}\n\ndef test_nothing(solution):\n    pass\n", encoding="utf-8")
    attempt(root, RIGHT)
    result = run_command("test", "double")
    assert result.status == 3
    assert "the grader is at fault, not your solution" in result.out
    assert damage.split("'")[0].split()[-1].split("(")[0] in result.out
    assert attempts(root) == []


@pytest.mark.parametrize("content", ["", "def test_nothing(solution):\n    assert False\n"])
def test_a_grader_that_grades_nothing_passes_nobody(
    run_command: Run, root: Path, content: str
) -> None:
    (root / "problems" / "double" / "grader.py").write_text(content)
    attempt(root, RIGHT)
    assert run_command("test", "double").status == 3


def test_a_damaged_folder_is_status_3(run_command: Run, root: Path) -> None:
    attempt(root, RIGHT)
    path = root / "problems" / "double" / "problem.toml"
    path.write_text("number = 1\n")
    result = run_command("test", "double")
    assert result.status == 3
    assert str(path) in result.err


def test_a_progress_file_of_a_newer_version_is_said_before_anything_is_graded(
    run_command: Run, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    attempt(root, RIGHT)
    (root / "work" / "progress.json").write_text('{"version": 9}')
    monkeypatch.setattr("infra_lab.practice.sandbox.grade", lambda *_: pytest.fail("graded"))
    for command in ("test", "watch"):
        result = run_command(command, "double")
        assert (result.status, result.out) == (2, "")
        assert "update infra-lab" in result.err


@pytest.mark.parametrize(("source", "status"), [(WRONG, 1), (RIGHT, 0)])
def test_a_grade_counts_even_where_it_cannot_be_recorded(
    run_command: Run, root: Path, monkeypatch: pytest.MonkeyPatch, source: str, status: int
) -> None:
    attempt(root, source)
    _no_more_writing(monkeypatch)
    result = run_command("test", "double")
    assert result.status == status
    assert "next: infra-lab" in result.out
    assert "warning: this was not recorded: " in result.err
    assert "No space left" in result.err


def _no_more_writing(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise ProgressError("cannot write: No space left on device")

    monkeypatch.setattr(ProgressStore, "_write", full)


def test_what_was_done_is_said_even_where_it_cannot_be_recorded(
    run_command: Run, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = attempt(root, RIGHT)
    _no_more_writing(monkeypatch)
    for command, said in (("reset", "Your attempt is kept: "), ("start", "write in:")):
        result = run_command(command, "double")
        assert result.status == 0
        assert said in result.out
        assert "this was not recorded" in result.err
    assert file.read_text(encoding="utf-8") != RIGHT
    # What the progress file is there for is refused instead: a hint, above all.
    result = run_command("hint", "double")
    assert (result.status, result.out) == (2, "")


def test_a_solution_that_dies_costs_nothing_but_its_grade(run_command: Run, root: Path) -> None:
    attempt(root, "import os\ndef double(number):\n    os._exit(0)\n")
    result = run_command("test", "double")
    assert result.status == 1
    assert "the solution ended the process" in result.out
    assert attempts(root) == ["exited"]


def test_a_terminal_sees_colours_and_code_that_is_one_line(
    run_command: Run, root: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any
) -> None:
    from rich.console import Console

    monkeypatch.setattr(grading, "is_terminal", lambda: True)
    monkeypatch.setattr(
        grading, "make_console", lambda stderr=False: Console(force_terminal=True, width=40)
    )
    call = f"double({10**60})"
    (root / "problems" / "double" / "grader.py").write_text(
        "def test_long(solution):\n    solution.call('double', 10**60).equals(2 * 10**60)\n"
    )
    attempt(root, WRONG)
    out = run_command("test", "double").out
    assert "\033[1;31m✗ double: wrong answer\033[0m" in out
    assert call not in out.splitlines()  # it has colours too
    assert call in re.sub(r"\033\[[\d;]*m", "", out).splitlines()


@pytest.mark.parametrize(
    "source",
    [
        "while True:\n    pass\n",
        "import no_such_module\n",
        "kept = []\nwhile True:\n    kept.append(bytearray(10**7))\n",
        "double\n  (1)\n",
        "import sys\ndef double(number):\n    sys.exit(3)\n",
        STARTER,
    ],
    ids=["endless", "import", "memory", "syntax", "exit", "starter"],
)
def test_where_no_call_can_be_tried_none_is_advised(
    run_command: Run, root: Path, source: str
) -> None:
    attempt(root, source)
    result = run_command("test", "double")
    assert result.status == 1
    assert "python -i" not in result.out


@pytest.mark.parametrize(("length", "is_advised"), [(3, True), (1000, False)])
def test_a_call_with_a_part_left_out_is_not_advised(
    run_command: Run, root: Path, length: int, is_advised: bool
) -> None:
    (root / "problems" / "double" / "grader.py").write_text(
        f"def test_list(solution):\n    solution.call('double', [7] * {length}).equals(1)\n"
    )
    attempt(root, WRONG)
    out = run_command("test", "double").out
    assert "\ndouble([7, " in out
    assert ("python -i" in out) == is_advised


# ---- watch ----


@pytest.fixture
def grades_of(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Lets `watch` see these contents, then Ctrl-C."""

    def install(*contents: bytes, why: str = "", gone: bool = False) -> None:
        from infra_lab.practice import watching

        def saves(
            path: Path, poll: bool, on_polling: Callable[[str], None], on_gone: Callable[[], None]
        ) -> Any:
            if why:
                on_polling(why)
            if gone:
                on_gone()
            for content in contents:
                path.write_bytes(content)
                yield content
            raise KeyboardInterrupt

        monkeypatch.setattr(watching, "contents_on_save", saves)

    return install


def test_watch_grades_each_save_and_ends_cleanly(
    run_command: Run, root: Path, grades_of: Callable[..., None]
) -> None:
    attempt(root, STARTER)
    grades_of(WRONG.encode(), RIGHT.encode())
    result = run_command("watch", "double")
    assert (result.status, result.err) == (0, "")
    assert result.out.index("wrong answer") < result.out.index("every property holds")
    assert "next: save the file to grade it again" in result.out
    assert "Stopped watching." in result.out
    assert result.out.splitlines()[-1].startswith("next: infra-lab test double")
    assert attempts(root) == ["wrong_answer", "passed"]


@pytest.mark.parametrize(
    ("language", "said"), [("en", "twice a second instead"), ("zh", "改为每秒检查文件两次")]
)
def test_watch_says_when_it_polls_and_why(
    run_command: Run, root: Path, grades_of: Callable[..., None], language: str, said: str
) -> None:
    attempt(root, STARTER)
    grades_of(why="nfs does not report every change")
    result = run_command("watch", "double", "--lang", language)
    assert "nfs" in result.err
    assert said in result.err


@pytest.mark.parametrize(
    ("language", "said"),
    [("en", " is gone: waiting until it is there again\n"), ("zh", " 不见了：等它重新出现\n")],
)
def test_watch_says_that_the_file_is_gone(
    run_command: Run, root: Path, grades_of: Callable[..., None], language: str, said: str
) -> None:
    attempt(root, STARTER)
    grades_of(gone=True)
    out = run_command("watch", "double", "--lang", language).out
    assert str(Path("work", "double", "solution.py")) + said in out


@pytest.mark.skipif(os.name == "nt", reason="Ctrl-C is sent as a POSIX signal")
@pytest.mark.parametrize("options", [[], ["--poll"]])
def test_watch_really_notices_a_save_and_ctrl_c(root: Path, options: list[str]) -> None:
    path = attempt(root, WRONG)
    # A job in the background inherits an ignored SIGINT: here it is as in a terminal.
    terminal = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    program = f"{terminal}; from infra_lab.cli.main import main; import sys; main(sys.argv[1:])"
    log = root / "log.txt"
    with log.open("wb") as out:
        child = subprocess.Popen(
            [sys.executable, "-c", program, "watch", "double", *options],
            env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
            stdout=out,
            stderr=subprocess.STDOUT,
        )
    try:
        wait_for(log, "next: save the file")
        path.write_text(RIGHT, encoding="utf-8")
        wait_for(log, "every property holds")
        child.send_signal(signal.SIGINT)
        assert child.wait(timeout=30) == 0
    finally:
        child.kill()
        child.wait()
    text = log.read_text(encoding="utf-8")
    assert "Stopped watching." in text
    assert "Traceback" not in text
    assert text.count("✗ double") == 1
    assert text.count("✓ double") == 1


def wait_for(log: Path, text: str) -> None:
    end = time.monotonic() + 60
    while text not in log.read_text(encoding="utf-8"):
        assert time.monotonic() < end, log.read_text(encoding="utf-8")
        time.sleep(0.05)


def test_a_fault_while_watching_is_reported_and_not_recorded(
    run_command: Run, root: Path, grades_of: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    from infra_lab.practice import sandbox

    attempt(root, STARTER)
    grades_of(WRONG.encode())
    broken = Grade("double", Verdict.GRADER_FAULT, fault="a fault")
    monkeypatch.setattr(sandbox, "grade", lambda *_: broken)
    result = run_command("watch", "double")
    assert "not your solution" in result.out
    assert attempts(root) == []
