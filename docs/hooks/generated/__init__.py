"""Pages that nobody writes: made at build from problems, kernels, claims and measurements."""

from __future__ import annotations

from collections.abc import Iterator

from docs.hooks.facts import Facts
from docs.hooks.generated import (
    errata,
    experiments,
    kernels,
    performance,
    plan,
    problems,
    questions,
    reference,
)
from infra_lab.texts import Language


def generated_pages(
    facts: Facts, language: Language, with_reference: bool = True
) -> Iterator[tuple[str, str]]:
    """The name of each page within its language's site, and its Markdown."""
    yield from questions.pages(facts, language)
    yield from problems.pages(facts, language)
    yield from kernels.pages(facts, language)
    yield from errata.pages(facts, language)
    yield from experiments.pages(facts, language)
    yield from plan.pages(facts, language)
    yield from performance.pages(facts, language)
    if with_reference and language == "en":
        yield from reference.pages(facts)
