"""Syntax-tree mutants: what is changed, how each is named, and what counts as killed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from textwrap import dedent

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.errors import UsageError
from infra_lab.practice.grade import Verdict
from infra_lab.practice.mutation import describe, mutate
from infra_lab.practice.mutation_record import (
    MutationRecord,
    check_record,
    digest_of,
    equivalent_entry,
    load_equivalent,
    load_record,
)
from infra_lab.practice.mutation_rules import Mutant, mutants_of
from infra_lab.practice.problem import Problem, ProblemError
from tests.practice.doubling import GRADER, TOML, make_problem

Mutants = Callable[[str], list[Mutant]]


@pytest.fixture
def mutants(tmp_path: Path) -> Mutants:
    def of(source: str) -> list[Mutant]:
        path = tmp_path / "solution.py"
        path.write_text(dedent(source), encoding="utf-8")
        return mutants_of(path)

    return of


CHANGES = {
    "x = a + b": {"pass", "x = a - b", "x = a * b"},
    "x = a - b": {"pass", "x = a + b", "x = a * b", "x = b - a"},
    "x = a / b": {"pass", "x = a * b", "x = a // b", "x = b / a"},
    "x = a % b": {"pass", "x = a // b", "x = a * b", "x = b % a"},
    "x = a ** b": {"pass", "x = a * b", "x = a + b", "x = b ** a"},
    "x = a << b": {"pass", "x = a >> b", "x = b << a"},
    "x = a & b": {"pass", "x = a | b", "x = a ^ b"},
    "x = a @ b": {"pass", "x = b @ a"},
    "x = a < b": {"pass", "x = a <= b", "x = a >= b"},
    "x = a >= b": {"pass", "x = a > b", "x = a < b"},
    "x = a == b": {"pass", "x = a != b"},
    "x = a is b": {"pass", "x = a is not b"},
    "x = a in b": {"pass", "x = a not in b"},
    "x = a < b <= c": {
        "pass",
        "x = a <= b <= c",
        "x = a >= b <= c",
        "x = a < b < c",
        "x = a < b > c",
    },
    "x = a and b": {"pass", "x = a or b", "x = a", "x = b"},
    "x = a or b or c": {
        "pass",
        "x = a and b and c",
        "x = a or b",
        "x = a or c",
        "x = b or c",
    },
    "x = not a": {"pass", "x = a"},
    "x = -a": {"pass", "x = a"},
    "x = ~a": {"pass", "x = a"},
    "x = 3": {"pass", "x = 4", "x = 2"},
    "x = 0.5": {"pass", "x = 1.5", "x = -0.5"},
    "x = True": {"pass", "x = False"},
    "x = 'a'": {"pass", "x = ''"},
    "x = ''": {"pass", "x = 'X'"},
    "x = f(a, b, c)": {"pass", "x = f(b, a, c)", "x = f(a, c, b)"},
    "x = f(a, key=b)": {"pass", "x = f(a)"},
    "x = min(a, b)": {"pass"},
    "x = f(*a, b)": {"pass"},
    "x = a[b:c]": {"pass", "x = a[c:b]", "x = a[:c]", "x = a[b:]"},
    "x = a[b:]": {"pass", "x = a[:b]", "x = a[:]"},
    "x = a if b else c": {"pass", "x = a if not b else c", "x = a", "x = c"},
    "x += a": {"pass", "x -= a", "x *= a", "x = a"},
    "x = [i for i in a if i]": {
        "pass",
        "x = [i for i in a if not i]",
        "x = [i for i in a if True]",
    },
    "f(a)": {"pass"},
    "if a:\n    b()": {"pass", "if not a:"},
    "while a:\n    break": {"pass", "while not a:", "continue"},
    "for i in a:\n    continue": {"pass", "break"},
    "del a": {"pass"},
}


@pytest.mark.parametrize("source", CHANGES)
def test_a_statement_is_changed_in_each_of_these_ways(mutants: Mutants, source: str) -> None:
    assert {mutant.after for mutant in mutants(source)} == CHANGES[source]


def test_a_function_loses_its_return_and_its_default_changes(mutants: Mutants) -> None:
    made = mutants("def f(a, n=1):\n    return a\n")
    assert {(one.before, one.after) for one in made} == {
        ("def f(a, n=1):", "def f(a, n=2):"),
        ("def f(a, n=1):", "def f(a, n=0):"),
        ("return a", "pass"),
        ("return a", "return"),
    }


@pytest.mark.parametrize(
    "source",
    [
        '"""A docstring."""',
        "import math",
        "from math import gcd",
        "__slots__ = ('a', 'b')",
        "T = TypeVar('T', bound=int)",
        "if __name__ == '__main__':\n    print(1 + 1)",
        "if TYPE_CHECKING:\n    from a import b",
        "def f(a: list[int] = None) -> dict[str, int]:\n    '''Words.'''",
        "@dataclass(frozen=True)\nclass A:\n    '''Words.'''",
        "pass",
    ],
)
def test_code_that_no_grader_should_depend_on_is_left_alone(mutants: Mutants, source: str) -> None:
    assert mutants(source) == []


def test_the_words_of_an_error_are_left_alone_but_not_the_raise(mutants: Mutants) -> None:
    made = mutants("def f(n):\n    raise ValueError(f'{n} is below {0 + 1}')\n")
    assert [one.after for one in made] == ["pass"]


def test_an_id_names_the_place_and_both_lines(mutants: Mutants) -> None:
    made = mutants("class A:\n    def get(self):\n        return self.a < 3\n")
    assert "solution.A.get: return self.a < 3 => return self.a <= 3" in [one.id for one in made]


def test_ids_survive_edits_elsewhere(mutants: Mutants) -> None:
    before = mutants("def f(a):\n    return a + 1\n")
    after = mutants("# New.\nx = [1]\n\ndef g(a):\n    return a + 1\n\ndef f(a):\n    return a+1\n")
    assert {one.id for one in before} <= {one.id for one in after}


def test_equal_lines_have_ids_of_their_own(mutants: Mutants) -> None:
    made = mutants("def f(a):\n    g(a)\n    g(a)\n")
    assert [one.id for one in made] == ["solution.f: g(a) => pass", "solution.f: g(a) => pass #2"]


PIECES = st.sampled_from(
    [
        "x = x + 1",
        "x -= 1 // x",
        "if x > 1 and not x:\n    x = 2",
        "for i in range(0, x):\n    if i:\n        break\n    else:\n        continue",
        "x = [i for i in (1, 2) if i < x]",
        "x = x[1:2]",
        "x = f(1, *x, k=2)",
        "x = 'a' if x else f'{x:>3}'",
        "try:\n    x()\nexcept E:\n    x = 1\nfinally:\n    x = 2",
        "with x as y:\n    y()",
        "x = lambda a, b=1: a - b",
        "x = {1: 2, **x}",
        "while x:\n    x = -x",
        "assert x, 'words'",
        "del x[0]",
        "match x:\n    case 1:\n        x = 2\n    case _:\n        x = 3",
    ]
)


@given(pieces=st.lists(PIECES, min_size=1, max_size=4), is_in_function=st.booleans())
def test_every_mutant_compiles_differs_and_is_met_once(
    tmp_path_factory: pytest.TempPathFactory, pieces: list[str], is_in_function: bool
) -> None:
    import ast

    source = "\n".join(pieces)
    if is_in_function:
        source = "def f(x):\n" + "\n".join(f"    {line}" for line in source.splitlines())
    path = tmp_path_factory.getbasetemp() / "solution.py"
    path.write_text(source, encoding="utf-8")
    made = mutants_of(path)
    assert made
    for mutant in made:
        compile(mutant.source, "mutant", "exec")
    original = ast.unparse(ast.parse(source))
    assert len({one.source for one in made} | {original}) == len(made) + 1
    assert len({one.id for one in made}) == len(made)
    assert path.read_text(encoding="utf-8") == source


# ---- grading them ----

WEAK_GRADER = GRADER.replace("st.integers(-1000, 1000)", "st.just(2)")


@pytest.fixture
def problem(tmp_path: Path) -> Problem:
    return make_problem(tmp_path)


def test_a_good_grader_kills_all_and_the_record_is_fresh(problem: Problem) -> None:
    seen = []
    report = mutate(problem, notify=lambda fate, done, total: seen.append((done, total)))
    assert report.survivors == []
    assert report.faults == []
    assert [done for done, _ in seen] == [*range(1, len(report.fates) + 1)]
    assert all(fate.killer.startswith("test_") for fate in report.fates)
    report.record().save(problem)
    record, faults = check_record(problem)
    assert faults == []
    assert record is not None
    assert record.killed == record.total == len(report.fates) > 5


def test_a_weak_grader_leaves_survivors_that_are_shown_with_their_diff(tmp_path: Path) -> None:
    problem = make_problem(tmp_path, grader=WEAK_GRADER)
    (problem.solutions / "solution.py").write_text("def double(value): return value * 2\n")
    report = mutate(problem)
    assert [one.after for one in report.survivors] == []
    (problem.solutions / "solution.py").write_text("def double(value): return value + value\n")
    report = mutate(problem)
    assert [one.after for one in report.survivors] == ["return value * value"]
    text = "\n".join(describe(report))
    assert "- return value + value\n    + return value * value" in text
    assert equivalent_entry(report.survivors[0]) in text


def test_a_survivor_with_a_reason_is_equivalent(tmp_path: Path) -> None:
    problem = make_problem(tmp_path, grader=WEAK_GRADER)
    (problem.solutions / "solution.py").write_text("def double(value): return value + value\n")
    entry = equivalent_entry(mutate(problem).survivors[0])
    (problem.folder / "equivalent.toml").write_text(entry.replace('""', '"only 2 is asked"'))
    report = mutate(problem)
    assert report.survivors == []
    assert report.record().equivalent == 1
    assert report.record().justified == report.record().total


def test_a_killed_mutant_in_equivalent_toml_is_needless(problem: Problem) -> None:
    (problem.folder / "equivalent.toml").write_text(
        '[[mutant]]\nid = "solution.double: return value + value => pass"\nreason = "no"\n'
    )
    report = mutate(problem)
    assert report.needless == ["solution.double: return value + value => pass"]


def test_a_broken_grader_is_a_fault_and_no_kill(tmp_path: Path) -> None:
    grader = GRADER.replace(".equals(0)", ".equals(0 if solution.call('double', 1).value else 1/0)")
    problem = make_problem(tmp_path, grader=grader)
    (problem.solutions / "solution.py").write_text("def double(value): return value * 2\n")
    report = mutate(problem)
    broken = [fate for fate in report.fates if fate.verdict is Verdict.GRADER_FAULT]
    assert broken
    assert not any(fate.is_killed for fate in broken)
    assert len(report.faults) == len(broken)
    assert "ZeroDivisionError" in report.faults[0]


def test_an_endless_mutant_is_killed(problem: Problem) -> None:
    (problem.solutions / "solution.py").write_text(
        "def double(value):\n    while False:\n        pass\n    return value + value\n"
    )
    report = mutate(problem)
    (endless,) = [fate for fate in report.fates if fate.mutant.after == "while True:"]
    assert (endless.verdict, endless.killer) == (Verdict.TIMED_OUT, "test_zero")
    assert [one.before for one in report.survivors] == ["while False:"]


def test_the_search_ends_early_where_that_is_asked_for(problem: Problem) -> None:
    (problem.solutions / "solution.py").write_text(
        "def double(value):\n" + "    value += 0\n" * 30 + "    return value + value\n"
    )
    report = mutate(problem, stop_at=1)
    assert len(report.survivors) >= 1
    assert len(report.fates) < 30
    assert not report.is_whole


def test_a_slow_call_that_ends_is_not_killed_for_its_slowness(tmp_path: Path) -> None:
    problem = make_problem(
        tmp_path,
        grader=WEAK_GRADER.replace("just(2)", "just(0)"),
        toml=TOML.replace("call_s = 0.5", "call_s = 5"),
    )
    (problem.solutions / "solution.py").write_text(
        "import time\n\n\ndef double(value):\n    time.sleep(0.0)\n    return value + value\n"
    )
    report = mutate(problem)
    (slow,) = [fate for fate in report.fates if fate.mutant.after == "time.sleep(1.0)"]
    assert not slow.is_killed


def test_approaches_that_do_not_pass_have_no_mutants(problem: Problem) -> None:
    (problem.solutions / "solution.py").write_text("def double(value): return 1\n")
    with pytest.raises(ProblemError, match=r"solution.py is wrong_answer"):
        mutate(problem)


def test_one_approach_alone_is_not_the_whole(problem: Problem) -> None:
    (problem.solutions / "approach_shift.py").write_text("def double(value): return value << 1\n")
    report = mutate(problem, ["approach_shift"])
    assert {fate.mutant.approach for fate in report.fates} == {"approach_shift"}
    assert not report.is_whole
    with pytest.raises(UsageError, match="no approach 'approach_other'"):
        mutate(problem, ["approach_other"])


# ---- the record ----


def test_line_endings_do_not_change_the_digest(problem: Problem) -> None:
    before = digest_of(problem)
    for path in (problem.grader, *problem.approaches()):
        path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert digest_of(problem) == before


def test_any_edit_of_grader_approach_or_reasons_changes_the_digest(problem: Problem) -> None:
    digests = {digest_of(problem)}
    for path in (problem.grader, problem.approaches()[0]):
        path.write_text(path.read_text() + "# more\n")
        digests.add(digest_of(problem))
    (problem.solutions / "approach_other.py").write_text("")
    digests.add(digest_of(problem))
    (problem.folder / "equivalent.toml").write_text("")
    assert len(digests) == 4


def test_a_record_of_other_files_is_said_to_be_old(problem: Problem) -> None:
    MutationRecord("0" * 64, 10, 10, 0).save(problem)
    _, faults = check_record(problem)
    assert any("run `infra-lab dev mutate double`" in fault for fault in faults)


def test_a_record_below_the_mark_is_a_fault(problem: Problem) -> None:
    from infra_lab.practice.mutation_record import all_mutants

    total = len(all_mutants(problem))
    survivors = [f"one {i}" for i in range(total // 10 + 1)]
    killed = total - len(survivors)
    MutationRecord(digest_of(problem), total, killed, 0, {}, survivors).save(problem)
    _, faults = check_record(problem)
    assert len(faults) == 1
    assert "95% are wanted" in faults[0]


def test_a_record_that_does_not_add_up_is_a_fault(problem: Problem) -> None:
    from infra_lab.practice.mutation_record import all_mutants

    total = len(all_mutants(problem))
    MutationRecord(digest_of(problem), total, total + 3, 0).save(problem)
    assert "does not add up" in check_record(problem)[1][0]


def test_a_missing_or_damaged_record_is_a_fault(problem: Problem) -> None:
    assert "mutation.json is missing" in check_record(problem)[1][0]
    (problem.folder / "mutation.json").write_text("{")
    assert "mutation.json" in check_record(problem)[1][0]
    (problem.folder / "mutation.json").write_text(json.dumps({"digest": ""}))
    with pytest.raises(ProblemError):
        load_record(problem)


def test_equivalent_toml_needs_reasons_and_known_ids(problem: Problem) -> None:
    path = problem.folder / "equivalent.toml"
    for text, said in (
        ('[[mutant]]\nid = "x"\nreason = " "\n', "has no reason"),
        ('[[mutant]]\nid = "x"\n', "needs id and reason"),
        ('[[mutant]]\nid = "x"\nreason = "a"\n' * 2, "twice"),
        ("mutant = 1", "needs id and reason"),
        ("[[mutant", "equivalent.toml"),
    ):
        path.write_text(text)
        with pytest.raises(ProblemError, match=said):
            load_equivalent(problem)
    path.write_text('[[mutant]]\nid = "no such"\nreason = "a"\n')
    MutationRecord(digest_of(problem), 0, 0, 0).save(problem)
    assert any("there is no mutant 'no such'" in fault for fault in check_record(problem)[1])


@given(line=st.text(max_size=40))
def test_an_entry_for_equivalent_toml_reads_back(line: str) -> None:
    import tomllib

    mutant = Mutant(f"solution.f: {line} => pass", "solution", "x", line, "pass", "")
    (entry,) = tomllib.loads(equivalent_entry(mutant))["mutant"]
    assert entry == {"id": mutant.id, "reason": ""}


def test_a_file_that_changes_meanwhile_makes_no_record(problem: Problem) -> None:
    def change(fate: object, done: int, total: int) -> None:
        if done == 1:
            grader = problem.grader.read_text(encoding="utf-8")
            problem.grader.write_text(grader + "# changed\n", encoding="utf-8")

    report = mutate(problem, notify=change)
    assert not report.is_whole
    assert "changed meanwhile" in "\n".join(describe(report))
    report = mutate(problem)
    assert report.is_whole
