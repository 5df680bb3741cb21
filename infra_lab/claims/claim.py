"""One claim: who says it, what they publish, what is right, and how one can know.

Three kinds of numbers meet in a value: `published` is what the post says, `worked` what an audit
worked out by hand, and the computed one comes from a function. The last two must agree; the first
agrees or not, which is what `holds` says.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal, get_args

from infra_lab.texts import TO, Language, Text, text

Verdict = Literal["right", "wrong", "conditions", "unverifiable"]
Evidence = Literal["calculated", "experiment", "cited", "unverified"]
Numbers = dict[str, float]
"""What a claim's function computes: each value by its name."""

VERDICTS: tuple[Verdict, ...] = get_args(Verdict)
EVIDENCE: tuple[Evidence, ...] = get_args(Evidence)

VERDICT_NAMES: Mapping[Verdict, Text] = {
    "right": text("right", "正确"),
    "wrong": text("wrong", "错误"),
    "conditions": text("needs conditions", "有条件"),
    "unverifiable": text("cannot be checked", "无法核实"),
}
EVIDENCE_NAMES: Mapping[Evidence, Text] = {
    "calculated": text("calculated", "计算"),
    "experiment": text("experiment", "实验"),
    "cited": text("cited", "引用"),
    "unverified": text("unverified", "未核实"),
}

POSTS: Mapping[str, str] = {
    "S0": "字节跳动 AI Infra (1)",
    "S1": "字节跳动 AML AI Infra 一二面",
    "S3": "字节跳动 AI Infra 校招 (1)",
}
"""The interview posts whose answers are examined."""

EXPERIMENTS = (
    "paged-memory",
    "copy-on-write",
    "continuous-batching",
    "chunked-prefill",
    "scheduling-policies",
    "prefill-decode-interference",
    "prefix-cache",
    "speculation",
    "online-softmax",
    "flash-attention-io",
    "kv-cache-cost",
    "kv-quantization",
    "weight-quantization",
    "activation-quantization",
    "tensor-parallel",
    "layer-kernels",
    "agent-loop",
    "cpp-bounds",
    "linux-debugging",
)
"""The experiments that claims about behaviour rest on: the one list of their names."""


def number_text(number: float, digits: int) -> str:
    """Whole numbers whole, others to so many significant digits."""
    return f"{number:,.0f}" if number == int(number) else f"{number:,.{digits}g}"


@dataclass(frozen=True, slots=True)
class Value:
    """A number of a claim. `published` is one number or the two ends of a range, in `unit`."""

    name: str
    unit: str
    published: tuple[float, float] | None
    worked: float | None
    tolerance: float  # relative: how much of the number may be rounding
    holds: bool

    def published_text(self, language: Language, digits: int) -> str:
        """One number, or the two ends of a range; empty where none is published."""
        if self.published is None:
            return ""
        low, high = (number_text(end, digits) for end in self.published)
        return low if low == high else low + TO[language] + high

    def agrees(self, computed: float) -> bool:
        """Whether the computed value is the published one, but for rounding."""
        if self.published is None:
            return True
        low, high = self.published
        slack = self.tolerance * max(abs(low), abs(high))
        return low - slack <= computed <= high + slack

    def confirms(self, computed: float) -> bool:
        """Whether the computed value is the one that was worked out by hand."""
        if self.worked is None:
            return True
        return abs(computed - self.worked) <= self.tolerance * abs(self.worked)


@dataclass(frozen=True, slots=True)
class Claim:
    """`statement` and `answer` by language. An answer names its computed numbers in braces, with a
    format: it holds no such number itself. `says` are keys of POSTS; `errors` the entries of the
    audit's list of errors that this claim stands for."""

    id: str
    topic: str
    says: tuple[str, ...]
    statement: Text
    verdict: Verdict
    evidence: Evidence
    answer: Text
    source: str
    experiment: str | None
    errors: tuple[str, ...]
    values: tuple[Value, ...]

    def answered(self, language: Language, numbers: Numbers) -> str:
        """The answer with the computed numbers filled in."""
        return self.answer[language].format(**numbers)
