"""Every problem in the repository keeps what its folder promises, and its grader is sharp."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from infra_lab.practice import catalog
from infra_lab.practice.catalog_check import check_problem
from infra_lab.practice.folder_check import GENERIC_MUTANTS, MIN_ACCEPTED, MIN_MUTANTS
from infra_lab.practice.sandbox import Sandbox

SLUGS = catalog.slugs()


@pytest.fixture(scope="module")
def sandbox() -> Iterator[Sandbox]:
    with Sandbox() as sandbox:
        yield sandbox


def test_there_are_problems_and_each_has_a_number_of_its_own() -> None:
    assert len(SLUGS) >= 16
    assert [problem.number for problem in catalog.load_all()] == [*range(1, len(SLUGS) + 1)]


@pytest.mark.parametrize("slug", SLUGS)
def test_the_folder_is_whole_and_the_grader_is_fair_and_sharp(slug: str, sandbox: Sandbox) -> None:
    report = check_problem(slug, sandbox)
    assert report.faults == []
    mutants, accepted = report.tally("mutants"), report.tally("accepted")
    assert mutants.ok == mutants.total >= MIN_MUTANTS + len(GENERIC_MUTANTS)
    assert accepted.ok == accepted.total >= MIN_ACCEPTED
    assert report.tally("starters").ok == 1
