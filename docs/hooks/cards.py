"""A claim as a card: what a post says, what is so, the numbers of both side by side, the source."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from infra_lab.claims.check import Outcome
from infra_lab.claims.claim import (
    EVIDENCE_NAMES,
    POSTS,
    VERDICT_NAMES,
    Claim,
    Numbers,
    Value,
    number_text,
)
from infra_lab.texts import Language

DIGITS = 4  # of a number on a card
_UNITS_ZH = {
    "times": "倍",
    "share": "占比",
    "tokens": "token",
    "FLOP/byte": "FLOP/字节",
    "bytes": "字节",
    "bits": "位",
    "all-reduces": "次 all-reduce",
    "ways": "种",
    "requests": "个请求",
    "KV heads": "个 KV 头",
    "blocks": "块",
    "kernels": "个算子",
    "billion parameters": "十亿参数",
    "1e9 parameters": "十亿参数",
    "GPUs": "张 GPU",
    "pairs": "对",
    "steps": "步",
    "target runs": "次目标模型",
    "levels": "级",
    "transfers": "次传输",
    "hours": "小时",
    "minutes": "分钟",
    "pages": "页",
}
ANSWERING_VERDICTS = ("wrong", "conditions")  # what a page must put right


def pick(texts: tuple[str, str], language: Language) -> str:
    """The English or the Chinese one of a pair."""
    return texts[language == "zh"]


def claim_card(outcome: Outcome, language: Language, up: str = "") -> list[str]:
    """Lines of HTML. `up` leads to the site's root."""
    claim = outcome.claim
    verdict = VERDICT_NAMES[claim.verdict][language]
    posts = "; ".join(POSTS[post] for post in claim.says)
    lines = [
        f'<div class="claim claim--{claim.verdict}" id="claim-{claim.id.lower()}">',
        '<p class="claim__head">'
        f'<span class="claim__id">{claim.id}</span> '
        f'<span class="claim__verdict">{verdict}</span> '
        f'<span class="claim__posts">{escape(posts)}</span></p>',
        f'<blockquote class="claim__said"><p>{_prose(claim.statement[language])}</p></blockquote>',
        f'<p class="claim__answer">{_prose(claim.answered(language, outcome.numbers))}</p>',
    ]
    if any(value.published is not None for value in claim.values):
        lines += _table(claim.values, outcome.numbers, language)
    lines += [f'<p class="claim__foot">{_foot(claim, language, up)}</p>', "</div>"]
    return lines


def unit_of(value: Value, language: Language) -> str:
    return _UNITS_ZH.get(value.unit, value.unit) if language == "zh" else value.unit


def _table(values: Sequence[Value], numbers: Numbers, language: Language) -> list[str]:
    heads = [("number", "数值"), ("published", "帖子"), ("computed", "计算"), ("unit", "单位")]
    lines = ['<table class="claim__numbers"><thead><tr>']
    lines += [f'<th scope="col">{pick(head, language)}</th>' for head in heads]
    lines.append("</tr></thead><tbody>")
    for value in values:
        if value.published is None:
            continue
        computed = numbers.get(value.name)
        mark = "holds" if value.holds else "differs"
        lines.append(
            f'<tr class="claim__{mark}"><td><code>{value.name}</code></td>'
            f"<td>{value.published_text(language, DIGITS)}</td>"
            f"<td>{'' if computed is None else number_text(computed, DIGITS)}</td>"
            f"<td>{escape(unit_of(value, language))}</td></tr>"
        )
    lines.append("</tbody></table>")
    return lines


def _foot(claim: Claim, language: Language, up: str) -> str:
    source = f"{pick(('Source', '来源'), language)}: {_prose(claim.source)}"
    evidence = f"{pick(('Evidence', '依据'), language)}: {EVIDENCE_NAMES[claim.evidence][language]}"
    parts = [source, evidence, f"<code>infra-lab claims show {claim.id}</code>"]
    if claim.experiment:
        command = f"<code>infra-lab claims run {claim.experiment}</code>"
        parts.append(f'<a href="{up}experiments/#{claim.experiment}">{command}</a>')
    return " · ".join(parts)


def _prose(text: str) -> str:
    """Escaped for HTML, and for the Markdown parser, which must not see emphasis in `a_b_c`."""
    return escape(text, quote=False)
