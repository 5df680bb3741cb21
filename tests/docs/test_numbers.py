"""A number on a page is the one that the repository computes, in the format that the page asks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from docs.hooks.facts import Facts
from docs.hooks.faults import MarkerError, NotRecordedError
from docs.hooks.numbers import number_text
from infra_lab.calculators.kv_cache import cache_bytes
from infra_lab.calculators.model_table import model
from tests.docs.page_helpers import FACTS, complaints, expanded


@pytest.fixture
def recorded(tmp_path: Path) -> Facts:
    """A repository with one recorded run and one measurement."""
    for folder, name, content in (
        ("recorded", "paged-memory", {"numbers": {"used": 0.204, "a.b": 7}, "tables": [{"n": 3}]}),
        ("measured", "speed", {"rows": [{"tokens": 302}], "best": {"x": 1.5}}),
    ):
        path = tmp_path / "docs" / folder / f"{name}.json"
        path.parent.mkdir(parents=True)
        path.write_text(json.dumps(content), encoding="utf-8")
    return Facts(tmp_path)


def test_a_claims_number_is_the_computed_one() -> None:
    wanted = cache_bytes(model("llama-2-70b"), 4096) / 1e9
    assert number_text("K4.kv_gb:.3f", FACTS) == f"{wanted:.3f}"


def test_a_published_number_is_the_posts_one() -> None:
    assert number_text("K4.published.kv_gb:.1f", FACTS) == "13.4"


def test_a_published_range_has_both_ends_in_the_pages_language() -> None:
    claim, value = next(
        (one, value)
        for one in FACTS.ledger.claims.values()
        for value in one.values
        if value.published and value.published[0] != value.published[1]
    )
    low, high = value.published or (0, 0)
    inside = f"{claim.id}.published.{value.name}:.3f"
    assert number_text(inside, FACTS) == f"{low:.3f} to {high:.3f}"
    assert number_text(inside, FACTS, "zh") == f"{low:.3f} 到 {high:.3f}"


@pytest.mark.parametrize(
    ("inside", "text"),
    [
        ('calc: cache_bytes(model("llama-2-70b"), 4096) / GIB :.2f', "1.25"),
        ('calc:cache_bytes(model("llama-2-70b"), 4096) / GIB:.2f', "1.25"),
        ('calc: gpu("h100").memory_bytes / GB', "80.0"),
        ("calc: sum([1, 2, 3][1:]) :d", "5"),
        ("calc: {1: 2.5}[1] :.1f", "2.5"),
        ("calc: max(1, 2) :,.0f", "2"),
    ],
)
def test_any_calculator_can_be_called(inside: str, text: str) -> None:
    assert number_text(inside, FACTS) == text


def test_recorded_and_measured_numbers_are_followed_by_their_path(recorded: Facts) -> None:
    assert number_text("run.paged-memory.used:.0%", recorded) == "20%"
    assert number_text("run.paged-memory.a.b", recorded) == "7"
    assert number_text("run.paged-memory.tables.0.n", recorded) == "3"
    assert number_text("measured.speed.rows.0.tokens:,d", recorded) == "302"
    assert number_text("measured.speed.best.x:.2f", recorded) == "1.50"


@pytest.mark.parametrize(
    ("inside", "told"),
    [
        ("K4.nothing", "K4 has no number 'nothing': it has kv_bytes, kv_gb, kv_gib"),
        ("K4.published.kv_gib", "K4 has no published 'kv_gib': it has kv_gb"),
        ("K44.kv_gb", "there is no claim 'K44': did you mean 'K4'"),
        ("K4.kv_gb:.2q", "format"),
        ("K4", "K4 has no number ''"),
        ("calc: cache_byte(1)", "did you mean 'cache_bytes'"),
        ('calc: model("llama-2-71b")', "llama-2-70b"),
        ("calc: 1 +", "SyntaxError"),
        ("calc: print", "NameError"),
        ('calc: model("llama-2-70b")', "is not a number but a Model"),
        ("run.paged-memory.unused", "there is no 'unused': it has used, a.b"),
        ("run.paged-memory.tables.4.n", "no place in a list of 1"),
        ("run.paged-memory.tables.0.n.x", "is asked of 3"),
        ("measured.speed.rows", "not a number but a list"),
    ],
)
def test_what_is_not_there_is_told_by_name(recorded: Facts, inside: str, told: str) -> None:
    with pytest.raises(MarkerError) as error:
        number_text(inside, recorded)
    assert told in str(error.value)
    assert not isinstance(error.value, NotRecordedError)


def test_a_run_without_a_record_is_a_gap(recorded: Facts) -> None:
    with pytest.raises(NotRecordedError, match=r"docs/recorded/speculation\.json is not there yet"):
        number_text("run.speculation.x", recorded)


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ('{\n "numbers": {\n', "docs/recorded/paged-memory.json:3: "),
        ("", "docs/recorded/paged-memory.json:1: "),
        ("[1, 2]", "docs/recorded/paged-memory.json:1: a record is a table, not a list"),
        ('{"numbers": [1]}', "its record's numbers are no table"),
        ("\udcff", "docs/recorded/paged-memory.json: 'utf-8'"),
    ],
)
def test_a_damaged_record_is_a_fault_that_names_its_file(
    recorded: Facts, content: str, told: str
) -> None:
    path = recorded.recorded / "paged-memory.json"
    path.write_bytes(content.encode("utf-8", "surrogateescape"))
    with pytest.raises(MarkerError) as error:
        number_text("run.paged-memory.used", recorded)
    assert told in str(error.value)


def test_braces_in_code_stay_and_in_diagrams_do_not() -> None:
    number = "{{ K4.kv_gb:.1f }}"
    assert expanded(f"a {number} `{number}` b") == f"a 1.3 `{number}` b"
    assert expanded(f"```jinja\n{number}\n```") == f"```jinja\n{number}\n```"
    assert expanded(f"```mermaid\nA[{number}]\n```") == "```mermaid\nA[1.3]\n```"


def test_every_fault_of_a_line_is_found_with_its_number() -> None:
    found = complaints("fine\n\n{{ K4.x }} and {{ Z9.x }} but {{ K4.kv_gb:.1f }}")
    assert [line for line, _ in found] == [3, 3]
    assert "K4 has no number" in found[0][1]
    assert "no claim 'Z9'" in found[1][1]
