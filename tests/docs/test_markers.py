"""A marker becomes what it names, where it stands; one that names nothing is a fault."""

from __future__ import annotations

from html.parser import HTMLParser

import pytest

from docs.hooks.cards import claim_card
from docs.hooks.markers import MARKERS, expand, markers_of
from docs.hooks.page import read_page
from infra_lab.texts import Language
from tests.docs.page_helpers import FACTS, PAGES, complaints, expanded, page

FRONT = """\
title: x
claims: [K4, K2, K1]
problems: [lru_cache]
follow_ups:
  - question: 'Why "two" and {{ K4.kv_gb:.1f }}?'
    answer: |
      Because {{ K4.kv_gib:.2f }}.

      - a list
"""
VOID = {"br", "img", "hr", "input"}


class Balance(HTMLParser):
    """Fails where an element is closed that is not the last one opened."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("claim", list(FACTS.ledger.claims))
def test_every_claim_has_a_card_of_sound_html(claim: str, language: Language) -> None:
    parser = Balance()
    parser.feed("\n".join(claim_card(FACTS.outcome(claim), language)))
    assert parser.open == []


def test_a_card_shows_both_numbers_and_the_verdict() -> None:
    card = expanded("<!-- claim K4 -->")
    assert 'id="claim-k4"' in card
    assert "claim--wrong" in card
    assert "<td>13.4</td>" in card
    assert "<td>1.342</td>" in card
    assert "正确" not in card
    assert "错误" in expanded("<!-- claim K4 -->", language="zh")


def test_claims_wrong_shows_what_is_not_shown_yet() -> None:
    text = expanded("<!-- claims wrong -->\n\n<!-- claim K1 -->", FRONT)
    assert text.count('id="claim-k1"') == 1
    assert text.index('id="claim-k4"') < text.index('id="claim-k1"')
    assert 'id="claim-k2"' not in text  # it is right


def test_code_is_taken_by_name_and_numbered_as_in_its_file() -> None:
    text = expanded("<!-- code infra_lab.cache.block_pool:BlockPool.allocate -->")
    assert '??? code "infra_lab/cache/block_pool.py · BlockPool.allocate"' in text
    assert "    def allocate(" in text
    anchor = "reference/infra_lab/cache/block_pool/#infra_lab.cache.block_pool.BlockPool.allocate"
    assert f'href="../{anchor}"' in text
    assert f'href="../../{anchor}"' in expanded(
        "<!-- code infra_lab.cache.block_pool:BlockPool.allocate -->", language="zh"
    )


def test_what_a_marker_becomes_is_indented_as_it_is() -> None:
    lines = expanded("!!! note\n    <!-- claim K4 -->").split("\n")
    assert all(not line or line.startswith("    ") for line in lines[1:])


def test_follow_ups_are_folded_and_their_numbers_filled_in() -> None:
    text = expanded("<!-- follow-ups -->", FRONT)
    assert '??? question "1. Why &quot;two&quot; and 1.3?"' in text
    assert "    Because 1.25.\n\n    - a list" in text


def test_a_number_of_a_follow_up_that_is_not_recorded_is_the_only_gap() -> None:
    front = FRONT.replace("Because {{", "Because {{ run.no-such-record.x }} or {{")
    text, faults = expand(page("<!-- follow-ups -->", front), FACTS)
    assert '??? question "1. Why &quot;two&quot; and 1.3?"' in text
    assert "    Because … or 1.25.\n\n    - a list" in text
    assert [(one.line, one.is_gap) for one in faults] == [(13, True)]
    assert "no-such-record.json is not there yet" in faults[0].message


def test_problems_are_cards_that_lead_to_their_pages() -> None:
    text = expanded("<!-- problems -->", FRONT)
    assert 'href="../problems/lru_cache/"' in text
    assert "LRU cache" in text


def test_a_fragment_is_marked_for_tests_only() -> None:
    assert expanded("```python { .fragment }\nx\n```") == "```python\nx\n```"
    assert expanded('```python title="x" { .fragment }\nx\n```') == '```python title="x"\nx\n```'


def test_a_marker_in_code_is_text() -> None:
    body = "```html\n<!-- claim K4 -->\n```"
    assert expanded(body) == body


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("<!-- clam K4 -->", "there is no marker 'clam': did you mean 'claim'"),
        ("<!-- claim -->", "takes a name after it"),
        ("<!-- problems lru -->", "takes no argument"),
        ("<!-- claim K400 -->", "there is no claim 'K400'"),
        ("<!-- claims right -->", "only `claims wrong` is known"),
        ("<!-- run paged -->", "there is no experiment 'paged': did you mean 'paged-memory'"),
        ("<!-- command nothing -->", "commands.toml has no command 'nothing'"),
        ("<!-- code infra_lab.cache.block_pol:X -->", "did you mean 'block_pool'"),
        ("<!-- code infra_lab.cache.block_pool:BlockPol -->", "did you mean 'BlockPool'"),
        ("<!-- code infra_lab.cache.block_pool -->", "write it as module:name"),
        ("<!-- code ../secret.py:x -->", "there is no module or file"),
        ("<!-- steps tables -->", "did you mean 'block-tables'"),
    ],
)
def test_a_marker_that_names_nothing_is_a_fault(body: str, told: str) -> None:
    found = complaints(f"\n{body}", FRONT)
    assert [line for line, _ in found] == [14]
    assert told in found[0][1]


def test_markers_of_other_tools_are_left_alone() -> None:
    assert expanded("<!-- material/tags -->") == "<!-- material/tags -->"
    assert markers_of(page("<!-- material/tags -->\n<!-- claim K4 -->")) == [(2, "claim", "K4")]


def test_every_marker_of_the_table_stands_on_a_page() -> None:
    used = {name for path in PAGES for _, name, _ in markers_of(read_page(path))}
    assert used == set(MARKERS)
