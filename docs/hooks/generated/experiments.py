"""All experiments on one page: what each asks, how to run it, and what it last said."""

from __future__ import annotations

from collections.abc import Iterator

from docs.hooks.cards import pick
from docs.hooks.facts import Facts
from infra_lab.claims.claim import EXPERIMENTS
from infra_lab.claims.experiments import experiment
from infra_lab.texts import Language


def pages(facts: Facts, language: Language) -> Iterator[tuple[str, str]]:
    yield "experiments.md", "\n".join(_page(facts, language))


def _page(facts: Facts, language: Language) -> Iterator[str]:
    yield from ("---", f"title: {pick(('Experiments', '实验'), language)}", "---", "")
    yield pick(
        (
            "Where a claim is about behaviour, an experiment shows it: with the engine's own "
            "scheduler, block pool and cache, real programs and real passes. Conclusions are "
            "ratios and counts, so they hold on any machine; the tables are those of the machine "
            "named below each.",
            "涉及行为的论断由实验来证明：用引擎自己的调度器、block 池和缓存，以及真实的程序。"
            "结论都是比值和计数，在任何机器上都应成立；表格来自各自标注的机器。",
        ),
        language,
    )
    yield ""
    for name in EXPERIMENTS:
        one = experiment(name)
        yield from (f"## {one.title[language]} {{ #{name} }}", "", one.question[language], "")
        yield from (_claims(name, facts, language), "", f"<!-- run {name} -->", "")


def _claims(name: str, facts: Facts, language: Language) -> str:
    """The claims that rest on an experiment, as links to their corrections where they have one."""
    ids = [key for key, one in facts.ledger.claims.items() if one.experiment == name]
    label = pick(("Claims", "相关论断"), language)
    return f"{label}: {', '.join(ids)}" if ids else ""
