"""Static against iteration-level batching, on the engine's own scheduler.

Answers "200, 50 and 100 tokens fill 58 % of a static batch: does continuous batching make it 100?":
not those three alone, it takes a queue; and how much it gains depends on how unequal the lengths
are. The policies "static" and "fcfs" differ in nothing but when somebody new may join.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
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
from infra_lab.claims.experiments.step_cost import SETTING, blocks_that_fit, llama_13b_on_a100
from infra_lab.config import DEFAULT_BLOCK_SIZE, EngineConfig
from infra_lab.engine.simulation import (
    SimulatedRun,
    StepCostModel,
    TracedRequest,
    UnitSteps,
    percentile,
    simulate,
)
from infra_lab.engine.traces import SHAREGPT, draw_lengths, log_normal, poisson
from infra_lab.texts import Language, text

JOBS = (200, 50, 100)
QUEUED_TIMES = 50
SEATS = (8, 32)
RATES_PER_S = (1.0, 2.0, 4.0)
_POLICIES = {"static": text("static", "静态"), "fcfs": text("continuous", "连续")}
_SPREADS = {
    "equal": text("all equal", "全部相等"),
    "uniform": text("uniform up to twice the mean", "均匀分布，至两倍均值"),
    "exponential": text("exponential", "指数分布"),
    "lognormal": text("log-normal, spread 1", "对数正态，σ=1"),
}
_MEAN_LENGTH, _NUM_JOBS, _NUM_REQUESTS, _MAX_NUM_SEQS = 30, 512, 120, 32


def run(progress: Progress, seed: int) -> Result:
    progress(0, 3, text("three jobs", "三个任务"))
    numbers = three_jobs()
    progress(1, 3, text("gain by spread", "长度差异与收益"))
    for spread in _SPREADS:
        for seats in SEATS:
            numbers[f"gain_{spread}_{seats}"] = gain(spread, seats, Random(seed))
    progress(2, 3, text("arrivals", "请求到达"))
    rows = _serve_at_rates(seed)
    numbers |= _rate_numbers(rows)
    tables = (_jobs_table(numbers), _gain_table(numbers), _rate_table(rows))
    return Result(numbers, tables, _conclusions(numbers))


def occupancy(run: SimulatedRun, seats: int) -> float:
    """Filled seats over seats, in the mean of steps that are all equally long."""
    return sum(one.num_requests for one in run.steps) / (seats * len(run.steps))


def serve(
    lengths: Sequence[int], seats: int, policy: str, cost: StepCostModel | None = None
) -> SimulatedRun:
    """Jobs of one prompt token, all there at the start: a step a token and nothing else."""
    config = EngineConfig(
        num_blocks=1 + sum(2 + length // DEFAULT_BLOCK_SIZE for length in lengths),
        max_num_seqs=seats,
        scheduling_policy=policy,
        enable_prefix_caching=False,
    )
    return simulate([TracedRequest(0.0, 1, one) for one in lengths], config, cost or UnitSteps())


def three_jobs() -> dict[str, float]:
    """The posts' example, and what a queue makes of it."""
    numbers: dict[str, float] = {}
    queue = JOBS * QUEUED_TIMES
    for policy in _POLICIES:
        alone, queued = (serve(jobs, len(JOBS), policy) for jobs in (JOBS, queue))
        numbers[f"{policy}_alone_steps"] = len(alone.steps)
        numbers[f"{policy}_alone"] = occupancy(alone, len(JOBS))
        numbers[f"{policy}_queued_steps"] = len(queued.steps)
        numbers[f"{policy}_queued"] = occupancy(queued, len(JOBS))
    numbers["queued_gain"] = numbers["static_queued_steps"] / numbers["fcfs_queued_steps"]
    return numbers


def gain(spread: str, seats: int, random: Random) -> float:
    """Tokens a step of continuous over those of static batching, for a queue of lengths so spread,
    while the queue lasts. Exponential lengths: the mean longest of n, H_n times the mean."""
    lengths = [_length(spread, random) for _ in range(_NUM_JOBS)]
    rates = []
    for policy in _POLICIES:
        steps = [one for one in serve(lengths, seats, policy).steps if one.num_waiting]
        rates.append(sum(one.num_requests for one in steps) / len(steps))
    return rates[1] / rates[0]


def _length(spread: str, random: Random) -> int:
    share = random.random()
    if spread == "equal":
        return _MEAN_LENGTH
    if spread == "uniform":
        return 1 + int(share * 2 * _MEAN_LENGTH)
    if spread == "exponential":
        return 1 + int(-math.log(1 - share) * _MEAN_LENGTH)
    return 1 + int(log_normal(_MEAN_LENGTH, 1.0, share))


def _serve_at_rates(seed: int) -> list[tuple[str, float, SimulatedRun]]:
    cost = llama_13b_on_a100()
    lengths = draw_lengths(SHAREGPT, _NUM_REQUESTS, Random(seed))
    rows = []
    for policy in _POLICIES:
        config = EngineConfig(
            num_blocks=blocks_that_fit(cost),
            max_num_seqs=_MAX_NUM_SEQS,
            max_num_batched_tokens=2048,
            scheduling_policy=policy,
            enable_prefix_caching=False,
        )
        for rate in (*RATES_PER_S, 0.0):
            arrivals = poisson(lengths, rate, Random(seed + 1))
            rows.append((policy, rate, simulate(arrivals, config, cost)))
    return rows


def normalized_latency_s(run: SimulatedRun) -> float:
    """Seconds an output token, waiting included, in the mean of requests (as in the papers)."""
    return mean(one.latency_s / one.traced.output_len for one in run.served)


def _rate_numbers(rows: Sequence[tuple[str, float, SimulatedRun]]) -> dict[str, float]:
    by_name = {(policy, rate): one for policy, rate, one in rows}
    slow = RATES_PER_S[0]
    return {
        "throughput_gain": by_name["fcfs", 0.0].output_tokens_per_s
        / by_name["static", 0.0].output_tokens_per_s,
        "slow_latency_ratio": normalized_latency_s(by_name["static", slow])
        / normalized_latency_s(by_name["fcfs", slow]),
        "slow_ttft_ratio": median_ttft_s(by_name["static", slow])
        / median_ttft_s(by_name["fcfs", slow]),
    }


def median_ttft_s(run: SimulatedRun) -> float:
    return percentile([one.ttft_s for one in run.served], 50)


def _jobs_table(numbers: Mapping[str, float]) -> Table:
    return Table(
        text(
            f"Jobs of {', '.join(map(str, JOBS))} tokens in three seats, a step a token",
            f"{'、'.join(map(str, JOBS))} token 的任务，三个 slot，每步一个 token",
        ),
        (
            column("batching", "批处理"),
            column("steps, the three alone", "仅这三个：步数", ",.0f"),
            column("seats filled", "slot 占用率", ".1%"),
            column(
                f"steps, {QUEUED_TIMES} times the three", f"排队 {QUEUED_TIMES} 组：步数", ",.0f"
            ),
            column("seats filled", "slot 占用率", ".1%"),
        ),
        tuple(
            (
                title,
                numbers[f"{policy}_alone_steps"],
                numbers[f"{policy}_alone"],
                numbers[f"{policy}_queued_steps"],
                numbers[f"{policy}_queued"],
            )
            for policy, title in _POLICIES.items()
        ),
    )


def _gain_table(numbers: Mapping[str, float]) -> Table:
    return Table(
        text(
            f"Tokens a step, continuous over static batching, {_NUM_JOBS} queued jobs",
            f"每步 token 数之比（连续 / 静态），{_NUM_JOBS} 个任务排队",
        ),
        (
            column("output lengths", "输出长度"),
            *(column(f"{one} seats", f"{one} 个 slot", ".2f") for one in SEATS),
        ),
        tuple(
            (title, *(numbers[f"gain_{spread}_{seats}"] for seats in SEATS))
            for spread, title in _SPREADS.items()
        ),
    )


def _rate_table(rows: Sequence[tuple[str, float, SimulatedRun]]) -> Table:
    return Table(
        text(
            f"ShareGPT-like requests at Poisson rates. {SETTING['en']}",
            f"ShareGPT 类请求，泊松到达。{SETTING['zh']}",
        ),
        (
            column("batching", "批处理"),
            column("requests/s", "请求/秒"),
            column("output tokens/s", "输出 token/s", ",.0f"),
            column("median TTFT, s", "TTFT 中位数（秒）", ".2f"),
            column("latency per token, ms", "每 token 延迟（ms）", ",.0f"),
        ),
        tuple(
            (
                _POLICIES[policy],
                format(rate, "g") if rate else text("all at once", "同时到达"),
                one.output_tokens_per_s,
                median_ttft_s(one),
                1000 * normalized_latency_s(one),
            )
            for policy, rate, one in rows
        ),
    )


def _conclusions(numbers: Mapping[str, float]) -> tuple[Conclusion, ...]:
    small, large = SEATS
    gains = [numbers[f"gain_{spread}_{large}"] for spread in _SPREADS]
    return (
        Conclusion(
            text(
                "The three jobs alone fill {static_alone:.1%} of the seats in a static batch, and "
                "{fcfs_alone:.1%} with continuous batching: {fcfs_alone_steps:.0f} steps either "
                "way.",
                "单独这三个任务：静态批占用率 {static_alone:.1%}，连续批也是 {fcfs_alone:.1%}，"
                "都要 {fcfs_alone_steps:.0f} 步。",
            ),
            numbers["static_alone_steps"] == numbers["fcfs_alone_steps"] == max(JOBS)
            and numbers["static_alone"] == numbers["fcfs_alone"] == sum(JOBS) / (3 * max(JOBS)),
        ),
        Conclusion(
            text(
                "With a queue behind them continuous batching fills {fcfs_queued:.1%} and needs "
                "{queued_gain:.2f} times fewer steps.",
                "后面有队列时，连续批占用率 {fcfs_queued:.1%}，步数少到 1/{queued_gain:.2f}。",
            ),
            numbers["fcfs_queued"] > 0.99 and abs(numbers["queued_gain"] - 1.71) < 0.02,
        ),
        Conclusion(
            text(
                f"It gains by the spread of lengths: {{gain_equal_{large}:.2f}} times for equal "
                f"ones, {{gain_uniform_{large}:.2f}} for uniform, {{gain_lognormal_{large}:.2f}} "
                f"for log-normal at {large} seats. No single factor of 2 to 3 holds.",
                f"收益来自长度差异：{large} 个 slot 时，等长 {{gain_equal_{large}:.2f}} 倍、"
                f"均匀 {{gain_uniform_{large}:.2f}} 倍、"
                f"对数正态 {{gain_lognormal_{large}:.2f}} 倍。不存在通用的 2-3 倍。",
            ),
            abs(gains[0] - 1) < 0.01 and gains == sorted(gains) and gains[-1] > 3,
        ),
        Conclusion(
            text(
                f"More seats gain more: a batch waits for the longest of more "
                f"({{gain_exponential_{small}:.2f}} at {small}, {{gain_exponential_{large}:.2f}} "
                f"at {large} seats, exponential lengths).",
                "slot 越多收益越大，因为一批要等更多请求中最长的那个"
                f"（指数分布：{small} 个 slot {{gain_exponential_{small}:.2f}} 倍，"
                f"{large} 个 {{gain_exponential_{large}:.2f}} 倍）。",
            ),
            numbers[f"gain_exponential_{large}"] > numbers[f"gain_exponential_{small}"],
        ),
        Conclusion(
            text(
                "With ShareGPT-like lengths all there at once it serves {throughput_gain:.1f} "
                "times the tokens a second.",
                "ShareGPT 类长度、请求同时到达时，吞吐为 {throughput_gain:.1f} 倍。",
            ),
            numbers["throughput_gain"] > 1.5,
        ),
        Conclusion(
            text(
                "With slow arrivals it gains no throughput but latency: {slow_latency_ratio:.1f} "
                "times less a token, and the first token {slow_ttft_ratio:.0f} times sooner.",
                "到达较稀时吞吐不变，变的是延迟：每 token 延迟降到 1/{slow_latency_ratio:.1f}，"
                "首 token 快 {slow_ttft_ratio:.0f} 倍。",
            ),
            numbers["slow_latency_ratio"] > 1.5 and numbers["slow_ttft_ratio"] > 5,
        ),
    )


def draw(result: Result, path: Path, language: Language) -> None:
    """Latency against throughput, and the gain by spread."""
    from infra_lab.figures import drawing

    _, gains, rates = result.tables
    with drawing(path, columns=2, width=10.5, height=4.2) as (_, (left, right)):
        for title in _POLICIES.values():
            points = [place for place, row in enumerate(rates.rows) if row[0] == title]
            left.plot(
                [rates.numbers(2)[place] for place in points],
                [rates.numbers(4)[place] for place in points],
                marker="o",
                label=title[language],
            )
        left.set_yscale("log")
        left.set_yticks([20, 50, 100, 200, 500], ["20", "50", "100", "200", "500"], minor=False)
        left.minorticks_off()
        left.set_xlabel({"en": "output tokens/s", "zh": "输出 token/s"}[language])
        left.set_title({"en": "Latency per token, ms", "zh": "每 token 延迟（ms）"}[language])
        left.legend()
        places = range(len(gains.rows))
        for index, seats in enumerate(SEATS):
            offset = (index - 0.5) * 0.38
            label = {"en": f"{seats} seats", "zh": f"{seats} 个 slot"}[language]
            bars = right.barh(
                [place + offset for place in places],
                gains.numbers(1 + index),
                height=0.36,
                label=label,
            )
            right.bar_label(bars, fmt="%.2f", padding=3)
        right.set_yticks(list(places), gains.texts(0, language))
        right.invert_yaxis()
        right.margins(x=0.12)
        right.grid(visible=False, axis="y")
        right.set_title(
            {"en": "Tokens a step, continuous / static", "zh": "每步 token 数之比（连续 / 静态）"}[
                language
            ]
        )
        right.legend(loc="upper right")


EXPERIMENT = Experiment(
    name="continuous-batching",
    title=text("Static against continuous batching", "静态批与连续批"),
    question=text(
        "What does letting requests join and leave at every step gain, and when?",
        "允许请求在每一步进出能带来多少收益，前提是什么？",
    ),
    run=run,
    draw=draw,
    seconds=10,
)
