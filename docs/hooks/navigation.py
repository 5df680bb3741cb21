"""The tabs and what lies under them, in both languages from one place."""

from __future__ import annotations

from typing import Any

from docs.hooks.cards import pick
from docs.hooks.facts import Facts
from docs.hooks.generated.kernels import kernel_pages
from docs.hooks.generated.questions import questions
from infra_lab.practice.problem import TRACK_NAMES
from infra_lab.texts import Language

Nav = list[Any]


def navigation(facts: Facts, language: Language, with_reference: bool) -> Nav:
    """What `nav` in mkdocs.yml would hold."""

    def say(en: str, zh: str) -> str:
        return pick((en, zh), language)

    nav: Nav = [
        {say("Home", "首页"): "index.md"},
        {say("Questions", "问题"): ["questions/index.md", *_questions(facts, language)]},
        {say("Problems", "题目"): ["problems/index.md", *_problems(facts, language)]},
        {
            say("Kernels", "算子"): [
                "kernels/index.md",
                *(
                    {one.name: f"kernels/{one.name}.md"}
                    for one in facts.once(kernel_pages, facts.root)
                ),
            ]
        },
        {say("Calculator", "计算器"): "calculator.md"},
        {say("Study plan", "学习计划"): "plan.md"},
        {say("Errata", "勘误"): "errata.md"},
        {
            say("More", "更多"): [
                {say("Experiments", "实验"): "experiments.md"},
                {say("Glossary", "术语表"): "glossary.md"},
                {say("Measured performance", "实测性能"): "performance.md"},
                {say("Quantization measured", "量化实测"): "quantization.md"},
                {say("Tags", "标签"): "tags.md"},
                *([{"API reference": "reference/index.md"}] if with_reference else []),
            ]
        },
    ]
    return nav


def _questions(facts: Facts, language: Language) -> Nav:
    """By topic, in the ledger's order."""
    found = questions(facts, language)
    nav: Nav = []
    for name, topic in facts.ledger.topics.items():
        own = [{one.title: f"questions/{one.slug}.md"} for one in found if one.topic == name]
        if own:
            nav.append({topic.title[language]: own})
    return nav


def _problems(facts: Facts, language: Language) -> Nav:
    return [
        {
            names[language]: [
                {one.title[language]: f"problems/{one.slug}.md"}
                for one in facts.problems.values()
                if one.track == track
            ]
        }
        for track, names in TRACK_NAMES.items()
    ]
