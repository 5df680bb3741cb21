"""list, next, start, hint, reset, solution, status: one obvious next step after each, in both
languages, and nothing that a learner did is lost."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra_lab.practice.progress import Attempt, now
from infra_lab.practice.progress_store import ProgressStore
from tests.practice.tiny_problem import RIGHT, STARTER, WRONG, write_problem

Run = Callable[..., Any]
REPOSITORY = Path(__file__).parents[2]
COMMANDS = ("list", "next", "start", "test", "watch", "hint", "reset", "solution", "status")
CHINESE = re.compile(r"[\u3000-\u9fff\uff00-\uffef]")


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A learner in a repository of two problems."""
    write_problem(tmp_path)
    write_problem(tmp_path, "twice", 2, track="serving", level="hard", frequency=5, tag="other")
    monkeypatch.setenv("INFRA_LAB_PROBLEMS", str(tmp_path))
    for name in ("INFRA_LAB_LANG", "INFRA_LAB_PROGRESS", "LC_ALL", "LC_MESSAGES", "LANG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def attempt(root: Path, source: str, slug: str = "double") -> Path:
    path = root / "work" / slug / "solution.py"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(source, encoding="utf-8")
    return path


def solve(root: Path, slug: str = "double") -> None:
    """As `infra-lab test` would record it, without the wait."""
    with ProgressStore(root / "work" / "progress.json").change() as progress:
        progress.touch(slug).attempts.append(Attempt(now(), "passed", solved=True))


def progress_of(root: Path, slug: str = "double") -> dict[str, Any]:
    table = json.loads((root / "work" / "progress.json").read_text(encoding="utf-8"))
    return dict(table["problems"][slug])


# ---- list ----


def test_list_shows_every_problem_with_its_status(run_command: Run, root: Path) -> None:
    result = run_command("list")
    assert result.status == 0
    header, first, second = (re.split(" {2,}", line) for line in result.out.splitlines()[:3])
    assert " ".join(header) == "no. slug title track level asked status hints tags"
    assert "|".join(first[1:]) == ("1|double|Double a number|algorithms|easy|3/5|new|-|arithmetic")
    assert second[2] == "twice"
    assert "0 of 2 solved" in result.out
    assert "\033" not in result.out


def test_list_shows_attempts_hints_and_what_is_solved(run_command: Run, root: Path) -> None:
    run_command("start", "double")
    run_command("hint", "double")
    assert re.search(r"double .* attempted +1 ", run_command("list").out)
    solve(root)
    out = run_command("list").out
    assert re.search(r"double .* solved +1 ", out)
    assert "1 of 2 solved" in out


@pytest.mark.parametrize(
    ("option", "value", "shown"),
    [
        ("--track", "serving", "twice"),
        ("--level", "easy", "double"),
        ("--tag", "other", "twice"),
        ("--tag", "OTHER", "twice"),
        ("--status", "attempted", "double"),
    ],
)
def test_filters_leave_what_matches(
    run_command: Run, root: Path, option: str, value: str, shown: str
) -> None:
    run_command("start", "double")
    rows = json.loads(run_command("list", option, value, "--json").out)
    assert [row["slug"] for row in rows] == [shown]


@pytest.mark.parametrize(
    ("option", "choices"),
    [
        ("--track", "algorithms, attention, serving, quantization"),
        ("--level", "easy, medium, hard"),
        ("--tag", "arithmetic, other"),
        ("--company", "Acme"),
        ("--status", "new, attempted, solved"),
    ],
)
@pytest.mark.parametrize("language", ["en", "zh"])
def test_an_unknown_filter_value_is_answered_with_the_choices(
    run_command: Run, root: Path, option: str, choices: str, language: str
) -> None:
    result = run_command("list", option, "nonsense", "--lang", language)
    assert (result.status, result.out) == (2, "")
    assert choices in result.err
    assert "'nonsense'" in result.err


def test_filters_that_leave_nothing_say_so(run_command: Run, root: Path) -> None:
    result = run_command("list", "--track", "attention")
    assert result.status == 0
    assert "the filters leave none of 2" in result.out
    assert json.loads(run_command("list", "--track", "attention", "--json").out) == []


def test_a_damaged_folder_is_left_out_and_named(run_command: Run, root: Path) -> None:
    path = root / "problems" / "twice" / "problem.toml"
    path.write_text("number = 'two'\n")
    result = run_command("list")
    assert result.status == 0
    assert "double" in result.out
    assert "twice" not in result.out
    assert result.err.startswith("warning: problem twice is left out")
    assert str(path) in result.err
    assert result.err.count("\n") == 1
    as_json = run_command("list", "--json", "--lang", "zh")
    assert [row["slug"] for row in json.loads(as_json.out)] == ["double"]
    assert as_json.err.startswith("警告：题目 twice")


def test_two_problems_of_one_number_are_both_shown(run_command: Run, root: Path) -> None:
    write_problem(root, "again", 1)
    rows = json.loads(run_command("list", "--json").out)
    assert [row["slug"] for row in rows] == ["again", "double", "twice"]


def test_a_repository_without_problems_says_so(
    run_command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("INFRA_LAB_PROBLEMS", str(tmp_path))
    result = run_command("list", "--lang", "en")
    assert (result.status, result.err) == (0, "")
    assert "no problems here" in result.out


def test_list_imports_nothing_that_grades(root: Path) -> None:
    """What it must not load: torch, NumPy, pytest, hypothesis, and watchfiles."""
    program = (
        "import sys, json\n"
        "from infra_lab.cli.main import main\n"
        "try: main(['list'])\n"
        "except SystemExit: pass\n"
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})), file=sys.stderr)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=REPOSITORY, capture_output=True, text=True
    )
    assert "double" in result.stdout
    loaded = set(json.loads(result.stderr.splitlines()[-1]))
    assert loaded & {"torch", "numpy", "pytest", "hypothesis", "watchfiles", "psutil"} == set()


# ---- next ----


def test_next_picks_the_easiest_then_the_most_asked(run_command: Run, root: Path) -> None:
    write_problem(root, "popular", 9, frequency=5)
    result = run_command("next")
    assert "9. Double a number (popular)" in result.out
    assert "Why: the most asked of the 2 easy ones that are not solved." in result.out
    assert result.out.splitlines()[-1].startswith("next: infra-lab start popular")


def test_next_comes_back_to_what_was_begun(run_command: Run, root: Path) -> None:
    run_command("start", "twice")
    attempt(root, WRONG, "twice")
    run_command("test", "twice")
    choice = json.loads(run_command("next", "--json").out)
    assert choice["slug"] == "twice"
    assert choice["reason"] == "you began it and have not solved it (1 attempt so far)"
    assert choice["command"] == "infra-lab test twice"


def test_next_says_when_all_is_solved(run_command: Run, root: Path) -> None:
    for slug in ("double", "twice"):
        solve(root, slug)
    result = run_command("next")
    assert result.status == 0
    assert "All of them are solved" in result.out
    assert json.loads(run_command("next", "--json").out)["slug"] is None


@pytest.mark.parametrize(("command", "then"), [("list", "status"), ("status", "list")])
def test_when_all_is_solved_nothing_leads_to_next(
    run_command: Run, root: Path, command: str, then: str
) -> None:
    solve(root)
    assert run_command(command).out.splitlines()[-1].startswith("next: infra-lab next")
    solve(root, "twice")
    assert run_command(command).out.splitlines()[-1].startswith(f"next: infra-lab {then}  (")
    chinese = run_command(command, "--lang", "zh").out.splitlines()[-1]
    assert chinese.startswith(f"下一步：infra-lab {then}（")


def test_next_keeps_to_a_filter(run_command: Run, root: Path) -> None:
    assert json.loads(run_command("next", "--track", "serving", "--json").out)["slug"] == "twice"
    assert "No problem is like that" in run_command("next", "--track", "attention").out


# ---- start and reset ----


def test_start_copies_the_starter_and_says_what_to_read_and_to_run(
    run_command: Run, root: Path
) -> None:
    result = run_command("start", "double")
    assert result.status == 0
    path = root / "work" / "double" / "solution.py"
    assert path.read_text(encoding="utf-8") == STARTER
    assert str(Path("problems", "double", "README.md")) in result.out
    assert str(Path("work", "double", "solution.py")) in result.out
    assert "next: infra-lab test double" in result.out


def test_start_again_leaves_the_attempt_and_says_so(run_command: Run, root: Path) -> None:
    attempt(root, "mine")
    result = run_command("start", "double")
    assert result.status == 0
    assert "your attempt stays as it is" in result.out
    assert attempt_text(root) == "mine"


def attempt_text(root: Path) -> str:
    return (root / "work" / "double" / "solution.py").read_text(encoding="utf-8")


def test_paths_are_shown_in_the_systems_own_spelling(
    run_command: Run, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From another folder they are absolute; everywhere they exist as they are shown."""
    for folder in (root, root / "problems", root.parent):
        monkeypatch.chdir(folder)
        out = run_command("start", "double").out
        for line in out.splitlines():
            if line.startswith(("statement:", "write in:")):
                shown = line.split(":", 1)[1].strip()
                assert Path(shown).is_file(), shown
                assert ("/" if os.sep == "\\" else "\\") not in shown


def test_a_problem_answers_to_its_number(run_command: Run, root: Path) -> None:
    assert run_command("start", "2").status == 0
    assert (root / "work" / "twice" / "solution.py").is_file()


@pytest.mark.parametrize(
    "command", [name for name in COMMANDS if name not in ("list", "next", "status")]
)
@pytest.mark.parametrize("slug", ["dubble", "nothing-like-it", "../problems/double", ".", "99"])
def test_an_unknown_problem_is_a_usage_error(
    run_command: Run, root: Path, command: str, slug: str
) -> None:
    result = run_command(command, slug)
    assert (result.status, result.out) == (2, "")
    assert result.err.count("\n") == 1
    assert ("did you mean 'double'?" in result.err) or ("`infra-lab list`" in result.err)
    assert not (root / "work").exists()


def test_reset_keeps_the_old_attempt_and_the_history(run_command: Run, root: Path) -> None:
    run_command("start", "double")
    run_command("hint", "double")
    attempt(root, WRONG)
    run_command("test", "double")
    result = run_command("reset", "double")
    assert result.status == 0
    kept = Path("work", "double", "attempts", "001.py")
    assert f"Your attempt is kept: {kept}" in result.out
    assert (root / kept).read_text(encoding="utf-8") == WRONG
    assert attempt_text(root) == STARTER
    mine = progress_of(root)
    assert (mine["hints"], len(mine["attempts"]), mine["resets"]) == (1, 1, 1)


def test_reset_of_the_untouched_starter_says_so(run_command: Run, root: Path) -> None:
    run_command("start", "double")
    assert "there was nothing to keep" in run_command("reset", "double").out


@pytest.mark.parametrize("command", ["test", "watch", "reset"])
@pytest.mark.parametrize("language", ["en", "zh"])
def test_what_needs_an_attempt_says_how_to_begin_one(
    run_command: Run, root: Path, command: str, language: str
) -> None:
    result = run_command(command, "double", "--lang", language)
    assert (result.status, result.out) == (2, "")
    assert "`infra-lab start double`" in result.err


# ---- hint ----


def test_hints_come_one_at_a_time_and_are_counted(run_command: Run, root: Path) -> None:
    run_command("start", "double")
    texts = ["Think of addition.", "Add it to itself.", "Return number + number."]
    for number, text in enumerate(texts, 1):
        result = run_command("hint", "double")
        assert f"Hint {number} of 3\n  {text}\n" in result.out
        assert [other in result.out for other in texts].count(True) == 1
        assert progress_of(root)["hints"] == number
    result = run_command("hint", "double")
    assert "All 3 hints are revealed" in result.out
    assert "`infra-lab solution double --reveal`" in result.out
    assert progress_of(root)["hints"] == 3


def test_all_repeats_what_was_revealed_and_reveals_no_more(run_command: Run, root: Path) -> None:
    assert "No hint has been revealed yet" in run_command("hint", "double", "--all").out
    run_command("hint", "double")
    run_command("hint", "double")
    out = run_command("hint", "double", "--all").out
    assert "Think of addition." in out
    assert "Add it to itself." in out
    assert "Return number" not in out
    assert progress_of(root)["hints"] == 2


@pytest.mark.parametrize("options", [(), ("--all",)])
def test_after_a_hint_the_solution_is_offered_as_it_stands_open(
    run_command: Run, root: Path, options: tuple[str, ...]
) -> None:
    run_command("start", "double")
    for _ in range(3):
        run_command("hint", "double")
    shut = run_command("hint", "double", *options).out.splitlines()[-1]
    assert "`infra-lab solution double --reveal`, which is recorded" in shut
    run_command("solution", "double", "--reveal")
    seen = run_command("hint", "double", *options).out.splitlines()[-1]
    assert seen.startswith("next: infra-lab test double")
    assert "`infra-lab solution double`" in seen
    assert "--reveal" not in seen
    assert "recorded" not in seen
    seen = run_command("hint", "double", *options, "--lang", "zh").out.splitlines()[-1]
    assert "`infra-lab solution double` 重看题解" in seen
    solve(root)
    done = run_command("hint", "double", *options).out.splitlines()[-1]
    assert done == "next: infra-lab solution double  (compare with other approaches)"
    done = run_command("hint", "double", *options, "--lang", "zh").out.splitlines()[-1]
    assert done == "下一步：infra-lab solution double（对比其他解法）"


def test_damaged_hints_are_our_fault_and_name_the_file(run_command: Run, root: Path) -> None:
    path = root / "problems" / "double" / "hints.toml"
    path.write_text("[[hint]]\nen = 'only English'\n")
    result = run_command("hint", "double")
    assert result.status == 3
    assert str(path) in result.err


# ---- solution ----


def test_the_solution_stays_shut_until_the_problem_is_solved(run_command: Run, root: Path) -> None:
    result = run_command("solution", "double")
    assert (result.status, result.out) == (2, "")
    assert "not solved yet" in result.err
    assert "--reveal" in result.err


def test_after_a_pass_it_shows_every_approach_and_the_notes(run_command: Run, root: Path) -> None:
    solve(root)
    result = run_command("solution", "double")
    assert result.status == 0
    for text in ("return 2 * number", "number << 1", "Both take one operation."):
        assert text in result.out
    assert progress_of(root)["revealed"] is None
    assert "都只要一次运算" in run_command("solution", "double", "--lang", "zh").out


def test_revealing_is_recorded_and_shown(run_command: Run, root: Path) -> None:
    assert run_command("solution", "double", "--reveal").status == 0
    assert progress_of(root)["revealed"] is not None
    assert run_command("solution", "double").status == 0  # open from now on
    solve(root)
    assert "solved (after the solution)" in run_command("list").out


# ---- status ----


def test_status_counts_by_track_and_level(run_command: Run, root: Path) -> None:
    solve(root)
    run_command("start", "twice")
    facts = json.loads(run_command("status", "--json").out)
    assert facts["counts"] == {"new": 0, "attempted": 1, "solved": 1}
    assert facts["tracks"]["serving"] == {"new": 0, "attempted": 1, "solved": 0}
    assert facts["levels"]["easy"] == {"new": 0, "attempted": 0, "solved": 1}
    table = run_command("status").out
    assert re.search(r"^total +1 +1 +0 +2$", table, re.MULTILINE)
    assert str(Path("work", "progress.json")) in table


# ---- progress ----


def test_progress_moves_to_another_machine_with_its_one_file(
    run_command: Run,
    root: Path,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    solve(root)
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    write_problem(elsewhere)
    monkeypatch.setenv("INFRA_LAB_PROBLEMS", str(elsewhere))
    (elsewhere / "work").mkdir()
    (root / "work" / "progress.json").rename(elsewhere / "work" / "progress.json")
    (row,) = json.loads(run_command("list", "--json").out)
    assert row["status"] == "solved"


@pytest.mark.parametrize("by", ["option", "variable"])
def test_progress_may_stand_elsewhere(
    run_command: Run, root: Path, monkeypatch: pytest.MonkeyPatch, by: str
) -> None:
    path = root / "synced" / "mine.json"
    options = ["--progress", str(path)] if by == "option" else []
    if by == "variable":
        monkeypatch.setenv("INFRA_LAB_PROGRESS", str(path))
    run_command("hint", "double", *options)
    assert path.is_file()
    assert not (root / "work").exists()


def test_a_damaged_progress_file_is_set_aside_and_said(run_command: Run, root: Path) -> None:
    path = root / "work" / "progress.json"
    path.parent.mkdir()
    path.write_text('{"version": 1, "problems": {"double"')
    result = run_command("list", "--json")
    (kept,) = path.parent.glob("progress.damaged-*.json")
    assert result.status == 0
    assert json.loads(result.out)
    assert str(kept) in result.err
    assert kept.read_text() == '{"version": 1, "problems": {"double"'
    assert not path.exists()


def test_a_newer_progress_file_is_refused(run_command: Run, root: Path) -> None:
    path = root / "work" / "progress.json"
    path.parent.mkdir()
    path.write_text('{"version": 9}')
    for arguments in (("list",), ("start", "double"), ("hint", "double")):
        result = run_command(*arguments)
        assert result.status == 2
        assert "update infra-lab" in result.err
    assert path.read_text() == '{"version": 9}'


# ---- languages ----


def learn(run_command: Run, root: Path, *options: str) -> list[Any]:
    """A learner's way through all commands; what each printed."""
    results = [
        run_command(*arguments, *options)
        for arguments in (
            ("list",),
            ("next",),
            ("status",),
            ("start", "double"),
            ("start", "double"),
            ("hint", "double"),
            ("hint", "double", "--all"),
            ("test", "double"),
        )
    ]
    attempt(root, WRONG)
    results += [run_command(name, "double", *options) for name in ("test", "reset")]
    attempt(root, RIGHT)
    results += [run_command("test", "double", *options), run_command("next", *options)]
    return results


def test_every_command_speaks_english_and_ends_by_naming_the_next_one(
    run_command: Run, root: Path
) -> None:
    for result in learn(run_command, root):
        assert not CHINESE.search(result.out + result.err)
        assert re.match(r"next: infra-lab [a-z]+", result.out.splitlines()[-1])


def test_every_command_speaks_chinese(run_command: Run, root: Path) -> None:
    kept = re.compile(
        r"`[^`]*`|infra-lab[ \w]*|[\w./\\-]*(?:solution|progress|README|\d{3})[\w./\\-]*|python -i"
        r"|double|twice|triple|arithmetic|other|number|NotImplementedError|starter|Why"
    )
    for result in learn(run_command, root, "--lang", "zh"):
        assert re.match(r"下一步：infra-lab [a-z]+", result.out.splitlines()[-1])
        left = re.findall(r"[A-Za-z]{3,}", kept.sub("", result.out + result.err))
        assert set(left) <= {"raise", "JSON"}, result.out


def test_the_environment_chooses_the_language(
    run_command: Run, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LANG", "zh_CN.UTF-8")
    assert "未开始" in run_command("list").out
    monkeypatch.setenv("INFRA_LAB_LANG", "en")
    assert "new" in run_command("list").out
    assert "未开始" in run_command("list", "--lang", "zh").out


@pytest.mark.parametrize("command", COMMANDS)
def test_a_language_that_is_none_is_a_usage_error(
    run_command: Run, root: Path, command: str
) -> None:
    slug = () if command in ("list", "next", "status") else ("double",)
    result = run_command(command, *slug, "--lang", "fr")
    assert (result.status, result.out) == (2, "")
    assert result.err == "error: --lang must be en or zh, not 'fr'\n"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("start",), "缺少 SLUG（参见 `infra-lab start --help`）"),
        (("hint", "double", "--al"), "没有选项 '--al'：是不是 '--all'？（参见"),
        (("hint", "double", "--zzz"), "没有选项 '--zzz'（参见"),
        (("test", "double", "--seed", "x"), "--seed 必须是整数，而不是 'x'（参见"),
        (("test", "double", "--file"), "--file 需要一个值（参见"),
        (("test", "double", "twice"), "参数太多，从 'twice' 起是多余的（参见"),
    ],
)
def test_a_wrong_command_line_is_explained_in_chinese(
    run_command: Run,
    root: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: tuple[str, ...],
    said: str,
) -> None:
    monkeypatch.setenv("INFRA_LAB_LANG", "zh")
    result = run_command(*arguments)
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith(f"错误：{said}")
    assert result.err.count("\n") == 1


def test_an_error_is_labelled_in_the_learners_language(run_command: Run, root: Path) -> None:
    for options in ((), ("--lang", "en")):
        assert run_command("solution", "double", *options).err.startswith("error: double is not")
    result = run_command("solution", "double", "--lang", "zh")
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith("错误：double 还没解出")
    (root / "problems" / "double" / "hints.toml").unlink()
    result = run_command("hint", "double", "--lang", "zh")
    assert result.status == 3
    assert result.err.startswith("错误：")


@pytest.mark.parametrize("command", COMMANDS)
def test_help_is_in_both_languages(run_command: Run, root: Path, command: str) -> None:
    english = run_command(command, "--help").out
    assert not CHINESE.search(english)
    assert f"Example: infra-lab {command}" in english
    assert "\nOptions:\n" in english
    for arguments in (("--lang", "zh", "--help"), ("--help", "--lang=zh")):
        chinese = run_command(command, *arguments).out
        assert f"示例：infra-lab {command}" in chinese
        assert "\n选项：\n" in chinese
        descriptions = [line for line in chinese.splitlines() if line.startswith("  -")]
        assert descriptions
        assert all(CHINESE.search(line) for line in descriptions)
    assert not re.search(r"<\w|range>|\{|\x1f", english + chinese)


# ---- for other programs ----


def test_json_is_json_and_nothing_else(run_command: Run, root: Path) -> None:
    attempt(root, WRONG)
    for arguments in (("list",), ("next",), ("status",), ("test", "double")):
        result = run_command(*arguments, "--json")
        json.loads(result.out)
        assert result.err == ""


def test_commands_at_once_lose_nothing(root: Path) -> None:
    program = "from infra_lab.cli.main import main; import sys; main(sys.argv[1:])"
    children = [
        subprocess.Popen(
            [sys.executable, "-c", program, "hint", slug, "--lang", "en"],
            env=os.environ | {"PYTHONPATH": str(REPOSITORY)},
            stdout=subprocess.DEVNULL,
        )
        for slug in ("double", "twice", "double", "twice")
    ]
    assert [child.wait(timeout=60) for child in children] == [0, 0, 0, 0]
    assert [progress_of(root, slug)["hints"] for slug in ("double", "twice")] == [2, 2]
