"""What prefill does to decodes beside it, and what taking them apart brings.

Answers "what does prefill/decode disaggregation gain?": requests a second that meet both a TTFT
and a TPOT objective (goodput, DistServe, arXiv 2401.09670), not throughput; and small chunks on
whole replicas are a rival that costs no transfer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from statistics import mean

from infra_lab.calculators.kv_cache import bytes_per_token
from infra_lab.calculators.parallel import transfer_s
from infra_lab.claims.experiments.disaggregation import (
    Experience,
    attained,
    colocated,
    disaggregated,
)
from infra_lab.claims.experiments.experiment import (
    Conclusion,
    Experiment,
    Progress,
    Result,
    Table,
    column,
)
from infra_lab.claims.experiments.step_cost import SETTING, RooflineCost, llama_13b_on_a100
from infra_lab.engine.simulation import TracedRequest, percentile
from infra_lab.engine.traces import Lengths, draw_lengths, poisson
from infra_lab.texts import Language, text

RATES_PER_S = (2.0, 3.0, 4.0, 5.0, 6.0, 8.0)
TTFT_S, TPOT_S, WANTED_SHARE = 1.0, 0.030, 0.9
CHUNK = 256
LINK_BYTES_PER_S = 25e9  # 200 Gbit/s
_LENGTHS = Lengths("chat with documents", 1000, 120, 0.5, 4000)
_NUM_REQUESTS = 120
_SYSTEMS = {
    "whole": text("two replicas, whole prompts", "两个副本，prompt 不分块"),
    "chunked": text(f"two replicas, chunks of {CHUNK}", f"两个副本，chunk {CHUNK}"),
    "apart": text("one prefills, one decodes", "PD 分离：一卡 prefill、一卡 decode"),
}
Runs = Mapping[str, Mapping[float, tuple[list[Experience], float]]]


def run(progress: Progress, seed: int) -> Result:
    cost = llama_13b_on_a100()
    lengths = [
        (prompt, max(2, output))
        for prompt, output in draw_lengths(_LENGTHS, _NUM_REQUESTS, Random(seed))
    ]
    runs: dict[str, dict[float, tuple[list[Experience], float]]] = {name: {} for name in _SYSTEMS}
    for step, rate in enumerate((*RATES_PER_S, 0.0)):
        progress(step, 1 + len(RATES_PER_S), text(f"{rate:g} requests/s", f"每秒 {rate:g} 个请求"))
        arrivals = poisson(lengths, rate, Random(seed + 1))
        for name in _SYSTEMS:
            runs[name][rate] = _serve(name, arrivals, cost)
    numbers = _numbers(runs, lengths, cost)
    tables = (_goodput_table(numbers, runs), _rate_table(runs))
    return Result(numbers, tables, _conclusions(numbers))


def _serve(
    name: str, arrivals: Sequence[TracedRequest], cost: RooflineCost
) -> tuple[list[Experience], float]:
    if name == "apart":
        return disaggregated(arrivals, cost, LINK_BYTES_PER_S)
    return colocated(arrivals, cost, CHUNK if name == "chunked" else 0)


def goodput(shares: Mapping[float, float], wanted: float = WANTED_SHARE) -> float:
    """The rate up to which the wanted share of requests meets its objectives, linear between the
    rates tried; the last of them if it still does."""
    rates = sorted(shares)
    if shares[rates[0]] < wanted:
        return 0.0
    for low, high in pairwise(rates):
        if shares[high] < wanted:
            return low + (high - low) * (shares[low] - wanted) / (shares[low] - shares[high])
    return rates[-1]


def _shares(runs: Mapping[float, tuple[list[Experience], float]]) -> dict[float, float]:
    return {rate: attained(runs[rate][0], TTFT_S, TPOT_S) for rate in RATES_PER_S}


def _numbers(
    runs: Runs, lengths: Sequence[tuple[int, int]], cost: RooflineCost
) -> dict[str, float]:
    numbers: dict[str, float] = {"ttft_s": TTFT_S, "tpot_ms": 1000 * TPOT_S}
    busy = RATES_PER_S[2]
    for name in _SYSTEMS:
        numbers[f"{name}_goodput"] = goodput(_shares(runs[name]))
        gaps = [one.longest_gap_s for one in runs[name][busy][0]]
        numbers[f"{name}_gap_ms"] = 1000 * percentile(gaps, 99)
        numbers[f"{name}_drain_s"] = runs[name][0.0][1]
    prompt_bytes = mean(prompt for prompt, _ in lengths) * bytes_per_token(
        cost.model, cost.setting.cache
    )
    return numbers | {
        "goodput_gain": numbers["apart_goodput"] / numbers["whole_goodput"],
        "chunked_gain": numbers["chunked_goodput"] / numbers["whole_goodput"],
        "gap_ratio": numbers["whole_gap_ms"] / numbers["apart_gap_ms"],
        "chunked_gap_ratio": numbers["whole_gap_ms"] / numbers["chunked_gap_ms"],
        "throughput_ratio": numbers["whole_drain_s"] / numbers["apart_drain_s"],
        "transfer_ms": 1000 * transfer_s(prompt_bytes, LINK_BYTES_PER_S),
        "transfer_gb": prompt_bytes / 1e9,
    }


def _goodput_table(numbers: Mapping[str, float], runs: Runs) -> Table:
    return Table(
        text(
            f"Two GPUs, prompts of about {_LENGTHS.mean_prompt:.0f} tokens. {SETTING['en']}; "
            f"{LINK_BYTES_PER_S / 1e9:.0f} GB/s between them",
            f"两张 GPU，prompt 约 {_LENGTHS.mean_prompt:.0f} token。{SETTING['zh']}；"
            f"两卡间 {LINK_BYTES_PER_S / 1e9:.0f} GB/s",
        ),
        (
            column("system", "系统"),
            column(
                f"goodput, requests/s (TTFT {TTFT_S:g} s, TPOT {1000 * TPOT_S:.0f} ms, "
                f"{WANTED_SHARE:.0%})",
                f"goodput（请求/秒；TTFT {TTFT_S:g} 秒、TPOT {1000 * TPOT_S:.0f} ms、"
                f"{WANTED_SHARE:.0%}）",
                ".2f",
            ),
            column("P99 of the longest gap, ms", "最长停顿的 P99（ms）", ",.0f"),
            column("all at once: seconds", "同时到达：总耗时（秒）", ".1f"),
        ),
        tuple(
            (
                title,
                numbers[f"{name}_goodput"],
                numbers[f"{name}_gap_ms"],
                numbers[f"{name}_drain_s"],
            )
            for name, title in _SYSTEMS.items()
        ),
    )


def _rate_table(runs: Runs) -> Table:
    return Table(
        text("Share of requests that meet both objectives", "同时满足两项目标的请求比例"),
        (
            column("requests/s", "请求/秒", "g"),
            *(column(title["en"], title["zh"], ".0%") for title in _SYSTEMS.values()),
        ),
        tuple((rate, *(_shares(runs[name])[rate] for name in _SYSTEMS)) for rate in RATES_PER_S),
    )


def _conclusions(numbers: Mapping[str, float]) -> tuple[Conclusion, ...]:
    return (
        Conclusion(
            text(
                "Beside whole prompts a decode pauses {whole_gap_ms:.0f} ms at times, apart from "
                "them {apart_gap_ms:.0f} ms ({gap_ratio:.1f} times less), the transfer included.",
                "与整段 prompt 混跑时 decode 会停顿 {whole_gap_ms:.0f} ms，分离后为 "
                "{apart_gap_ms:.0f} ms（1/{gap_ratio:.1f}），已含 KV 传输。",
            ),
            numbers["gap_ratio"] > 2,
        ),
        Conclusion(
            text(
                "Taking them apart brings {goodput_gain:.2f} times the goodput of whole prompts at "
                "a TPOT of {tpot_ms:.0f} ms.",
                "TPOT 目标 {tpot_ms:.0f} ms 时，分离的 goodput 是不分块混跑的 "
                "{goodput_gain:.2f} 倍。",
            ),
            numbers["goodput_gain"] > 1.2,
        ),
        Conclusion(
            text(
                "So do small chunks without a transfer: {chunked_gain:.2f} times here. The "
                "published gains are over engines that did not chunk.",
                "小 chunk 不用传输也能做到：这里是 {chunked_gain:.2f} 倍。论文的收益是相对于"
                "不分块的引擎。",
            ),
            numbers["chunked_gain"] > 1.2,
        ),
        Conclusion(
            text(
                "It does not raise throughput: with all requests at once two whole replicas finish "
                "in {throughput_ratio:.2f} of the time.",
                "分离不提高吞吐：请求同时到达时，两个完整副本只用 {throughput_ratio:.2f} 的时间。",
            ),
            numbers["throughput_ratio"] < 1,
        ),
        Conclusion(
            text(
                "A mean prompt moves {transfer_gb:.2f} GB, {transfer_ms:.0f} ms: one or two decode "
                "steps.",
                "平均每个 prompt 传输 {transfer_gb:.2f} GB，{transfer_ms:.0f} ms，约一两个 decode "
                "步。",
            ),
            numbers["transfer_ms"] < 100,
        ),
    )


def draw(result: Result, path: Path, language: Language) -> None:
    """Attainment by rate; where the lines cross the wanted share is the goodput."""
    from infra_lab.figures import COLOURS, drawing, in_percent

    rates = result.tables[1]
    with drawing(path, width=7.2, height=4.2) as (_, axes):
        for index, heading in enumerate(rates.columns[1:], 1):
            axes.plot(
                RATES_PER_S,
                rates.numbers(index),
                marker="o",
                label=heading.title[language],
            )
        axes.axhline(WANTED_SHARE, color=COLOURS[6], linestyle="--")
        in_percent(axes.yaxis)
        axes.set_ylim(0, 1.05)
        axes.set_xlabel({"en": "requests a second", "zh": "请求/秒"}[language])
        axes.set_title(
            {
                "en": f"Requests within TTFT {TTFT_S:g} s and TPOT {1000 * TPOT_S:.0f} ms",
                "zh": f"满足 TTFT {TTFT_S:g} 秒、TPOT {1000 * TPOT_S:.0f} ms 的请求比例",
            }[language]
        )
        axes.legend(loc="lower left")


EXPERIMENT = Experiment(
    name="prefill-decode-interference",
    title=text("Prefill beside decode, and apart", "prefill 与 decode：混跑与分离"),
    question=text(
        "What does prefill do to decodes beside it, and what does disaggregation gain?",
        "prefill 对同卡的 decode 有何影响，PD 分离能带来什么？",
    ),
    run=run,
    draw=draw,
    seconds=9,
)
