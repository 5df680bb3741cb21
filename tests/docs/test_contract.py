"""A question page has what every question page has, in both languages."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from docs.hooks.contract import HEADINGS, contract_faults
from docs.hooks.page import Page, parse_page
from docs.hooks.parity import parity_faults
from infra_lab.texts import Language
from tests.docs.page_helpers import FACTS

FRONT: dict[str, Any] = {
    "title": "x",
    "description": "x",
    "topic": "kv_cache",
    "level": "core",
    "frequency": 5,
    "asked_in": ["S0"],
    "minutes": 8,
    "key_points": ["x"] * 5,
    "follow_ups": [{"question": "x", "answer": "y"}] * 6,
    "problems": ["lru_cache"],
    "claims": ["K4"],
}
BODY = (
    "<!-- claims wrong -->",
    "<!-- run paged-memory -->",
    "<!-- code infra_lab.cache.block_pool:BlockPool -->",
    "<!-- steps block-tables -->",
    "<!-- follow-ups -->",
    "<!-- problems -->",
)


def make(changes: dict[str, Any] | None = None, body: str | None = None, zh: bool = False) -> Page:
    language: Language = "zh" if zh else "en"
    front = {key: one for key, one in (FRONT | (changes or {})).items() if one is not None}
    if body is None:
        headings = [f"## {one}\ntext\n" for one in HEADINGS[language]]
        body = "".join(headings) + "\n".join(BODY)
    text = f"---\n{yaml.safe_dump(front)}---\n{body}"
    return parse_page(Path("made.md"), text, language)


def test_a_page_as_it_should_be_has_no_faults() -> None:
    assert contract_faults(make(), FACTS) == []
    assert contract_faults(make(zh=True), FACTS) == []


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"title": None}, "title is missing"),
        ({"author": "x"}, "author is no key"),
        ({"title": 5}, "title is a text"),
        ({"description": ["x"]}, "description is a text"),
        ({"topic": "kv"}, "topic is one of"),
        ({"topic": ["kv_cache"]}, "topic is one of"),
        ({"level": "junior"}, "level is one of"),
        ({"frequency": 6}, "frequency is a whole number from 1 to 5"),
        ({"minutes": "8"}, "minutes is a whole number"),
        ({"asked_in": ["S9"]}, "asked_in is of"),
        ({"key_points": ["x"] * 4}, "4 key points; 5 to 8"),
        ({"follow_ups": [{"question": "x", "answer": "y"}] * 5}, "5 follow-ups; 6 to 10"),
        ({"follow_ups": [{"question": "x"}]}, "a question and an answer"),
        ({"problems": ["lru"]}, "there is no problem 'lru'"),
        ({"claims": ["K99"]}, "there is no claim 'K99'"),
        ({"claims": "K4"}, "claims must be a list of texts"),
        ({"key_points": 5}, "key_points must be a list of texts"),
        ({"follow_ups": 5}, "follow_ups must be a list"),
    ],
)
def test_a_fault_of_the_front_matter_is_told(changes: dict[str, Any], told: str) -> None:
    found = [one.message for one in contract_faults(make(changes), FACTS)]
    assert any(told in one for one in found), found


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("## In 30 seconds\n", "headings missing"),
        ("# A title\n", "no level-1 heading"),
        ("## Something\n", "heading 'Something'"),
        ("", "the marker <!-- follow-ups --> must stand once"),
    ],
)
def test_a_fault_of_the_headings_is_told(body: str, told: str) -> None:
    found = [one.message for one in contract_faults(make(body=body), FACTS)]
    assert any(told in one for one in found), found


def test_headings_in_another_order_are_told() -> None:
    headings = [f"## {one}\n" for one in reversed(HEADINGS["en"])]
    body = "".join(headings) + "\n".join(BODY)
    assert [one.message for one in contract_faults(make(body=body), FACTS)] == [
        "level-2 headings are not in the given order"
    ]


@pytest.mark.parametrize(
    ("left_out", "told"),
    [
        ("<!-- claims wrong -->", "a correction is missing"),
        ("<!-- run paged-memory -->", "a run is missing"),
        ("<!-- code infra_lab.cache.block_pool:BlockPool -->", "code is missing"),
        ("<!-- steps block-tables -->", "a picture is missing"),
    ],
)
def test_what_belongs_on_every_page_is_missed(left_out: str, told: str) -> None:
    headings = "".join(f"## {one}\n" for one in HEADINGS["en"])
    body = headings + "\n".join(one for one in BODY if one != left_out)
    found = [one.message for one in contract_faults(make(body=body), FACTS)]
    assert len(found) == 1
    assert told in found[0]
    diagram = f"{body}\n```mermaid\nA --> B\n```"
    assert (contract_faults(make(body=diagram), FACTS) == []) is ("steps" in left_out)


@pytest.mark.parametrize(
    ("english", "chinese", "told"),
    [
        ("### a\n", "", "0 headings of level 3, the English page has 1"),
        ("<!-- claim K4 -->\n", "<!-- claim K1 -->\n", "marker 1 is claim K1"),
        ("<!-- claim K4 -->\n", "", "marker 1 is none; on the English page claim K4"),
        ("{{ K4.kv_gb:.1f }}\n", "{{ K4.kv_gib:.1f }}\n", "only one language has the numbers"),
        ("## a\n### b\n", "### a\n## b\n", "nested otherwise"),
    ],
)
def test_pages_that_differ_are_told(english: str, chinese: str, told: str) -> None:
    found = parity_faults(make(body=english), make(body=chinese, zh=True))
    assert [one.message for one in found if told in one.message], found


def test_the_same_number_may_be_written_in_another_format() -> None:
    twins = make(body="{{ K4.kv_gb:.1f }}"), make(body="{{ K4.kv_gb:.2f }}", zh=True)
    assert parity_faults(*twins) == []


def test_front_matter_that_differs_is_told() -> None:
    found = [one.message for one in parity_faults(make(), make({"level": "staff"}, zh=True))]
    assert found == ["front matter: level differs from the English page"]


@pytest.mark.parametrize("key", ["key_points", "follow_ups"])
def test_what_is_no_list_has_no_length_to_compare(key: str) -> None:
    assert parity_faults(make({key: 5}), make({key: 5}, zh=True)) == []
