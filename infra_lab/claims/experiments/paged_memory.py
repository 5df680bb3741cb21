"""Contiguous reservations against pages: how much of the KV memory holds tokens.

Answers "where do 20 to 38 % come from, and what is left to waste in pages?". Reservations are made
from a buddy heap as the vLLM paper (arXiv 2309.06180, section 6.1) made them; the pages are the
engine's own block pool under its own scheduler. Memory and lengths are those of the paper's
figure 2: OPT-13B on an A100 of 40 GB, 12 GiB of KV memory, ShareGPT.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from random import Random

from infra_lab.calculators.kv_cache import bytes_per_token
from infra_lab.calculators.model_table import model
from infra_lab.calculators.paging import paged_utilization
from infra_lab.calculators.units import GIB
from infra_lab.claims.computed import measured
from infra_lab.claims.experiments.contiguous import (
    MemoryUse,
    reserve_exactly,
    reserve_longest,
    reserve_power_of_two,
    serve_contiguously,
)
from infra_lab.claims.experiments.experiment import (
    Conclusion,
    Experiment,
    Progress,
    Result,
    Table,
    column,
)
from infra_lab.config import DEFAULT_BLOCK_SIZE, EngineConfig
from infra_lab.engine.simulation import SimulatedStep, UnitSteps, simulate
from infra_lab.engine.traces import (
    ALPACA,
    LONGEST,
    SHAREGPT,
    draw_lengths,
    poisson,
)
from infra_lab.texts import Language, text

BLOCK_SIZE = DEFAULT_BLOCK_SIZE
BLOCK_SIZES = (1, 8, 16, 32, 64, 128, 256)
CAPACITY = 12 * GIB // int(bytes_per_token(model("opt-13b"))) // BLOCK_SIZE * BLOCK_SIZE
_NUM_REQUESTS = {"ShareGPT": 300, "Alpaca": 1200}

_RESERVATIONS = {
    "longest": reserve_longest(LONGEST),
    "pow2": reserve_power_of_two,
    "oracle": reserve_exactly,
}
_TITLES = {
    "longest": text("reserve the maximum (2048)", "按最大长度预留（2048）"),
    "pow2": text("reserve the next power of two", "按 2 的幂预留"),
    "oracle": text("reserve the true length", "按真实长度预留（先知）"),
    "paged": text("pages of 16 tokens", "分页，每页 16 token"),
}
_PARTS = {
    "used": text("tokens", "已存 token"),
    "reserved": text("reserved for later", "留给后续 token"),
    "internal": text("never used", "永远用不到"),
    "free": text("free, but too small", "空闲但放不下"),
}


def run(progress: Progress, seed: int) -> Result:
    uses: dict[str, dict[str, MemoryUse]] = {}
    sweep: dict[str, dict[int, float]] = {}
    preemptions = most_empty = 0.0
    for step, lengths in enumerate((SHAREGPT, ALPACA)):
        progress(step, 2, text(lengths.name, lengths.name))
        drawn = draw_lengths(lengths, _NUM_REQUESTS[lengths.name], Random(seed))
        found = {
            name: serve_contiguously(drawn, CAPACITY, reserve)
            for name, reserve in _RESERVATIONS.items()
        }
        found["paged"], steps, per_request = serve_in_pages(drawn, BLOCK_SIZE)
        uses[lengths.name] = found
        sweep[lengths.name] = {size: filled_share(drawn, size) for size in BLOCK_SIZES}
        if lengths is SHAREGPT:
            preemptions = per_request
        most_empty = max(most_empty, *(empty_slots_per_request(one) for one in steps))
    numbers = _numbers(uses, sweep) | {
        "preemptions_per_request": preemptions,
        "most_empty_slots": most_empty,
        "capacity_tokens": CAPACITY,
    }
    return Result(
        numbers,
        (*(_memory_table(name, found) for name, found in uses.items()), _sweep_table(sweep)),
        _conclusions(numbers),
    )


def serve_in_pages(
    lengths: list[tuple[int, int]], block_size: int
) -> tuple[MemoryUse, list[SimulatedStep], float]:
    """By the engine's scheduler and block pool, in the steps in which requests wait for room; and
    how often a request was preempted, in the mean."""
    config = EngineConfig(
        num_blocks=CAPACITY // block_size,
        block_size=block_size,
        max_num_seqs=1024,
        max_num_batched_tokens=2048,
        enable_prefix_caching=False,
    )
    served = simulate(poisson(lengths, 0, Random(0)), config, UnitSteps())
    steps = [one for one in served.steps if one.num_waiting]
    slots = CAPACITY * len(steps)
    used = sum(one.held_tokens for one in steps) / slots
    allocated = sum(one.blocks_used for one in steps) * block_size / slots
    batch = sum(one.num_requests for one in steps) / len(steps)
    use = MemoryUse(used, 0.0, allocated - used, 1 - allocated, batch)
    return use, steps, served.num_preemptions / len(lengths)


def empty_slots_per_request(step: SimulatedStep, block_size: int = BLOCK_SIZE) -> float:
    """Slots of held blocks without a token, a request: at most block_size - 1."""
    return (step.blocks_used * block_size - step.held_tokens) / max(1, step.num_requests)


def filled_share(lengths: Sequence[tuple[int, int]], block_size: int) -> float:
    """Of the slots of held blocks, the share with a token: over every step of every request's
    life, from its prompt to its last token but one, which needs no slot."""
    held = [
        tokens for prompt, output in lengths for tokens in range(prompt, prompt + max(1, output))
    ]
    return paged_utilization(held, block_size)


def _numbers(
    uses: Mapping[str, Mapping[str, MemoryUse]], sweep: Mapping[str, Mapping[int, float]]
) -> dict[str, float]:
    numbers = {
        f"{trace.lower()}_{name}_{kind}": getattr(use, kind)
        for trace, found in uses.items()
        for name, use in found.items()
        for kind in ("used", "batch")
    }
    paged = uses["ShareGPT"]["paged"].batch
    for name in _RESERVATIONS:
        numbers[f"gain_over_{name}"] = paged / uses["ShareGPT"][name].batch
    for trace, filled in sweep.items():
        for size, share in filled.items():
            numbers[f"{trace.lower()}_filled_{size}"] = share
    return numbers | {
        "paper_least": measured.LEAST_USED,
        "paper_most": measured.MOST_USED,
        "paper_over_longest": measured.BATCHED_VLLM / measured.BATCHED_ORCA_MAX,
        "paper_over_oracle": measured.BATCHED_VLLM / measured.BATCHED_ORCA_ORACLE,
    }


def _memory_table(trace: str, found: Mapping[str, MemoryUse]) -> Table:
    return Table(
        text(
            f"{trace}-like requests in {CAPACITY:,} slots (OPT-13B, A100 40 GB), while others wait",
            f"{trace} 类请求，{CAPACITY:,} 个 slot（OPT-13B，A100 40 GB），始终有请求排队",
        ),
        (
            column("memory", "内存管理"),
            *(column(part["en"], part["zh"], ".1%") for part in _PARTS.values()),
            column("requests at once", "同时运行的请求", ".1f"),
        ),
        tuple(
            (_TITLES[name], use.used, use.reserved, use.internal, use.free, use.batch)
            for name, use in found.items()
        ),
    )


def _sweep_table(sweep: Mapping[str, Mapping[int, float]]) -> Table:
    return Table(
        text("Share of the slots of held blocks that hold a token", "已分配块中存有 token 的比例"),
        (
            column("block size", "块大小", ",.0f"),
            *(column(f"{trace}-like", f"{trace} 类", ".1%") for trace in sweep),
        ),
        tuple((size, *(filled[size] for filled in sweep.values())) for size in BLOCK_SIZES),
    )


def _conclusions(numbers: Mapping[str, float]) -> tuple[Conclusion, ...]:
    least, most = numbers["sharegpt_longest_used"], numbers["sharegpt_oracle_used"]
    sizes = [numbers[f"sharegpt_filled_{size}"] for size in BLOCK_SIZES]
    return (
        Conclusion(
            text(
                "Reservations fill {sharegpt_longest_used:.1%} to {sharegpt_oracle_used:.1%} of "
                "the memory with tokens (the paper measured {paper_least:.1%} to "
                "{paper_most:.1%}).",
                "预留方式下只有 {sharegpt_longest_used:.1%} 到 {sharegpt_oracle_used:.1%} 的显存"
                "存有 token（论文实测 {paper_least:.1%} 到 {paper_most:.1%}）。",
            ),
            abs(least - measured.LEAST_USED) < 0.08 and abs(most - measured.MOST_USED) < 0.08,
        ),
        Conclusion(
            text(
                "Pages of 16 fill {sharegpt_paged_used:.1%} with requests as long as ShareGPT's.",
                "对 ShareGPT 这样的长度，16 token 的页能用到 {sharegpt_paged_used:.1%}。",
            ),
            numbers["sharegpt_paged_used"] > 0.95,
        ),
        Conclusion(
            text(
                "But {alpaca_paged_used:.1%} only with requests as short as Alpaca's: half a block "
                "a request is much of a short one.",
                "而对 Alpaca 这样的短请求只有 {alpaca_paged_used:.1%}：每个请求平均浪费半块，"
                "短请求占比就大。",
            ),
            numbers["alpaca_paged_used"] < 0.95 < numbers["sharegpt_paged_used"],
        ),
        Conclusion(
            text(
                "Pages run {gain_over_longest:.1f} times as many requests at once as the maximal "
                "reservation, {gain_over_oracle:.1f} times as many as the exact one (paper: "
                "{paper_over_longest:.1f} and {paper_over_oracle:.1f}).",
                "分页同时运行的请求数是最大预留的 {gain_over_longest:.1f} 倍、"
                "精确预留的 {gain_over_oracle:.1f} 倍（论文："
                "{paper_over_longest:.1f} 与 {paper_over_oracle:.1f}）。",
            ),
            numbers["gain_over_longest"] > 3 and numbers["gain_over_oracle"] > 1.8,
        ),
        Conclusion(
            text(
                "A request never leaves more than 15 slots of its blocks empty in the mean of a "
                "step (most: {most_empty_slots:.1f}).",
                "每一步里平均每个请求空着的 slot 从不超过 15 个（最多 {most_empty_slots:.1f}）。",
            ),
            numbers["most_empty_slots"] <= BLOCK_SIZE - 1,
        ),
        Conclusion(
            text(
                "The larger the block, the emptier: {sharegpt_filled_16:.1%} at 16 tokens, "
                "{sharegpt_filled_256:.1%} at 256; all are full at 1.",
                "块越大越空：16 token 时 {sharegpt_filled_16:.1%}，256 时 "
                "{sharegpt_filled_256:.1%}；块大小为 1 时全满。",
            ),
            sizes == sorted(sizes, reverse=True) and sizes[0] == 1,
        ),
        Conclusion(
            text(
                "It has a price: with no reservation memory runs out, and a request is preempted "
                "and recomputed {preemptions_per_request:.1f} times in the mean when others wait "
                "for every block.",
                "代价：不预留就会用完，块一直供不应求时每个请求平均被抢占并重算 "
                "{preemptions_per_request:.1f} 次。",
            ),
            numbers["preemptions_per_request"] > 0,
        ),
    )


def draw(result: Result, path: Path, language: Language) -> None:
    """Where the memory goes, and what the size of a block does."""
    from infra_lab.figures import COLOURS, GRID, drawing, in_percent

    memory, _, sweep = result.tables
    colours = (COLOURS[2], COLOURS[5], COLOURS[1], GRID)
    with drawing(path, columns=2, width=10.5, height=4.2) as (_, (bars, lines)):
        names = memory.texts(0, language)
        left = [0.0] * len(names)
        for index, (part, colour) in enumerate(zip(_PARTS.values(), colours, strict=True), 1):
            shares = memory.numbers(index)
            bars.barh(names, shares, left=left, color=colour, label=part[language], height=0.6)
            left = [before + share for before, share in zip(left, shares, strict=True)]
        for place, share in enumerate(memory.texts(1, language)):
            bars.text(0.01, place, share, va="center", color="white")
        bars.invert_yaxis()
        bars.set_xlim(0, 1)
        in_percent(bars.xaxis)
        bars.grid(visible=False)
        bars.legend(ncols=2, loc="upper center", bbox_to_anchor=(0.4, -0.08))
        bars.set_title(
            {"en": "KV memory, ShareGPT-like", "zh": "KV 显存去向（ShareGPT 类）"}[language]
        )
        for index, heading in enumerate(sweep.columns[1:], 1):
            lines.plot(
                BLOCK_SIZES,
                sweep.numbers(index),
                marker="o",
                label=heading.title[language],
            )
        lines.set_xscale("log", base=2)
        lines.set_xticks(BLOCK_SIZES, [str(size) for size in BLOCK_SIZES])
        in_percent(lines.yaxis)
        lines.set_ylim(0, 1.03)
        lines.set_xlabel({"en": "tokens in a block", "zh": "块大小（token）"}[language])
        lines.set_title({"en": "Held blocks that hold tokens", "zh": "已分配块的填充率"}[language])
        lines.legend(loc="lower left")


EXPERIMENT = Experiment(
    name="paged-memory",
    title=text("Pages against reservations", "分页与预留"),
    question=text(
        "How much of the KV memory holds tokens: with reservations, and with pages?",
        "KV 显存里有多少真正存着 token：预留方式与分页方式各是多少？",
    ),
    run=run,
    draw=draw,
    seconds=4,
)
