"""Generated pages hold what they are generated from, all of it, in both languages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from docs.hooks.cards import ANSWERING_VERDICTS
from docs.hooks.facts import Facts
from docs.hooks.faults import ROOT, MarkerError
from docs.hooks.generated import generated_pages, performance, plan, questions
from docs.hooks.generated.kernels import kernel_pages
from docs.hooks.generated.plan import LENGTHS, Step, cut_into_weeks
from docs.hooks.generated.problems import without_headings
from docs.hooks.generated.reference import modules
from docs.hooks.markers import expand, markers_of
from docs.hooks.navigation import navigation
from docs.hooks.page import Page, parse_page, read_page
from infra_lab.texts import Language
from tests.docs.page_helpers import FACTS

MADE = {
    language: dict(generated_pages(FACTS, language, with_reference=False))
    for language in ("en", "zh")
}


def test_both_languages_have_the_same_generated_pages() -> None:
    assert set(MADE["en"]) == set(MADE["zh"])


@pytest.mark.parametrize("language", ["en", "zh"])
def test_no_marker_of_a_generated_page_names_nothing(language: Language) -> None:
    faults = [
        str(fault)
        for name, text in MADE[language].items()
        for fault in expand(parse_page(ROOT / "docs" / language / name, text), FACTS)[1]
    ]
    assert faults == []


def test_the_errata_hold_every_correction_once() -> None:
    page = parse_page(ROOT / "docs/en/errata.md", MADE["en"]["errata.md"])
    shown = [argument for _, name, argument in markers_of(page) if name == "claim"]
    wrong = [key for key, one in FACTS.ledger.claims.items() if one.verdict in ANSWERING_VERDICTS]
    assert sorted(shown) == sorted(wrong)


@pytest.mark.parametrize("slug", list(FACTS.problems))
def test_a_problems_page_has_its_statement_hints_and_solutions(slug: str) -> None:
    problem = FACTS.problems[slug]
    for language in ("en", "zh"):
        text = MADE[language][f"problems/{slug}.md"]
        assert problem.statement(language).split("\n", 1)[1].strip() in text
        for hint in problem.hints():
            assert hint[language] in text
        for path in problem.approaches():
            first = path.read_text(encoding="utf-8").split("\n")[0]
            assert f"    {first}" in text


def test_every_row_of_the_quality_table_is_on_one_kernels_page() -> None:
    pages = kernel_pages(ROOT)
    table = json.loads((ROOT / "kernels/testing/quality.json").read_text(encoding="utf-8"))
    shown = [row for one in pages for row in one.rows]
    keys = [
        sorted((row["kernel"], row["config"], row["arch"]) for row in rows)
        for rows in (shown, table["rows"])
    ]
    assert keys[0] == keys[1]
    assert len(set(keys[0])) == len(keys[0])
    assert all(one.docstring and one.kernels for one in pages)


def test_a_build_reads_each_question_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The list of questions, the plan, the navigation and the home page all ask for them."""
    read: list[Path] = []

    def reading(path: Path) -> Page:
        read.append(path)
        return read_page(path)

    monkeypatch.setattr(questions, "read_page", reading)
    facts = Facts()
    navigation(facts, "en", with_reference=False)
    assert list(questions.pages(facts, "en"))
    assert list(plan.pages(facts, "en"))
    assert questions.most_asked_lines(facts, "en", "")
    assert read == sorted((ROOT / "docs/en/questions").glob("*.md"))


def test_what_is_worked_out_once_is_so_for_each_function_and_its_arguments() -> None:
    facts, asked = Facts(), []

    def double(number: int) -> int:
        asked.append(number)
        return 2 * number

    def negative(number: int) -> int:
        asked.append(-number)
        return -number

    assert [facts.once(double, 1), facts.once(double, 2), facts.once(double, 1)] == [2, 4, 2]
    assert [facts.once(negative, 1), facts.once(negative, 1)] == [-1, -1]
    assert asked == [1, 2, -1]


@pytest.mark.parametrize("text", ["[[role]\n", "[introduction]\n", "role = 5\n", "\udcff"])
def test_a_damaged_plan_is_a_fault_that_names_it(tmp_path: Path, text: str) -> None:
    (tmp_path / "docs").mkdir()
    path = tmp_path / "docs/plan.toml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(MarkerError, match=r"^docs/plan\.toml is not as it must be: "):
        list(plan.pages(Facts(tmp_path), "en"))


@pytest.mark.parametrize("text", ["{}", '{"introduction": "x", "tables": [1]}'])
def test_damaged_measurements_are_a_fault_that_names_them(tmp_path: Path, text: str) -> None:
    folder = Facts(tmp_path).measured
    folder.mkdir(parents=True)
    (folder / "performance.json").write_text(text, encoding="utf-8")
    with pytest.raises(MarkerError, match=r"^docs/measured/performance\.json is not as it must "):
        list(performance.pages(Facts(tmp_path), "en"))


def test_every_documented_module_is_in_the_reference() -> None:
    names = [name for name, _ in modules(ROOT)]
    assert "infra_lab.engine.scheduler" in names
    assert "kernels.softmax" in names
    assert len(set(names)) == len(names)


def test_headings_inside_a_fold_become_bold() -> None:
    text = "# Title\n\n## A\n```python\n# code\n```\n### B"
    assert [line for line in without_headings(text) if line] == [
        "**A**", "```python", "# code", "```", "**B**",
    ]  # fmt: skip


@given(st.lists(st.integers(15, 600), min_size=8, max_size=60), st.sampled_from(LENGTHS))
def test_a_plan_keeps_its_order_loses_nothing_and_has_no_empty_week(
    minutes: list[int], weeks: int
) -> None:
    steps = [Step(str(number), one, 1) for number, one in enumerate(minutes)]
    cut = cut_into_weeks(steps, weeks)
    assert [step for week in cut for step in week] == steps
    assert len(cut) == weeks
    assert all(cut)
