"""A grade as the learner reads it: what failed, on which call, and what to do about it.

Pure: from a grade to lines, each with a style that a terminal may show and a pipe drops.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from infra_lab.practice.failures import Failure
from infra_lab.practice.grade import Grade, TestResult, Verdict
from infra_lab.practice.phrases import counted_name, phrase
from infra_lab.practice.verdict_texts import VERDICTS
from infra_lab.texts import Say, speaker

PRINTED_LINES = 20  # of a solution's output that a report shows, half of them at either end
PRINTED_WIDTH = 100
FAULT_LINES = 15
OTHERS = 12  # further properties that fail, by name

_CONTROL = re.compile(r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_LEFT_OUT = re.compile(r"\.\.\. ([\d,]+) bytes left out \.\.\.")  # the sandbox's own words


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a report.

    Attributes:
        style: good, bad, dim, title, code (Python), or "" for plain text.
    """

    text: str = ""
    style: str = ""


@dataclass(slots=True)
class Property:
    """Tests that state the same property: one, or all cases of a parametrised one."""

    states: dict[str, str]
    follow_up: str | None
    tests: list[TestResult] = field(default_factory=list)

    @property
    def failure(self) -> Failure | None:
        return next((test.failure for test in self.tests if test.failure is not None), None)

    @property
    def holds(self) -> bool:
        return all(test.verdict is Verdict.PASSED for test in self.tests)

    @property
    def is_skipped(self) -> bool:
        return all(test.skipped for test in self.tests)

    @property
    def calls(self) -> int:
        return sum(test.calls for test in self.tests)

    def budgets(self) -> dict[str, tuple[int, int]]:
        """Of each budget the use that came nearest to it."""
        nearest: dict[str, tuple[int, int]] = {}
        for test in self.tests:
            for name, (used, allowed) in test.budgets.items():
                before = nearest.get(name)
                if before is None or used * before[1] > before[0] * allowed:
                    nearest[name] = (used, allowed)
        return nearest


def properties(grade: Grade) -> list[Property]:
    """In the grader's order, each once."""
    found: dict[tuple[str, str | None], Property] = {}
    for test in grade.tests:
        key = (test.states.get("en", test.name), test.follow_up)
        found.setdefault(key, Property(test.states, test.follow_up)).tests.append(test)
    return list(found.values())


def plain_report(grade: Grade, language: str, file: str) -> str:
    """The report as text, for a pipe."""
    return "\n".join(line.text for line in report(grade, language, file)) + "\n"


def report(grade: Grade, language: str, file: str) -> list[Line]:
    """The report, line by line.

    Args:
        file: the graded file, as the learner knows it.
    """
    say = speaker(language)
    lines = [*_verdict(grade, say)]
    if grade.verdict is Verdict.GRADER_FAULT:
        lines += _fault(grade, language)
    elif grade.verdict is Verdict.PASSED:
        lines += _passed(grade, language)
    else:
        lines += _failed(grade, language, file)
    if grade.verdict is not Verdict.GRADER_FAULT:
        lines += _follow_ups(grade, say)
    lines += _printed(grade.output, say)
    return lines


# ---- the verdict ----


def _verdict(grade: Grade, say: Say) -> Iterator[Line]:
    headline, advice = VERDICTS[grade.verdict]
    mark, style = ("✓", "good") if grade.verdict is Verdict.PASSED else ("✗", "bad")
    where = ""
    failure = grade.first_failure
    if grade.verdict is Verdict.SYNTAX_ERROR and failure is not None and failure.line is not None:
        where = say(f", line {failure.line}", f"（第 {failure.line} 行）")
    calls = sum(test.calls for test in grade.tests)
    cost = say(
        f"  ({_calls(calls, say)}, {grade.elapsed_s:.1f} s)",
        f"（{_calls(calls, say)}，{grade.elapsed_s:.1f} 秒）",
    )
    spent = cost if grade.verdict is Verdict.PASSED else ""
    yield Line(f"{mark} {grade.slug}{say(': ', '：')}{say(*headline)}{where}{spent}", style)
    if text := say(*advice):
        yield Line(text)
    names = [name for name, state in grade.follow_ups().items() if state == "failed"]
    if grade.is_solved and names:
        failed = say(", ", "、").join(names)
        yield Line(
            say(
                f"The problem itself is solved. What fails is the follow-up {failed}.",
                f"题目本身已经解出，没通过的是进阶 {failed}。",
            ),
            "good",
        )


# ---- passed ----


def _passed(grade: Grade, language: str) -> Iterator[Line]:
    say = speaker(language)
    yield Line()
    for one in properties(grade):
        if one.holds:
            yield Line(f"  ✓ {one.states[language]}{_cost(one, language, say)}")


def _cost(one: Property, language: str, say: Say) -> str:
    parts = [_calls(one.calls, say)]
    for name, (used, allowed) in one.budgets().items():
        share = f"{used / allowed:.0%}" if allowed else "0%"
        parts.append(
            say(
                f"{name}: {used:,} of {allowed:,} allowed, {share}",
                f"{counted_name(name, language)}：{used:,}，上限 {allowed:,}，占 {share}",
            )
        )
    return say(f"  ({'; '.join(parts)})", f"（{'；'.join(parts)}）")


def _calls(count: int, say: Say) -> str:
    return say(f"{count:,} call" if count == 1 else f"{count:,} calls", f"{count:,} 次调用")


# ---- failed ----


def _failed(grade: Grade, language: str, file: str) -> Iterator[Line]:
    say = speaker(language)
    groups = properties(grade)
    broken = [one for one in groups if one.failure is not None]
    failure = grade.first_failure
    if grade.verdict is Verdict.UNSOLVED and failure is not None:
        yield from _stub(failure, say, file)
    elif failure is not None:
        if broken and grade.failure is None:
            yield Line()
            yield Line(say("Property: ", "性质：") + broken[0].states[language], "title")
        yield from _failure(failure, language, file)
    if grade.verdict is Verdict.UNSOLVED or not groups:
        return
    others = broken[1:] if grade.failure is None else broken
    held = sum(one.holds for one in groups)
    not_run = sum(not one.holds and not one.is_skipped and one.failure is None for one in groups)
    if others or held or not_run:
        yield Line()
        yield Line(_score(len(others), held, not_run, say), "dim")
    for one in others[:OTHERS]:
        yield Line(f"  ✗ {one.states[language]}", "dim")
    if len(others) > OTHERS:
        more = len(others) - OTHERS
        yield Line(say(f"  ... and {more} more", f"  ……还有 {more} 项"), "dim")


def _score(fail: int, hold: int, not_reached: int, say: Say) -> str:
    parts = [
        say(f"{count} {en}", f"{count} 项{zh}")
        for count, en, zh in (
            (fail, "fail too", "也不成立"),
            (hold, "hold", "成立"),
            (not_reached, "not reached", "没有运行到"),
        )
        if count
    ]
    return say(f"Other properties: {', '.join(parts)}.", f"其余性质：{'，'.join(parts)}。")


def _stub(failure: Failure, say: Say, file: str) -> Iterator[Line]:
    """Where the starter's raise still stands, which is all there is to say."""
    if failure.line is not None:
        yield Line()
        yield Line(say(f"line {failure.line} of {file}", f"{file} 第 {failure.line} 行"))


def _failure(failure: Failure, language: str, file: str) -> Iterator[Line]:
    say = speaker(language)
    if failure.call and not failure.call.startswith("import "):  # the file's name says that
        yield Line()
        for line in failure.call.splitlines():
            yield Line(line, "code")
    facts = [
        (say("got", "得到"), phrase(failure.got, language)),
        (say("expected", "应为"), phrase(failure.expected, language)),
        (say("note", "说明"), phrase(failure.note, language)),
    ]
    if failure.line is not None:
        facts.append(
            (
                say("line", "位置"),
                say(f"{failure.line} of {file}", f"{file} 第 {failure.line} 行"),
            )
        )
    shown = [(name, _clean(text)) for name, text in facts if text]
    if shown:
        yield Line()
    width = max((len(name) for name, _ in shown), default=0)
    for name, text in shown:
        label = say(f"{name + ':':<{width + 1}} ", f"{name}：")
        first, *rest = text.splitlines() or [""]
        yield Line(label + first)
        indent = " " * (width + 2 if language == "en" else 2 * len(label))
        for line in rest:
            yield Line(indent + line)


def _fault(grade: Grade, language: str) -> Iterator[Line]:
    text = phrase(grade.fault.strip(), language)
    yield Line()
    for line in _clean(text).splitlines()[-FAULT_LINES:]:
        yield Line(f"  {line}", "dim")


# ---- the rest ----


def _follow_ups(grade: Grade, say: Say) -> Iterator[Line]:
    said = {
        "solved": (say("solved", "已解出"), "good"),
        "failed": (say("not right yet", "还不对"), "bad"),
        "not attempted": (say("not attempted", "未作答"), "dim"),
        "not graded": (say("not reached", "没有运行到"), "dim"),
    }
    states = grade.follow_ups()
    if states and grade.verdict is not Verdict.UNSOLVED:
        yield Line()
    if grade.verdict is Verdict.UNSOLVED:
        return
    for name, state in states.items():
        text, style = said[state]
        yield Line(say(f"Follow-up {name}: {text}", f"进阶 {name}：{text}"), style)


def _printed(output: str, say: Say) -> Iterator[Line]:
    lines = _clean(output).rstrip().splitlines()
    if not lines:
        return
    half = PRINTED_LINES // 2
    yield Line()
    yield Line(say("Your solution printed:", "你的解答打印了："), "dim")
    left_out = len(lines) - PRINTED_LINES
    for line in lines[:half] if left_out > 0 else lines:
        yield _printed_line(line, say)
    if left_out > 0:
        yield Line(_left_out(lines[half:-half], say), "dim")
        for line in lines[-half:]:
            yield _printed_line(line, say)


def _left_out(lines: list[str], say: Say) -> str:
    """How much is not shown: in lines, or in bytes where the sandbox had cut some out of them."""
    for line in lines:
        if match := _LEFT_OUT.fullmatch(line):
            count = match[1]
            return say(f"  ... at least {count} bytes left out ...", f"  ……至少省略 {count} 字节……")
    return say(f"  ... {len(lines):,} lines left out ...", f"  ……省略 {len(lines):,} 行……")


def _printed_line(line: str, say: Say) -> Line:
    if match := _LEFT_OUT.fullmatch(line):
        return Line(say(f"  {line}", f"  ……省略 {match[1]} 字节……"), "dim")
    return Line(f"  | {_short(line)}", "dim")


def _short(line: str) -> str:
    return line if len(line) <= PRINTED_WIDTH else line[: PRINTED_WIDTH - 3] + "..."


def _clean(text: str) -> str:
    """Without what could steer a terminal."""
    return _CONTROL.sub("", text.replace("\r\n", "\n").replace("\r", "\n"))
