"""Prompts in one piece or in chunks beside the decodes: what it does to ITL, and what it costs.

Answers "what is chunked prefill for, and how large should a chunk be?". Chats decode while long
prompts come in; the engine's own scheduler serves them under different token budgets, and whole
prompts with `enable_chunked_prefill=False`, as engines before Sarathi (arXiv 2308.16369) did.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import mean

from infra_lab.claims.experiments.experiment import (
    Conclusion,
    Experiment,
    Progress,
    Result,
    Table,
    column,
)
from infra_lab.claims.experiments.step_cost import SETTING, chunked_config, llama_13b_on_a100
from infra_lab.engine.simulation import SimulatedRun, TracedRequest, percentile, simulate
from infra_lab.engine.traces import poisson
from infra_lab.texts import Language, text

BUDGETS = (64, 128, 256, 512, 1024, 2048)
LONG_PROMPT, LONG_OUTPUT = 3500, 32
CHAT_PROMPT, CHAT_OUTPUT = 96, 160
_NUM_CHATS, _CHATS_PER_S, _LONG_EVERY_S = 150, 4.0, 2.0
_MAX_NUM_SEQS = 64


@dataclass(frozen=True, slots=True)
class Served:
    """Seconds: gaps between a chat's tokens, and first tokens of the long prompts."""

    inter_token_s: list[float]
    long_ttft_s: list[float]
    chat_ttft_s: list[float]
    longest_step_s: float
    most_tokens: int
    elapsed_s: float

    @property
    def itl_p99_s(self) -> float:
        return percentile(self.inter_token_s, 99)


def run(progress: Progress, seed: int) -> Result:
    arrivals = chats_and_long_prompts(seed)
    served: dict[int, Served] = {}  # by budget; 0: whole prompts
    for step, budget in enumerate((0, *BUDGETS)):
        progress(step, 1 + len(BUDGETS), text(f"budget {budget}", f"预算 {budget}"))
        served[budget] = of_run(serve(arrivals, budget))
    numbers = _numbers(served)
    return Result(numbers, (_table(served),), _conclusions(numbers))


def chats_and_long_prompts(seed: int) -> list[TracedRequest]:
    """Short chats at random moments, and a long prompt every two seconds among them."""
    chats = poisson([(CHAT_PROMPT, CHAT_OUTPUT)] * _NUM_CHATS, _CHATS_PER_S, Random(seed))
    last = chats[-1].arrival_s
    moments = (_LONG_EVERY_S * index for index in range(1, int(last / _LONG_EVERY_S)))
    prompts = [TracedRequest(moment, LONG_PROMPT, LONG_OUTPUT) for moment in moments]
    return sorted([*chats, *prompts], key=lambda one: one.arrival_s)


def serve(arrivals: Sequence[TracedRequest], budget: int) -> SimulatedRun:
    """With chunks that fill the budget; a budget of 0 leaves every prompt in one piece."""
    cost = llama_13b_on_a100()
    return simulate(arrivals, chunked_config(cost, arrivals, budget, _MAX_NUM_SEQS), cost)


def of_run(run: SimulatedRun) -> Served:
    chats = [one for one in run.served if one.traced.prompt_len == CHAT_PROMPT]
    long = [one for one in run.served if one.traced.prompt_len == LONG_PROMPT]
    return Served(
        [gap for one in chats for gap in one.inter_token_s],
        [one.ttft_s for one in long],
        [one.ttft_s for one in chats],
        max(one.seconds for one in run.steps),
        max(one.num_tokens for one in run.steps),
        run.elapsed_s,
    )


def _numbers(served: Mapping[int, Served]) -> dict[str, float]:
    whole = served[0]
    numbers = {
        "whole_itl_p99_ms": 1000 * whole.itl_p99_s,
        "whole_long_ttft_ms": 1000 * mean(whole.long_ttft_s),
    }
    for budget in BUDGETS:
        one = served[budget]
        numbers |= {
            f"itl_p99_ms_{budget}": 1000 * one.itl_p99_s,
            f"itl_gain_{budget}": whole.itl_p99_s / one.itl_p99_s,
            f"ttft_cost_{budget}": mean(one.long_ttft_s) / mean(whole.long_ttft_s),
            f"most_tokens_{budget}": one.most_tokens,
            f"stall_{budget}": max(one.inter_token_s) / one.longest_step_s,
        }
    return numbers


def _table(served: Mapping[int, Served]) -> Table:
    return Table(
        text(
            f"Chats decode while prompts of {LONG_PROMPT} tokens come in. {SETTING['en']}",
            f"对话在 decode，同时有 {LONG_PROMPT} token 的长 prompt 到达。{SETTING['zh']}",
        ),
        (
            column("token budget of a step", "每步 token 预算"),
            column("median ITL, ms", "ITL 中位数（ms）", ",.0f"),
            column("P99 ITL, ms", "P99 ITL（ms）", ",.0f"),
            column("longest ITL, ms", "最大 ITL（ms）", ",.0f"),
            column("TTFT of long prompts, ms", "长 prompt 的 TTFT（ms）", ",.0f"),
            column("TTFT of chats, ms", "对话的 TTFT（ms）", ",.0f"),
        ),
        tuple(
            (
                str(budget) if budget else text("whole prompts", "不分块"),
                1000 * percentile(one.inter_token_s, 50),
                1000 * one.itl_p99_s,
                1000 * max(one.inter_token_s),
                1000 * mean(one.long_ttft_s),
                1000 * mean(one.chat_ttft_s),
            )
            for budget, one in served.items()
        ),
    )


def _conclusions(numbers: Mapping[str, float]) -> tuple[Conclusion, ...]:
    tails = [numbers[f"itl_p99_ms_{budget}"] for budget in BUDGETS[2:]]
    return (
        Conclusion(
            text(
                "A budget of 256 tokens brings the chats' P99 ITL from {whole_itl_p99_ms:.0f} to "
                "{itl_p99_ms_256:.0f} ms, {itl_gain_256:.1f} times less.",
                "预算 256 token 时，对话的 P99 ITL 从 {whole_itl_p99_ms:.0f} ms 降到 "
                "{itl_p99_ms_256:.0f} ms，为原来的 1/{itl_gain_256:.1f}。",
            ),
            numbers["itl_gain_256"] > 4,
        ),
        Conclusion(
            text(
                "It costs the long prompts {ttft_cost_256:.2f} times their TTFT: each chunk shares "
                "its step with the decodes.",
                "代价是长 prompt 的 TTFT 变为 {ttft_cost_256:.2f} 倍：每个 chunk 都要与 decode "
                "共享一步。",
            ),
            1 < numbers["ttft_cost_256"] < 3,
        ),
        Conclusion(
            text(
                "The larger the chunk, the longer the tail: {itl_p99_ms_256:.0f} ms at 256, "
                "{itl_p99_ms_2048:.0f} ms at 2048.",
                "chunk 越大，尾延迟越长：256 时 {itl_p99_ms_256:.0f} ms，2048 时 "
                "{itl_p99_ms_2048:.0f} ms。",
            ),
            all(small < large for small, large in pairwise(tails)),
        ),
        Conclusion(
            text(
                "A chunk can be too small: at 64 tokens reading the weights bounds a step, and "
                "long prompts wait {ttft_cost_64:.1f} times as long.",
                "chunk 也会太小：64 token 时每步受读权重所限，长 prompt 要等 "
                "{ttft_cost_64:.1f} 倍的时间。",
            ),
            numbers["ttft_cost_64"] > 2 * numbers["ttft_cost_256"],
        ),
        Conclusion(
            text(
                "No step computes more than its budget (of 256: {most_tokens_256:.0f}), so that a "
                "decode waits for one step at most.",
                "任何一步都不超出预算（256 时最多 {most_tokens_256:.0f}），decode 最多等一步。",
            ),
            all(
                numbers[f"most_tokens_{budget}"] <= budget
                and numbers[f"stall_{budget}"] <= 1 + 1e-9
                for budget in BUDGETS
            ),
        ),
    )


def draw(result: Result, path: Path, language: Language) -> None:
    """Both sides of the trade by budget."""
    from infra_lab.figures import COLOURS, drawing

    (table,) = result.tables
    with drawing(path, columns=2, width=10.5, height=4) as (_, both):
        for axes, index, colour in zip(both, (2, 4), COLOURS, strict=False):
            whole, *chunked = table.numbers(index)
            axes.plot(BUDGETS, chunked, marker="o", color=colour)
            axes.axhline(whole, color=COLOURS[6], linestyle="--")
            axes.text(
                BUDGETS[0],
                whole,
                {"en": "whole prompts", "zh": "不分块"}[language],
                va="top",
            )
            axes.set_xscale("log", base=2)
            axes.set_xticks(BUDGETS, [str(budget) for budget in BUDGETS])
            axes.set_ylim(bottom=0)
            axes.margins(y=0.12)
            axes.set_xlabel({"en": "tokens a step", "zh": "每步 token 预算"}[language])
            axes.set_title(table.columns[index].title[language])


EXPERIMENT = Experiment(
    name="chunked-prefill",
    title=text("Prefill in chunks", "分块预填充"),
    question=text(
        "How much shorter is the P99 ITL with chunked prefill, and who pays for it?",
        "分块预填充能把 P99 ITL 降多少，代价由谁承担？",
    ),
    run=run,
    draw=draw,
    seconds=4,
)
