"""What a learner reads of a grade, for every way to be wrong, in both languages."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from infra_lab.practice import catalog
from infra_lab.practice.failures import Failure
from infra_lab.practice.grade import Grade, TestResult, Verdict
from infra_lab.practice.phrases import phrase
from infra_lab.practice.report import OTHERS, plain_report, properties, report
from infra_lab.practice.sandbox import Sandbox
from infra_lab.practice.verdict_texts import VERDICTS
from tests.practice.tiny_problem import RIGHT, RIGHT_WITH_FOLLOW_UP, STARTER, WRONG, write_problem

LANGUAGES = ("en", "zh")
CHINESE = re.compile(r"[\u4e00-\u9fff]")
# English words that stay in a Chinese report: code, names of Python's, file names.
KEPT = re.compile(
    r"`[^`]*`|double|doubel|triple|solution\.py|[A-Z]\w*Error(?:: .*)?|SystemExit\(\w+\)|Python"
    r"|NotImplemented\w*|starter|print|raise|return|None|CPU|MiB|UTF-8|sys\.exit|exit|quit"
    r"|os\._exit|expected ':'|int"
)


def result(
    name: str,
    verdict: Verdict | None = Verdict.PASSED,
    *,
    states: str = "",
    follow_up: str | None = None,
    failure: Failure | None = None,
    calls: int = 1,
    budgets: dict[str, tuple[int, int]] | None = None,
    skipped: bool = False,
) -> TestResult:
    stated = {"en": states or name, "zh": f"性质 {states or name}"}
    return TestResult(name, stated, follow_up, verdict, failure, calls, budgets or {}, skipped)


def wrong(call: str = "double(2)", got: str = "0", expected: str = "4", **more: object) -> Failure:
    return Failure("wrong_answer", call, got, expected, **more)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def graded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Grade]:
    """Real grades of a tiny problem, a file for each way to be right or wrong."""
    root = tmp_path_factory.mktemp("root")
    write_problem(root)
    problem = catalog.load("double", root)
    sources = {
        "right": RIGHT_WITH_FOLLOW_UP,
        "without follow-up": RIGHT,
        "starter": STARTER,
        "wrong": WRONG,
        "wrong follow-up": RIGHT + "\n\ndef triple(number):\n    return 0\n",
        "returns nothing": "def double(number):\n    number * 2\n",
        "raises": "def double(number):\n    return [][number]\n",
        "over budget": (
            "def double(number):\n    total = 0\n    for _ in range(abs(number)):\n"
            "        total += 2\n    return total if number >= 0 else -total\n"
        ),
        "endless": "def double(number):\n    while True:\n        pass\n",
        "exits": "import sys\ndef double(number):\n    sys.exit(3)\n",
        "dies": "import os\ndef double(number):\n    os._exit(5)\n",
        "eats memory": (
            "def double(number):\n    kept = []\n    while True:\n"
            "        kept.append(bytearray(10**7))\n"
        ),
        "floods": "def double(number):\n    while True:\n        print('spam' * 1000)\n",
        "does not compile": "def double(number)\n    return 1\n",
        "does not load": "import no_such_module\n",
        "misspelt": "def doubel(number):\n    return 2 * number\n",
        "a value": "double = 2\n",
    }
    grades = {}
    with Sandbox() as sandbox:
        for name, source in sources.items():
            file = root / "solution.py"
            file.write_text(source, encoding="utf-8")
            grades[name] = sandbox.grade(problem, file)
    return grades


VERDICT_OF = {
    "right": Verdict.PASSED,
    "without follow-up": Verdict.PASSED,
    "starter": Verdict.UNSOLVED,
    "wrong": Verdict.WRONG_ANSWER,
    "wrong follow-up": Verdict.WRONG_ANSWER,
    "returns nothing": Verdict.WRONG_ANSWER,
    "raises": Verdict.CRASHED,
    "over budget": Verdict.OVER_BUDGET,
    "endless": Verdict.TIMED_OUT,
    "exits": Verdict.EXITED,
    "dies": Verdict.EXITED,
    "eats memory": Verdict.MEMORY_EXCEEDED,
    "floods": Verdict.OUTPUT_FLOOD,
    "does not compile": Verdict.SYNTAX_ERROR,
    "does not load": Verdict.IMPORT_FAILED,
    "misspelt": Verdict.MISSING_ENTRY_POINT,
    "a value": Verdict.MISSING_ENTRY_POINT,
}


def test_every_verdict_has_texts_of_its_own_in_both_languages() -> None:
    assert set(VERDICTS) == set(Verdict)
    for index in (0, 1):
        headlines = [headline[index] for headline, _ in VERDICTS.values()]
        assert len(set(headlines)) == len(headlines)
    for headline, advice in VERDICTS.values():
        assert CHINESE.search(headline[1])
        assert not CHINESE.search(headline[0] + advice[0])
        assert bool(advice[0]) == bool(advice[1])


@pytest.mark.parametrize("name", VERDICT_OF)
@pytest.mark.parametrize("language", LANGUAGES)
def test_a_real_grade_is_reported_by_its_verdict(
    graded: dict[str, Grade], name: str, language: str
) -> None:
    grade = graded[name]
    assert grade.verdict is VERDICT_OF[name]
    first = plain_report(grade, language, "solution.py").splitlines()[0]
    assert VERDICTS[grade.verdict][0][LANGUAGES.index(language)] in first
    assert first.startswith("✓" if grade.verdict is Verdict.PASSED else "✗")


@pytest.mark.parametrize("name", VERDICT_OF)
def test_a_chinese_report_has_no_english_left(graded: dict[str, Grade], name: str) -> None:
    grade = graded[name]
    code = {line.text for line in report(grade, "zh", "solution.py") if line.style == "code"}
    lines = plain_report(grade, "zh", "solution.py").splitlines()
    texts = [line for line in lines if line not in code and not line.startswith("  | ")]
    left = re.findall(r"[A-Za-z]{2,}", KEPT.sub("", "\n".join(texts)))
    assert left == []


@pytest.mark.parametrize("name", VERDICT_OF)
def test_an_english_report_has_no_chinese(graded: dict[str, Grade], name: str) -> None:
    assert not re.search(r"[\u3000-\u9fff\uff00-\uffef]", plain_report(graded[name], "en", "x.py"))


def test_a_wrong_answer_shows_the_property_the_call_and_both_values(
    graded: dict[str, Grade],
) -> None:
    said = plain_report(graded["wrong"], "en", "work/double/solution.py")
    assert "Property: small numbers are doubled\n\ndouble(1)\n\ngot:      0\nexpected: 2\n" in said
    assert "Other properties: 2 fail too." in said
    assert "  ✗ any number is doubled\n  ✗ a few lines are enough\n" in said


def test_the_call_is_python_at_the_line_start(graded: dict[str, Grade]) -> None:
    for name in ("wrong", "raises", "endless", "over budget", "exits", "eats memory"):
        lines = report(graded[name], "en", "x.py")
        code = "\n".join(line.text for line in lines if line.style == "code")
        assert isinstance(ast.parse(code).body[0], ast.Expr), name


def test_an_exception_shows_its_line(graded: dict[str, Grade]) -> None:
    said = plain_report(graded["raises"], "en", "work/double/solution.py")
    assert "got:      IndexError: list index out of range\n" in said
    assert "line:     2 of work/double/solution.py\n" in said
    assert "位置：work/double/solution.py 第 2 行" in plain_report(
        graded["raises"], "zh", "work/double/solution.py"
    )


def test_a_forgotten_return_is_noted(graded: dict[str, Grade]) -> None:
    assert "is a return missing?" in plain_report(graded["returns nothing"], "en", "x.py")
    assert "是不是漏了 return？" in plain_report(graded["returns nothing"], "zh", "x.py")


def test_a_timeout_names_the_call_and_the_limit(graded: dict[str, Grade]) -> None:
    said = plain_report(graded["endless"], "en", "x.py")
    assert "double(0)\n\ngot:      no answer after 2 s\n" in said
    assert "An endless loop" in said
    assert "not reached" in said


def test_a_budget_shows_used_and_allowed(graded: dict[str, Grade]) -> None:
    said = plain_report(graded["over budget"], "en", "x.py")
    assert re.search(r"got:      [\d,]+ executed lines\nexpected: at most 10\n", said)
    assert "Other properties: 2 hold." in said


def test_a_syntax_error_names_its_line(graded: dict[str, Grade]) -> None:
    said = plain_report(graded["does not compile"], "en", "x.py")
    assert "not valid Python, line 1" in said
    assert "\ndef double(number)\n" in said


def test_a_misspelt_name_is_answered_with_the_near_one(graded: dict[str, Grade]) -> None:
    assert "doubel is there" in plain_report(graded["misspelt"], "en", "x.py")


def test_a_value_where_a_function_is_wanted_is_named_as_such(graded: dict[str, Grade]) -> None:
    said = plain_report(graded["a value"], "en", "x.py")
    assert "got:      double is an int, not a function or class\n" in said
    assert "expected: a function or class named double\n" in said
    assert "double 的类型是 int，不是函数或类" in plain_report(graded["a value"], "zh", "x.py")


def test_a_flood_is_shortened(graded: dict[str, Grade]) -> None:
    said = plain_report(graded["floods"], "en", "x.py")
    assert len(said) < 4000
    assert re.search(r"\n  \.\.\. [\d,]+ bytes left out \.\.\.\n", said)
    assert re.search(r"省略 [\d,]+ 字节", plain_report(graded["floods"], "zh", "x.py"))


def test_many_printed_lines_show_their_beginning_and_their_end() -> None:
    grade = Grade("double", Verdict.PASSED, [result("test_a")])
    grade.output = "\n".join(f"line {i}" for i in range(1, 101))
    said = plain_report(grade, "en", "x.py")
    assert "  | line 10\n  ... 80 lines left out ...\n  | line 91\n" in said


def test_lines_are_not_counted_where_bytes_were_cut_out_before() -> None:
    grade = Grade("double", Verdict.PASSED, [result("test_a")])
    lines = [f"line {i}" for i in range(1, 101)]
    grade.output = "\n".join([*lines, "... 1,234,567 bytes left out ...", *lines])
    said = plain_report(grade, "en", "x.py")
    assert "  | line 10\n  ... at least 1,234,567 bytes left out ...\n  | line 91\n" in said
    assert "lines left out" not in said
    assert "至少省略 1,234,567 字节" in plain_report(grade, "zh", "x.py")


def test_the_starter_says_where_to_write_and_nothing_of_other_properties(
    graded: dict[str, Grade],
) -> None:
    said = plain_report(graded["starter"], "en", "x.py")
    assert "line 6 of x.py" in said
    assert "Other properties" not in said


def test_a_wrong_follow_up_says_that_the_problem_itself_is_solved(
    graded: dict[str, Grade],
) -> None:
    said = plain_report(graded["wrong follow-up"], "en", "x.py")
    assert "The problem itself is solved. What fails is the follow-up triple." in said
    assert "Follow-up triple: not right yet" in said


@pytest.mark.parametrize(
    ("language", "said"),
    [
        ("en", "What fails is the follow-up triple."),
        ("zh", "没通过的是进阶 triple。"),
    ],
)
def test_only_the_follow_up_that_failed_is_said_to_fail(language: str, said: str) -> None:
    grade = Grade(
        "double",
        Verdict.WRONG_ANSWER,
        [
            result("test_a"),
            result("test_b", Verdict.WRONG_ANSWER, follow_up="triple", failure=wrong()),
            result("test_c", None, follow_up="halve", skipped=True),
            result("test_d", None, follow_up="square"),
        ],
    )
    assert list(grade.follow_ups().values()) == ["failed", "not attempted", "not graded"]
    assert said in plain_report(grade, language, "x.py")


def test_a_pass_says_what_was_checked_how_often_and_at_what_cost(graded: dict[str, Grade]) -> None:
    said = plain_report(graded["right"], "en", "x.py")
    assert "  ✓ small numbers are doubled  (5 calls)\n" in said
    assert "  ✓ any number is doubled  (100 calls)\n" in said
    assert re.search(r"\(1 call; executed lines: \d+ of 10 allowed, \d+%\)", said)
    assert "Follow-up triple: solved" in said
    without = plain_report(graded["without follow-up"], "en", "x.py")
    assert "Follow-up triple: not attempted" in without


def test_cases_of_one_property_are_one_line_with_their_calls_summed() -> None:
    grade = Grade(
        "double",
        Verdict.PASSED,
        [
            result("test_a[1]", states="same", calls=2, budgets={"steps": (1, 10)}),
            result("test_a[2]", states="same", calls=3, budgets={"steps": (5, 10)}),
            result("test_b", states="other", calls=1000),
        ],
    )
    assert [(one.states["en"], one.calls) for one in properties(grade)] == [
        ("same", 5),
        ("other", 1000),
    ]
    said = plain_report(grade, "en", "x.py")
    assert "  ✓ same  (5 calls; steps: 5 of 10 allowed, 50%)\n" in said
    assert "  ✓ other  (1,000 calls)\n" in said


def test_one_failing_case_fails_its_property_once() -> None:
    grade = Grade(
        "double",
        Verdict.WRONG_ANSWER,
        [
            result("test_a[1]", states="same"),
            result("test_a[2]", Verdict.WRONG_ANSWER, states="same", failure=wrong()),
            result("test_a[3]", Verdict.WRONG_ANSWER, states="same", failure=wrong()),
            result("test_b"),
            result("test_c", None),
        ],
    )
    said = plain_report(grade, "en", "x.py")
    assert said.count("same") == 1
    assert "Other properties: 1 hold, 1 not reached." in said


def test_a_property_that_fails_alone_is_not_followed_by_an_empty_count() -> None:
    failing = result("test_a", Verdict.WRONG_ANSWER, failure=wrong())
    said = plain_report(Grade("double", Verdict.WRONG_ANSWER, [failing]), "en", "x.py")
    assert "Other" not in said
    assert not said.endswith("\n\n")


def test_many_failing_properties_are_counted_and_not_all_listed() -> None:
    tests = [result(f"test_{i}", Verdict.WRONG_ANSWER, failure=wrong()) for i in range(OTHERS + 6)]
    said = plain_report(Grade("double", Verdict.WRONG_ANSWER, tests), "en", "x.py")
    assert f"{OTHERS + 5} fail too" in said
    assert "... and 5 more" in said


def test_calls_of_several_lines_stay_whole_and_in_order() -> None:
    script = "cache = Cache(2)\ncache.put(1, 'a')\ncache.get(1)"
    failing = result("test_a", Verdict.WRONG_ANSWER, failure=wrong(call=script))
    said = plain_report(Grade("cache", Verdict.WRONG_ANSWER, [failing]), "en", "x.py")
    assert f"\n{script}\n" in said


def test_what_the_solution_printed_cannot_steer_the_terminal() -> None:
    grade = Grade("double", Verdict.PASSED, [result("test_a")])
    grade.output = "\x1b[2Jgone\x07\n\x1b]0;title\x07red \x1b[31mtext\x1b[0m\rover\n"
    said = plain_report(grade, "en", "x.py")
    assert not re.search(r"[\x00-\x09\x0b-\x1f\x7f]", said)
    assert "  | gone\n" in said
    assert "red text" in said


@pytest.mark.parametrize("language", LANGUAGES)
def test_a_fault_of_the_grader_is_said_to_be_no_fault_of_the_learners(language: str) -> None:
    grade = Grade("double", Verdict.GRADER_FAULT, [result("test_a", None)])
    grade.fault = (
        "Traceback (most recent call last):\n  File x\nZeroDivisionError: division by zero"
    )
    said = plain_report(grade, language, "x.py")
    assert {"en": "not your solution", "zh": "不是你的解答的问题"}[language] in said
    assert "ZeroDivisionError: division by zero" in said


def failure_texts() -> list[str]:
    """The literal texts that the kit, the loader and the sandbox give to a Failure."""
    folder = Path(catalog.__file__).parent
    found = []
    for name in ("kit.py", "loading.py", "child.py", "sandbox.py", "pytest_plugin.py"):
        for node in ast.walk(ast.parse((folder / name).read_text(encoding="utf-8"))):
            is_failure = isinstance(node, ast.Call) and ast.unparse(node.func).endswith(
                ("Failure", "self.fail", "call.fail", "_broken")
            )
            if isinstance(node, ast.Call) and is_failure:
                values = [*node.args, *(word.value for word in node.keywords)]
                found += [_example(value) for value in values]
    return sorted({text for text in found if " " in text})


def _example(node: ast.expr) -> str:
    """The text with a 7 for whatever is put into it; "" for what is no text."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = (part.value if isinstance(part, ast.Constant) else "7" for part in node.values)
        return "".join(map(str, parts))
    return ""


# They are values, exceptions' own words, or Python, and not phrases.
VERBATIM = re.compile(r"import .*|7: 7|7, a 7|a 7|7 7|more than 7")


def test_every_phrase_of_the_kit_has_its_chinese() -> None:
    texts = [text for text in failure_texts() if not VERBATIM.fullmatch(text)]
    assert len(texts) > 20
    assert [text for text in texts if phrase(text, "zh") == text] == []


def test_a_phrase_keeps_the_values_in_it() -> None:
    assert phrase("at most 1,200", "zh") == "至多 1,200"
    assert phrase("ValueError or KeyError to be raised", "zh") == "抛出 ValueError 或 KeyError"
    assert phrase("a grader's own words", "zh") == "a grader's own words"
    assert phrase("at most 1,200", "en") == "at most 1,200"
