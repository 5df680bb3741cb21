"""First come, shortest first, priority: whom each policy serves, and who starves.

Answers "why not always the shortest job first?". The engine's own scheduler serves one trace under
each policy; then one long job competes with an endless stream of short ones, with ageing (see
`engine.policies`, where its bound is proved) and without.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
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
from infra_lab.config import EngineConfig
from infra_lab.engine.policies import PRIORITY_AGING_STEPS, SJF_AGING_STEPS
from infra_lab.engine.simulation import (
    ServedRequest,
    SimulatedRun,
    TracedRequest,
    UnitSteps,
    percentile,
    simulate,
)
from infra_lab.engine.traces import Trace
from infra_lab.texts import Language, Text, text

STREAMS = (200, 400, 800)  # short jobs that compete with the one that may starve
_SHORT, _LONG = 10, 200  # tokens
_SEATS = 4
_ONE_COMES_AT_S = 50.0
_MAX_NUM_SEQS = 8
_TRACE = Trace(num_requests=240, rate_per_s=7.0, prompt=(16, 255), short=(8, 63), long=(192, 511))


@dataclass(frozen=True, slots=True)
class Rule:
    """A policy and its ageing; None is the policy's own."""

    name: str
    title: Text
    policy: str
    aging_steps: int | None = None


RULES = (
    Rule("fcfs", text("first come, first served", "先来先服务（FCFS）"), "fcfs"),
    Rule("sjf_strict", text("shortest first, no ageing", "最短优先，无老化"), "sjf", 0),
    Rule("sjf", text("shortest first, ageing", "最短优先，有老化"), "sjf"),
    Rule("priority_strict", text("priority, no ageing", "优先级，无老化"), "priority", 0),
    Rule("priority", text("priority, ageing", "优先级，有老化"), "priority"),
)


def run(progress: Progress, seed: int) -> Result:
    arrivals = replace(_TRACE, seed=seed).arrivals()
    served: dict[str, list[ServedRequest]] = {}
    waits: dict[str, list[float]] = {}
    for step, rule in enumerate(RULES):
        progress(step, len(RULES), rule.title)
        served[rule.name] = _serve_trace(arrivals, rule)
        waits[rule.name] = [starved_wait_steps(rule, size) for size in STREAMS]
    numbers = _numbers(served, waits)
    return Result(numbers, (_trace_table(served), _starvation_table(waits)), _conclusions(numbers))


def _serve_trace(arrivals: Sequence[TracedRequest], rule: Rule) -> list[ServedRequest]:
    cost = llama_13b_on_a100()
    return simulate(arrivals, _config(rule, _MAX_NUM_SEQS, blocks_that_fit(cost)), cost).served


def starved_wait_steps(rule: Rule, num_short: int) -> float:
    """Steps until the first token of a long job of low priority, which comes early into a stream
    of short urgent ones that fills all seats by itself."""
    every = _SHORT / _SEATS * 0.95  # a little more than the seats can take
    stream = [TracedRequest(index * every, 1, _SHORT, 0) for index in range(num_short)]
    arrivals = [*stream, TracedRequest(_ONE_COMES_AT_S, 1, _LONG, 1)]
    arrivals.sort(key=lambda one: one.arrival_s)
    run = simulate(arrivals, _config(rule, _SEATS, 1024), UnitSteps())
    return _long_job(run).ttft_s


def aging_bound_steps(aging_steps: int, cost: float, least_cost: float) -> float:
    """Whoever comes later than this after the job is behind it: A (c - c_min)."""
    return aging_steps * (cost - least_cost)


def _long_job(run: SimulatedRun) -> ServedRequest:
    return next(one for one in run.served if one.traced.output_len == _LONG)


def _config(rule: Rule, seats: int, num_blocks: int) -> EngineConfig:
    return EngineConfig(
        num_blocks=num_blocks,
        max_num_seqs=seats,
        max_num_batched_tokens=1024,
        scheduling_policy=rule.policy,
        aging_steps=rule.aging_steps,
        enable_prefix_caching=False,
    )


def _numbers(
    served: Mapping[str, list[ServedRequest]], waits: Mapping[str, list[float]]
) -> dict[str, float]:
    latencies = {name: [one.latency_s for one in ones] for name, ones in served.items()}
    urgent = {
        name: [one.ttft_s for one in ones if one.traced.priority == 0]
        for name, ones in served.items()
    }
    numbers = {
        "sjf_mean_gain": mean(latencies["fcfs"]) / mean(latencies["sjf_strict"]),
        "sjf_max_cost": max(latencies["sjf_strict"]) / max(latencies["fcfs"]),
        "urgent_p99_gain": percentile(urgent["fcfs"], 99)
        / percentile(urgent["priority_strict"], 99),
        "aged_urgent_p99_gain": percentile(urgent["fcfs"], 99) / percentile(urgent["priority"], 99),
        "others_mean_cost": _mean_of_others(served["priority_strict"])
        / _mean_of_others(served["fcfs"]),
        "sjf_bound_steps": aging_bound_steps(SJF_AGING_STEPS, _LONG, _SHORT),
        "priority_bound_steps": aging_bound_steps(PRIORITY_AGING_STEPS, 1, 0),
    }
    for name, steps in waits.items():
        for size, wait in zip(STREAMS, steps, strict=True):
            numbers[f"{name}_wait_{size}"] = wait
        numbers[f"{name}_wait_growth"] = steps[-1] / steps[0]
    return numbers


def _mean_of_others(ones: Sequence[ServedRequest]) -> float:
    return mean(one.latency_s for one in ones if one.traced.priority)


def _trace_table(served: Mapping[str, list[ServedRequest]]) -> Table:
    def row(rule: Rule) -> tuple[Text, float, float, float, float]:
        ones = served[rule.name]
        latencies = [one.latency_s for one in ones]
        urgent = [one.ttft_s for one in ones if one.traced.priority == 0]
        return (
            rule.title,
            mean(latencies),
            percentile(latencies, 99),
            max(latencies),
            percentile(urgent, 99),
        )

    count = _TRACE.num_requests
    return Table(
        text(
            f"{count} requests, a fifth long, a tenth urgent, {_MAX_NUM_SEQS} seats. "
            f"{SETTING['en']}",
            f"{count} 个请求，五分之一为长输出，十分之一为紧急，{_MAX_NUM_SEQS} 个 slot。"
            f"{SETTING['zh']}",
        ),
        (
            column("policy", "策略"),
            column("mean latency, s", "平均延迟（秒）", ".2f"),
            column("P99, s", "P99（秒）", ".2f"),
            column("longest, s", "最大（秒）", ".2f"),
            column("P99 TTFT of the urgent, s", "紧急请求 P99 TTFT（秒）", ".2f"),
        ),
        tuple(map(row, RULES)),
    )


def _starvation_table(waits: Mapping[str, list[float]]) -> Table:
    return Table(
        text(
            f"Steps that one job of {_LONG} tokens waits in a stream of short urgent ones",
            f"一个 {_LONG} token 的任务在短而紧急的任务流中等待的步数",
        ),
        (
            column("policy", "策略"),
            *(column(f"{size} short jobs", f"{size} 个短任务", ",.0f") for size in STREAMS),
        ),
        tuple((rule.title, *waits[rule.name]) for rule in RULES),
    )


def _conclusions(numbers: Mapping[str, float]) -> tuple[Conclusion, ...]:
    last, first = STREAMS[-1], STREAMS[0]
    return (
        Conclusion(
            text(
                "Shortest first has {sjf_mean_gain:.2f} times less mean latency than first come, "
                "and {sjf_max_cost:.2f} times its longest one.",
                "最短优先的平均延迟是 FCFS 的 1/{sjf_mean_gain:.2f}，但最大延迟是其 "
                "{sjf_max_cost:.2f} 倍。",
            ),
            numbers["sjf_mean_gain"] > 1.2 and numbers["sjf_max_cost"] > 1,
        ),
        Conclusion(
            text(
                f"Without ageing the long job waits for the whole stream: "
                f"{{sjf_strict_wait_{first}:.0f}} steps for {first} short jobs, "
                f"{{sjf_strict_wait_{last}:.0f}} for {last}. It starves.",
                f"无老化时长任务要等整个任务流结束：{first} 个短任务等 "
                f"{{sjf_strict_wait_{first}:.0f}} 步，{last} 个等 "
                f"{{sjf_strict_wait_{last}:.0f}} 步，即饿死。",
            ),
            numbers["sjf_strict_wait_growth"] > 3 and numbers["priority_strict_wait_growth"] > 3,
        ),
        Conclusion(
            text(
                f"With ageing its wait is the same in any stream ({{sjf_wait_{last}:.0f}} steps "
                f"by length, {{priority_wait_{last}:.0f}} by priority): nobody overtakes it who "
                f"comes {{sjf_bound_steps:.0f}} or {{priority_bound_steps:.0f}} steps later.",
                f"有老化时，任务流再长等待也不变（按长度 {{sjf_wait_{last}:.0f}} 步，按优先级 "
                f"{{priority_wait_{last}:.0f}} 步）：晚来 {{sjf_bound_steps:.0f}} 步或 "
                f"{{priority_bound_steps:.0f}} 步以上的请求不会插到它前面。",
            ),
            numbers["sjf_wait_growth"] == numbers["priority_wait_growth"] == 1,
        ),
        Conclusion(
            text(
                "Strict priority brings the urgent tenth's P99 TTFT down {urgent_p99_gain:.0f} "
                "times, and costs the others {others_mean_cost:.2f} times their mean latency.",
                "严格优先级把紧急请求的 P99 TTFT 降到 1/{urgent_p99_gain:.0f}，其余请求的平均延迟"
                "变为 {others_mean_cost:.2f} 倍。",
            ),
            numbers["urgent_p99_gain"] > 10 and 1 < numbers["others_mean_cost"] < 1.5,
        ),
        Conclusion(
            text(
                "Ageing of {priority_bound_steps:.0f} steps a level takes that back in a long "
                "backlog ({aged_urgent_p99_gain:.1f} times): it must be longer than the waits that "
                "the urgent are to skip.",
                "队列很长时，每级 {priority_bound_steps:.0f} 步的老化会抵消这一收益（只剩 "
                "{aged_urgent_p99_gain:.1f} 倍）：老化时间要大于紧急请求想跳过的等待。",
            ),
            numbers["aged_urgent_p99_gain"] < numbers["urgent_p99_gain"] / 5,
        ),
    )


def draw(result: Result, path: Path, language: Language) -> None:
    """Mean against longest latency, and the wait of the job that may starve."""
    from infra_lab.figures import COLOURS, drawing

    trace, starvation = result.tables
    with drawing(path, columns=2, width=10.5, height=4.2) as (_, (left, right)):
        places = list(range(len(trace.rows)))
        for offset, index, colour in ((-0.2, 1, COLOURS[0]), (0.2, 3, COLOURS[1])):
            left.barh(
                [place + offset for place in places],
                trace.numbers(index),
                height=0.38,
                color=colour,
                label=trace.columns[index].title[language],
            )
        left.set_yticks(places, trace.texts(0, language))
        left.invert_yaxis()
        left.grid(visible=False, axis="y")
        left.legend(loc="upper center", bbox_to_anchor=(0.4, -0.08), ncols=2)
        left.set_title({"en": "Latency by policy", "zh": "各策略的延迟"}[language])
        names = starvation.texts(0, language)
        for row, name, marker in zip(starvation.rows, names, "os^Dv", strict=True):
            right.plot(STREAMS, row[1:], marker=marker, label=name)
        right.set_xticks(STREAMS)
        right.set_xlabel({"en": "short jobs in the stream", "zh": "短任务数"}[language])
        right.set_title({"en": "Steps that one long job waits", "zh": "长任务等待的步数"}[language])
        right.legend(loc="upper left")


EXPERIMENT = Experiment(
    name="scheduling-policies",
    title=text("Scheduling policies and starvation", "调度策略与饿死"),
    question=text(
        "Whom do first-come, shortest-first and priority serve, and who starves?",
        "FCFS、最短优先、优先级各照顾了谁，谁会饿死？",
    ),
    run=run,
    draw=draw,
    seconds=5,
)
