"""Speculative decoding against its formulas: the right one, and the one that passes its own cap.

Answers "acceptance 0.8 and 5 drafts: how many tokens a step?". The engine's rejection sampler
verifies drafts of known acceptance; then the n-gram proposer drafts for the default model, whose
acceptance is what it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from infra_lab.calculators.speculation import expected_tokens, speedup
from infra_lab.claims.experiments.experiment import (
    Conclusion,
    Experiment,
    Progress,
    Result,
    Table,
    column,
)
from infra_lab.claims.experiments.verified_drafts import simulated_tokens_per_step
from infra_lab.models.catalog import DEFAULT_MODEL
from infra_lab.sampling_params import SamplingParams
from infra_lab.speculative.acceptance import SpeculativeStats
from infra_lab.speculative_config import SpeculativeConfig
from infra_lab.texts import Language, Text, text

if TYPE_CHECKING:
    from infra_lab.engine.llm import LLM

NUM_DRAFTS = 5
ACCEPTANCES = (0.3, 0.5, 0.7, 0.8, 0.9)
_NUM_TRIALS, _OUTPUT = 2500, 48
_PASSAGE = (
    "The scheduler keeps two queues. A waiting request has no blocks. A running request holds a "
    "block table. When the pool is empty, the last running request is preempted and waits again."
)
_PROMPTS: Mapping[str, tuple[Text, tuple[str, ...]]] = {
    "copy": (
        text("repeat a passage", "复述一段文字"),
        (
            f"Repeat this text word for word: {_PASSAGE}",
            f"Copy the following text exactly, then stop. {_PASSAGE}",
        ),
    ),
    "free": (
        text("answer freely", "自由回答"),
        ("Why is the sky blue?", "Write two sentences about a lighthouse at night."),
    ),
}


@dataclass(frozen=True, slots=True)
class Measured:
    """Of the n-gram proposer on one kind of work; `acceptance` is the probability that a draft
    token stands where those before it did."""

    drafts: int
    drafted: int
    accepted: int
    acceptance: float
    tokens_per_draft: float
    expected: float
    steps_saved: float
    same_output: bool


def run(progress: Progress, seed: int) -> Result:
    progress(0, 3, text("known acceptance", "给定接受率"))
    simulated = {
        alpha: simulated_tokens_per_step(alpha, NUM_DRAFTS, _NUM_TRIALS, seed + index)
        for index, alpha in enumerate(ACCEPTANCES)
    }
    progress(1, 3, text("the default model", "默认模型"))
    measured = _measure_ngram()
    numbers = _numbers(simulated, measured)
    return Result(
        numbers, (_formula_table(simulated), _measured_table(measured)), _conclusions(numbers)
    )


def published_factor(acceptance: float, num_drafts: int) -> float:
    """What a post gives (claim A8): 1 / (1 - alpha) x K / (K + 1)."""
    return 1 / (1 - acceptance) * num_drafts / (num_drafts + 1)


def maximum_likelihood_acceptance(drafts: Sequence[tuple[int, int]]) -> float:
    """From (drafted, accepted) of each draft: accepted over verified places, of which the first
    that falls is the last."""
    verified = sum(min(drafted, accepted + 1) for drafted, accepted in drafts)
    return sum(accepted for _, accepted in drafts) / verified


def _measure_ngram() -> dict[str, Measured]:
    from infra_lab.engine.llm import LLM

    config = SpeculativeConfig("ngram", NUM_DRAFTS, adaptive=False)
    llm = LLM(DEFAULT_MODEL, num_blocks=128, speculative=config)
    return {name: _measure(llm, prompts) for name, (_, prompts) in _PROMPTS.items()}


def _measure(llm: LLM, prompts: Sequence[str]) -> Measured:
    """Greedy answers with drafts and without, which must be the same."""
    conversations = [[{"role": "user", "content": one}] for one in prompts]
    seen: list[tuple[int, int]] = []
    outputs = {}
    for num_drafts in (0, NUM_DRAFTS):
        params = SamplingParams(
            temperature=0.0,
            max_tokens=_OUTPUT,
            ignore_eos=True,
            num_speculative_tokens=num_drafts,
        )
        stats = _Recorded(seen)
        assert llm.engine.speculation is not None
        llm.engine.speculation.stats = stats
        found = llm.chat(conversations, params, use_progress=False)
        outputs[num_drafts] = [one.outputs[0].token_ids for one in found]
    accepted = sum(one for _, one in seen)
    acceptance = maximum_likelihood_acceptance(seen)
    decoded = len(prompts) * (_OUTPUT - 1)
    return Measured(
        drafts=len(seen),
        drafted=sum(one for one, _ in seen),
        accepted=accepted,
        acceptance=acceptance,
        tokens_per_draft=1 + accepted / len(seen),
        expected=sum(expected_tokens(acceptance, one) for one, _ in seen) / len(seen),
        steps_saved=accepted / decoded,
        same_output=outputs[0] == outputs[NUM_DRAFTS],
    )


class _Recorded(SpeculativeStats):
    """Keeps every draft as well."""

    def __init__(self, seen: list[tuple[int, int]]) -> None:
        super().__init__()
        self._seen = seen

    def observe(self, num_draft_tokens: int, num_accepted_tokens: int) -> None:
        super().observe(num_draft_tokens, num_accepted_tokens)
        if num_draft_tokens:
            self._seen.append((num_draft_tokens, num_accepted_tokens))


def _numbers(
    simulated: Mapping[float, float], measured: Mapping[str, Measured]
) -> dict[str, float]:
    numbers: dict[str, float] = {
        "drafts": NUM_DRAFTS,
        "cap": NUM_DRAFTS + 1,
        "expected_80": expected_tokens(0.8, NUM_DRAFTS),
        "simulated_80": simulated[0.8],
        "published_80": published_factor(0.8, NUM_DRAFTS),
        "published_90": published_factor(0.9, NUM_DRAFTS),
        "speedup_80": speedup(0.8, NUM_DRAFTS, 0.1),
        "speedup_30": speedup(0.3, NUM_DRAFTS, 0.1),
        "largest_error": max(
            abs(found / expected_tokens(alpha, NUM_DRAFTS) - 1)
            for alpha, found in simulated.items()
        ),
    }
    for name, one in measured.items():
        numbers |= {
            f"{name}_acceptance": one.acceptance,
            f"{name}_tokens": one.tokens_per_draft,
            f"{name}_expected": one.expected,
            f"{name}_steps_saved": one.steps_saved,
            f"{name}_same": one.same_output,
        }
    return numbers


def _formula_table(simulated: Mapping[float, float]) -> Table:
    return Table(
        text(
            f"Tokens a step with {NUM_DRAFTS} drafts: the engine's rejection sampler, "
            f"{_NUM_TRIALS} trials, and the formulas",
            f"{NUM_DRAFTS} 个草稿时每步 token 数：引擎的拒绝采样器（{_NUM_TRIALS} 次）与各公式",
        ),
        (
            column("acceptance", "接受率 α", "g"),
            column("simulated", "模拟", ".2f"),
            column("(1 - a^(K+1)) / (1 - a)", "(1−α^(K+1))/(1−α)", ".2f"),
            column("published: K/(K+1) / (1 - a)", "帖子：K/(K+1)/(1−α)", ".2f"),
            column("speed-up at c = 0.1", "加速比（c = 0.1）", ".2f"),
        ),
        tuple(
            (
                alpha,
                found,
                expected_tokens(alpha, NUM_DRAFTS),
                published_factor(alpha, NUM_DRAFTS),
                speedup(alpha, NUM_DRAFTS, 0.1),
            )
            for alpha, found in simulated.items()
        ),
    )


def _measured_table(measured: Mapping[str, Measured]) -> Table:
    return Table(
        text(
            f"N-gram drafts for SmolLM2-135M, greedy, {_OUTPUT} tokens a prompt",
            f"SmolLM2-135M 的 n-gram 草稿，贪心，每个 prompt {_OUTPUT} token",
        ),
        (
            column("work", "任务"),
            column("drafts", "草稿次数", "d"),
            column("acceptance", "接受率", ".2f"),
            column("tokens a draft", "每次草稿得到的 token", ".2f"),
            column("by the formula", "按公式", ".2f"),
            column("steps saved", "省去的步数", ".0%"),
        ),
        tuple(
            (
                _PROMPTS[name][0],
                one.drafts,
                one.acceptance,
                one.tokens_per_draft,
                one.expected,
                one.steps_saved,
            )
            for name, one in measured.items()
        ),
    )


def _conclusions(numbers: Mapping[str, float]) -> tuple[Conclusion, ...]:
    return (
        Conclusion(
            text(
                "The rejection sampler gives {simulated_80:.2f} tokens a step at an acceptance of "
                "0.8, by Leviathan's formula {expected_80:.2f}; over all acceptances they differ "
                "by {largest_error:.1%} at most.",
                "接受率 0.8 时拒绝采样器每步得到 {simulated_80:.2f} 个 token，Leviathan 公式为 "
                "{expected_80:.2f}；所有接受率下相差最多 {largest_error:.1%}。",
            ),
            numbers["largest_error"] < 0.05,
        ),
        Conclusion(
            text(
                "The published formula passes its own cap: {published_90:.1f} at 0.9, where "
                "{drafts:.0f} drafts cannot give more than {cap:.0f}.",
                "帖子的公式突破了自身上限：0.9 时给出 {published_90:.1f}，而 {drafts:.0f} 个草稿"
                "最多得到 {cap:.0f} 个 token。",
            ),
            numbers["published_90"] > numbers["cap"] >= expected_tokens(0.9, NUM_DRAFTS),
        ),
        Conclusion(
            text(
                "Tokens a step are not the speed-up: with drafts at a tenth of the cost it is "
                "{speedup_80:.2f} at 0.8, and {speedup_30:.2f}, slower, at 0.3.",
                "每步 token 数不等于加速比：草稿成本为 1/10 时，0.8 对应 {speedup_80:.2f} 倍，"
                "0.3 时为 {speedup_30:.2f} 倍，反而变慢。",
            ),
            numbers["speedup_80"] < numbers["expected_80"] and numbers["speedup_30"] < 1,
        ),
        Conclusion(
            text(
                "Acceptance is the work's: {copy_acceptance:.2f} where a text is repeated, "
                "{free_acceptance:.2f} in a free answer, with the same proposer.",
                "接受率取决于任务：同一个 n-gram 方法，复述文字时 {copy_acceptance:.2f}，"
                "自由回答时 {free_acceptance:.2f}。",
            ),
            numbers["copy_acceptance"] > numbers["free_acceptance"],
        ),
        Conclusion(
            text(
                "With the acceptance measured the formula is near what a draft gave: "
                "{copy_tokens:.2f} tokens where it says {copy_expected:.2f}, {free_tokens:.2f} "
                "where it says {free_expected:.2f}; places are not quite independent.",
                "代入实测接受率，公式与实际接近：每次草稿 {copy_tokens:.2f} 个 token（公式 "
                "{copy_expected:.2f}）、{free_tokens:.2f} 个（公式 {free_expected:.2f}）；"
                "各位置并不完全独立。",
            ),
            all(
                abs(numbers[f"{name}_tokens"] / numbers[f"{name}_expected"] - 1) < 0.2
                for name in _PROMPTS
            ),
        ),
        Conclusion(
            text(
                "Drafts change no output: greedy answers are the same with {drafts:.0f} drafts and "
                "with none.",
                "草稿不改变输出：有 {drafts:.0f} 个草稿与没有草稿时，贪心结果完全一致。",
            ),
            bool(numbers["copy_same"] and numbers["free_same"]),
        ),
    )


def draw(result: Result, path: Path, language: Language) -> None:
    """Tokens a step by acceptance: simulated points on the curve, the published one above it."""
    from infra_lab.figures import COLOURS, drawing

    formula = result.tables[0]
    alphas = [index / 100 for index in range(20, 95)]
    with drawing(path, width=7.0, height=4.2) as (_, axes):
        axes.plot(
            alphas,
            [expected_tokens(one, NUM_DRAFTS) for one in alphas],
            label={"en": "Leviathan et al.", "zh": "Leviathan 公式"}[language],
        )
        axes.plot(
            alphas,
            [published_factor(one, NUM_DRAFTS) for one in alphas],
            linestyle="--",
            label={"en": "published (claim A8)", "zh": "帖子的公式（A8）"}[language],
        )
        axes.plot(
            formula.numbers(0),
            formula.numbers(1),
            "o",
            color=COLOURS[2],
            label={"en": "rejection sampler, simulated", "zh": "拒绝采样器（模拟）"}[language],
        )
        axes.axhline(NUM_DRAFTS + 1, color=COLOURS[6], linestyle=":")
        axes.text(0.2, NUM_DRAFTS + 1.15, {"en": "most there can be", "zh": "上限"}[language])
        axes.set_ylim(0, 12)
        axes.set_xlabel({"en": "acceptance", "zh": "接受率 α"}[language])
        axes.set_title(
            {
                "en": f"Tokens a step, {NUM_DRAFTS} drafts",
                "zh": f"每步 token 数（{NUM_DRAFTS} 个草稿）",
            }[language]
        )
        axes.legend(loc="upper left")


EXPERIMENT = Experiment(
    name="speculation",
    title=text("Speculation against its formulas", "推测解码与公式"),
    question=text(
        "How many tokens does a step with drafts give, and which formula says so?",
        "带草稿的一步能得到多少 token，哪个公式是对的？",
    ),
    run=run,
    draw=draw,
    seconds=9,
    needs=("model",),
)
