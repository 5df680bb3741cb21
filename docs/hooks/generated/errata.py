"""Every correction of the ledger on one page: by the post that says it, then by topic."""

from __future__ import annotations

from collections.abc import Iterator

from docs.hooks.cards import ANSWERING_VERDICTS, pick
from docs.hooks.facts import Facts
from infra_lab.claims.claim import POSTS, Claim
from infra_lab.texts import Language


def pages(facts: Facts, language: Language) -> Iterator[tuple[str, str]]:
    yield "errata.md", "\n".join(_page(facts, language))


def _page(facts: Facts, language: Language) -> Iterator[str]:
    wrong = [one for one in facts.ledger.claims.values() if one.verdict in ANSWERING_VERDICTS]
    yield from ("---", f"title: {pick(('Errata', '勘误'), language)}")
    yield from ("hide: [navigation]", "tags: [errata]", "---", "")
    yield pick(
        (
            f"Of {len(facts.ledger.claims)} statements taken from interview posts, {len(wrong)} "
            "are wrong or hold only under conditions that the post leaves out. Each is here with "
            "what is so, the number computed beside the number published, and the source. "
            "`infra-lab claims check` recomputes all of them.",
            f"面经帖里的 {len(facts.ledger.claims)} 条论断中，有 {len(wrong)} 条是错的，或者要加上"
            "原帖没写的条件才成立。这里逐条给出事实、计算值与原文数字的对照和出处。"
            "`infra-lab claims check` 会重新计算全部数字。",
        ),
        language,
    )
    yield ""
    shown: dict[str, str] = {}
    for post, name in POSTS.items():
        own = [one for one in wrong if post in one.says]
        if not own:
            continue
        yield from (f"## {name}", "")
        for topic in facts.ledger.topics.values():
            claims = [one for one in own if one.topic == topic.name]
            if claims:
                yield from (f"### {topic.title[language]}", "")
                yield from _claims(claims, shown, name, language)


def _claims(
    claims: list[Claim], shown: dict[str, str], post: str, language: Language
) -> Iterator[str]:
    """A card once; a link to it where a second post says the same."""
    for one in claims:
        if one.id in shown:
            text = pick(("said here too", "此处同样出现"), language)
            yield from (f"- [{one.id}](#claim-{one.id.lower()}): {text}", "")
        else:
            shown[one.id] = post
            yield from (f"<!-- claim {one.id} -->", "")
