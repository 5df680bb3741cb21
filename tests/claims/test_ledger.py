"""The ledger: every record is whole, every number recomputed, every verdict borne out by them."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import replace
from pathlib import Path
from string import Formatter

import pytest

from infra_lab.claims.check import check, check_all, compute, report, topic_functions
from infra_lab.claims.claim import EXPERIMENTS, POSTS, VERDICTS, Claim, Value
from infra_lab.claims.ledger import Ledger, LedgerError, read_ledger
from infra_lab.errors import UsageError

LEDGER = read_ledger()
CLAIMS = list(LEDGER.claims.values())
CHINESE = re.compile(r"[\u4e00-\u9fff]")

# How many claims each section of the audit has.
SECTIONS = {
    "K": 16, "P": 18, "F": 16, "V": 13, "X": 14, "G": 10, "B": 20, "O": 25,
    "C": 11, "D": 18, "L": 17, "A": 19, "N": 34, "R": 14, "H": 3,
}  # fmt: skip


def calculated() -> list[Claim]:
    return [one for one in CLAIMS if one.evidence == "calculated"]


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda one: one.id)
def test_a_claim_comes_out_as_recorded(claim: Claim) -> None:
    assert check(claim).faults == ()


def test_every_section_is_whole() -> None:
    assert Counter(one.id[0] for one in CLAIMS) == SECTIONS
    for letter, number in SECTIONS.items():
        assert all(f"{letter}{index}" in LEDGER.claims for index in range(1, number + 1))


def test_every_error_of_the_audit_has_its_claim() -> None:
    found = {error for one in CLAIMS for error in one.errors}
    assert found == {f"E{number}" for number in range(1, 69)}


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda one: one.id)
def test_both_languages_are_there_and_are_what_they_say(claim: Claim) -> None:
    numbers = compute(claim)
    for text in (claim.statement["en"], claim.answered("en", numbers)):
        assert not CHINESE.search(text)
    for text in (claim.statement["zh"], claim.answered("zh", numbers)):
        assert re.search(r"[\u3000-\u9fff\uff00-\uffef]|/", text)


def named(text: str) -> set[str]:
    return {name for _, name, _, _ in Formatter().parse(text) if name}


@pytest.mark.parametrize("claim", calculated(), ids=lambda one: one.id)
def test_both_answers_give_the_same_computed_numbers_and_all_of_them(claim: Claim) -> None:
    english, chinese = named(claim.answer["en"]), named(claim.answer["zh"])
    assert english == chinese == {value.name for value in claim.values}


@pytest.mark.parametrize("claim", CLAIMS, ids=lambda one: one.id)
def test_a_verdict_is_borne_out_by_its_numbers(claim: Claim) -> None:
    held = [value.holds for value in claim.values if value.published is not None]
    if claim.verdict == "right":
        assert all(held)
    if claim.verdict == "wrong" and claim.evidence == "calculated" and held:
        assert not all(held)


def test_a_wrong_number_is_off_by_more_than_rounding() -> None:
    off = [
        (claim.id, value.name)
        for claim in CLAIMS
        for value in claim.values
        if value.published is not None and not value.holds
        if value.agrees(compute(claim)[value.name])
    ]
    assert off == []


def test_most_wrong_arithmetic_shows_the_published_number() -> None:
    wrong = [one for one in calculated() if one.verdict == "wrong"]
    shown = [one for one in wrong if any(value.published is not None for value in one.values)]
    assert len(shown) >= 0.8 * len(wrong)


def test_nearly_every_number_was_also_worked_by_hand() -> None:
    values = [value for one in CLAIMS for value in one.values]
    assert sum(value.worked is not None for value in values) >= 0.95 * len(values)


def test_what_behaves_names_its_experiment() -> None:
    assert [one.id for one in CLAIMS if one.evidence == "experiment" and not one.experiment] == []
    assert {one.experiment for one in CLAIMS} - {None} == set(EXPERIMENTS)


def test_what_is_from_memory_only_is_not_called_right() -> None:
    unverified = [one for one in CLAIMS if one.evidence == "unverified"]
    assert [one.id for one in unverified if one.verdict == "right"] == []
    from_memory = [one for one in CLAIMS if re.search(r"from memory|memory only", one.source)]
    assert [one.id for one in from_memory if one not in unverified] == []
    assert all(
        one.evidence in ("unverified", "calculated")
        for one in CLAIMS
        if one.verdict == "unverifiable"
    )


def test_every_function_computes_a_claim_of_its_topic() -> None:
    for topic in LEDGER.topics:
        module = topic_functions(topic)
        functions = {
            name
            for name, value in vars(module).items()
            if re.fullmatch(r"[a-z]\d+", name) and callable(value)
        }
        claims = {one.id.lower() for one in CLAIMS if one.topic == topic and one.values}
        assert functions == claims, topic


def test_every_post_is_examined() -> None:
    assert {post for one in CLAIMS for post in one.says} == set(POSTS)


def test_topics_are_ordered_and_titled_in_both_languages() -> None:
    assert [one.order for one in LEDGER.topics.values()] == list(range(1, 16))
    assert all(set(one.title) == {"en", "zh"} for one in LEDGER.topics.values())


def test_the_report_counts_everything_once() -> None:
    found = report(LEDGER)
    assert found["total"] == 248 == sum(found["by_verdict"].values())
    assert found["total"] == sum(found["by_evidence"].values())
    assert found["failed"] == []
    assert found["values"] == sum(len(one.values) for one in CLAIMS)


def test_filters_narrow_and_combine() -> None:
    wrong = LEDGER.select(verdict="wrong")
    assert {one.verdict for one in wrong} == {"wrong"}
    both = LEDGER.select(topic="kv_cache", verdict="wrong", source="S0", evidence="calculated")
    assert [one.id for one in both] == ["K4", "K5", "K15"]
    assert LEDGER.select() == CLAIMS
    assert sum(len(LEDGER.select(verdict=verdict)) for verdict in VERDICTS) == len(CLAIMS)


@pytest.mark.parametrize("kind", ["topic", "verdict", "source", "evidence"])
def test_a_filter_that_nothing_has_names_those_there_are(kind: str) -> None:
    with pytest.raises(UsageError, match=f"no claim has the {kind} 'x': choose one of"):
        LEDGER.select(**{kind: "x"})


def test_a_claim_is_found_in_any_case_and_an_unknown_one_says_the_range() -> None:
    assert LEDGER.find("k4").id == "K4"
    with pytest.raises(UsageError, match="K goes from K1 to K16"):
        LEDGER.find("K99")


# --- what the check finds ---------------------------------------------------------------------


def with_value(claim: Claim, **changes: object) -> Claim:
    first, *rest = claim.values
    return replace(claim, values=(replace(first, **changes), *rest))  # type: ignore[arg-type]


def test_a_number_that_is_not_as_worked_is_a_fault() -> None:
    (fault,) = check(with_value(LEDGER.find("K4"), worked=13.42)).faults
    assert fault == "kv_gb is 1.34218, worked out as 13.42"


def test_a_published_number_that_agrees_after_all_is_a_fault() -> None:
    (fault,) = check(with_value(LEDGER.find("K4"), published=(1.342, 1.342))).faults
    assert fault == "kv_gb is 1.34218 and agrees with what was published"
    (other,) = check(with_value(LEDGER.find("P1"), published=(0.5, 0.5))).faults
    assert other.endswith("differs from what was published")


def test_a_number_without_a_record_or_a_function_is_a_fault() -> None:
    k4 = LEDGER.find("K4")
    assert check(replace(k4, values=k4.values[1:])).faults == (
        "kv_gb is computed and not recorded",
    )
    extra = Value("more", "", None, None, 0.01, False)
    faults = check(replace(k4, values=(*k4.values, extra))).faults
    assert faults == ("more is recorded and not computed",)
    none = check(replace(LEDGER.find("P7"), evidence="calculated")).faults
    assert none == ("evidence is 'calculated', and there is no value",)


def test_a_range_is_agreed_with_anywhere_inside_it() -> None:
    value = Value("x", "", (2.0, 3.0), None, 0.01, True)
    assert [value.agrees(x) for x in (1.96, 1.98, 2.5, 3.02, 3.04)] == [
        False, True, True, True, False,
    ]  # fmt: skip


def test_checks_are_of_the_claims_that_are_given() -> None:
    assert [one.claim.id for one in check_all([LEDGER.find("K9")])] == ["K9"]


# --- records that are not as they must be -----------------------------------------------------

RECORD = """
order = 1
title = { en = "t", zh = "题" }
[[claim]]
id = "K1"
says = ["S0"]
en = "a"
zh = "甲"
verdict = "right"
evidence = "cited"
answer_en = "b"
answer_zh = "乙"
source = "s"
"""


def read(tmp_path: Path, text: str) -> Ledger:
    (tmp_path / "kv_cache.toml").write_text(text, encoding="utf-8")
    return read_ledger(tmp_path)


def test_a_record_of_the_needed_fields_is_enough(tmp_path: Path) -> None:
    assert list(read(tmp_path, RECORD).claims) == ["K1"]


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('source = "s"', "", "K1: source is missing"),
        ('source = "s"', 'source = " "', "K1: source is empty"),
        ('zh = "甲"', "", "K1: zh is missing"),
        ('verdict = "right"', 'verdict = "maybe"', "K1: verdict 'maybe' is none of right"),
        ('evidence = "cited"', 'evidence = "felt"', "K1: evidence 'felt' is none of"),
        ('says = ["S0"]', 'says = ["S2"]', "K1: says 'S2' is none of S0, S1, S3"),
        ('id = "K1"', 'id = "k-1"', "k-1: an id is a capital letter and a number"),
        ('id = "K1"', 'id = "K1"\nextra = 1', "K1: extra is no field of a claim"),
        ('id = "K1"', 'id = "K1"\nexperiment = "x"', "K1: experiment 'x' is none of"),
        ("order = 1", "", "kv_cache.toml: order is missing"),
        ("order = 1", "order = ", "kv_cache.toml: "),
        ('source = "s"', 'source = "s"\nvalues = [{ name = "x" }]', "has a name and a unit"),
        (
            'source = "s"',
            'source = "s"\nvalues = [{ name = "x", unit = "", wrong = 1 }]',
            "wrong is no field of a value",
        ),
        (
            'verdict = "right"',
            'verdict = "conditions"\nvalues = [{ name = "x", unit = "", published = 1 }]',
            "say whether the published x holds",
        ),
    ],
)
def test_a_faulty_record_is_named(tmp_path: Path, old: str, new: str, message: str) -> None:
    assert old in RECORD
    with pytest.raises(LedgerError, match=re.escape(message)):
        read(tmp_path, RECORD.replace(old, new, 1))


def test_an_id_that_is_there_twice_is_named(tmp_path: Path) -> None:
    twice = RECORD + RECORD[RECORD.index("[[claim]]") :]
    with pytest.raises(LedgerError, match="K1 is there twice"):
        read(tmp_path, twice)
