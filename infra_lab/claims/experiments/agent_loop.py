"""What makes an agent's loop fail: steps that compound, filters that leak, passages not found.

Chances are both worked out and played; commands are real, in folders that go away; retrieval is
BM25 over the book that comes with the package, with questions whose answers are known.
"""

from __future__ import annotations

import os
from pathlib import Path

from infra_lab.calculators.reliability import chain_success
from infra_lab.claims.experiments import command_filters as filters
from infra_lab.claims.experiments import retrieval
from infra_lab.claims.experiments.agent_steps import Loop
from infra_lab.claims.experiments.experiment import (
    Conclusion,
    Experiment,
    Progress,
    Result,
    Table,
    column,
)
from infra_lab.texts import Language, Text, text

_STEPS, _SUCCESS = 10, 0.95
_TASKS = 20_000
_SLACK = 0.02  # more than five standard deviations of a share of _TASKS
_SIZES = (25, 50, 100, 200, 400, 800)
_TOP = 5
_BUDGET = 1000  # words that may go into the prompt
_LOOPS: dict[str, tuple[Text, Loop]] = {
    "plain": (text("no retry", "不重试"), Loop(_STEPS, _SUCCESS)),
    "perfect": (
        text("one retry, perfect verifier", "重试一次，校验器无误"),
        Loop(_STEPS, _SUCCESS, 1),
    ),
    "good": (
        text("one retry, verifier misses 20 %", "重试一次，校验器漏判 20 %"),
        Loop(_STEPS, _SUCCESS, 1, 0.2),
    ),
    "poor": (
        text("one retry, verifier misses 50 %", "重试一次，校验器漏判 50 %"),
        Loop(_STEPS, _SUCCESS, 1, 0.5),
    ),
    "many": (
        text("five retries, verifier misses 50 %", "重试五次，校验器漏判 50 %"),
        Loop(_STEPS, _SUCCESS, 5, 0.5),
    ),
}


def run(progress: Progress, seed: int) -> Result:
    steps = 2 + len(_SIZES)
    progress(0, steps, text("steps in a row", "连续多步"))
    numbers: dict[str, float] = {"services_10": chain_success(0.999, 10)}
    loops = []
    for place, (name, (title, loop)) in enumerate(_LOOPS.items()):
        played = loop.simulate(_TASKS, seed + place)
        numbers |= {name: loop.task_success(), f"{name}_played": played}
        loops.append((title, loop.step_success(), loop.task_success(), played, loop.tries()))
    numbers["apart"] = max(abs(numbers[name] - numbers[f"{name}_played"]) for name in _LOOPS)
    progress(1, steps, text("filters of commands", "命令过滤"))
    commands = _filtered() if os.name == "posix" else {}
    numbers |= _filter_numbers(commands)
    words, asked = retrieval.book_words(), retrieval.questions()
    rows = []
    for done, size in enumerate(_SIZES):
        progress(2 + done, steps, text(f"chunks of {size} words", f"每块 {size} 词"))
        for name, overlap in (("apart", 0), ("shared", size // 5)):
            index = retrieval.BM25(retrieval.chunks(words, size, overlap))
            found = retrieval.ranks(index, asked)
            top = retrieval.recall(found, _TOP)
            budget = retrieval.recall(found, max(1, _BUDGET // size))
            cut = retrieval.share_cut(index.passages, asked)
            numbers |= {
                f"top_{size}_{name}": top,
                f"budget_{size}_{name}": budget,
                f"cut_{size}_{name}": cut,
            }
            rows.append((float(size), float(overlap), top, budget, cut))
    numbers |= _spreads(numbers)
    tables = [_loop_table(tuple(loops)), _retrieval_table(tuple(rows), len(asked))]
    if commands:
        tables.insert(1, _command_table(commands))
    return Result(numbers, tuple(tables), _conclude(numbers))


def _filtered() -> dict[str, tuple[str, filters.Ran, filters.Ran]]:
    """Every command by its name, under either list."""
    every = {**filters.HARMLESS, **filters.HARMFUL}
    return {
        name: (command, filters.under_denylist(command), filters.under_allowlist(command))
        for name, command in every.items()
    }


def _filter_numbers(
    commands: dict[str, tuple[str, filters.Ran, filters.Ran]],
) -> dict[str, float]:
    if not commands:
        return {}
    harmless = [commands[name] for name in filters.HARMLESS]
    harmful = [commands[name] for name in filters.HARMFUL]
    return {
        "harmful": len(harmful),
        "harmless": len(harmless),
        "deny_lost": sum(not deny.intact for _, deny, _ in harmful),
        "allow_lost": sum(not allow.intact for _, _, allow in harmful),
        "deny_useful": sum(deny.succeeded for _, deny, _ in harmless),
        "allow_useful": sum(allow.succeeded for _, _, allow in harmless),
    }


def _spreads(numbers: dict[str, float]) -> dict[str, float]:
    """How much the size of a chunk decides: at a fixed number of passages, and of words."""
    found: dict[str, float] = {}
    for kind in ("top", "budget"):
        values = [numbers[f"{kind}_{size}_apart"] for size in _SIZES]
        found |= {f"{kind}_least": min(values), f"{kind}_most": max(values)}
    return found


def _loop_table(rows: tuple[tuple[Text, float, float, float, float], ...]) -> Table:
    return Table(
        text(
            f"{_STEPS} steps in a row, each right in {_SUCCESS:.0%}; {_TASKS:,} tasks played",
            f"连续 {_STEPS} 步，每步成功率 {_SUCCESS:.0%}；模拟 {_TASKS:,} 次任务",
        ),
        (
            column("loop", "循环"),
            column("a step", "单步", ".4f"),
            column("the task", "整个任务", ".3f"),
            column("played", "模拟", ".3f"),
            column("tries a step", "每步尝试次数", ".3f"),
        ),
        rows,
    )


def _command_table(commands: dict[str, tuple[str, filters.Ran, filters.Ran]]) -> Table:
    def shown(ran: filters.Ran) -> Text:
        if not ran.allowed:
            return text("stopped", "拦下")
        return text("file kept", "文件仍在") if ran.intact else text("FILE LOST", "文件丢失")

    return Table(
        text("Commands under either list", "两种名单下的命令"),
        (
            column("command", "命令"),
            column("forbidden words", "黑名单"),
            column("allowed programs", "白名单"),
        ),
        tuple((command, shown(deny), shown(allow)) for command, deny, allow in commands.values()),
    )


def _retrieval_table(rows: tuple[tuple[float, ...], ...], num_questions: int) -> Table:
    return Table(
        text(
            f"BM25 over Alice's Adventures in Wonderland, {num_questions} questions",
            f"对《爱丽丝梦游仙境》做 BM25 检索，{num_questions} 个问题",
        ),
        (
            column("words a chunk", "每块词数", ".0f"),
            column("shared", "重叠", ".0f"),
            column(f"recall@{_TOP}", f"recall@{_TOP}", ".0%"),
            column(f"in {_BUDGET} words", f"{_BUDGET} 词预算内", ".0%"),
            column("answers cut", "答案被切断", ".0%"),
        ),
        rows,
    )


def _conclude(numbers: dict[str, float]) -> tuple[Conclusion, ...]:
    found = [
        Conclusion(
            text(
                "Ten steps of 95 % are done in {plain:.1%} of tasks; ten services of 99.9 % are up "
                "together {services_10:.1%} of the time.",
                "十步各 95 % 的任务只有 {plain:.1%} 完成；十个可用性 99.9 % 的服务同时可用为 "
                "{services_10:.1%}。",
            ),
            abs(numbers["plain"] - 0.599) < 0.001 and numbers["apart"] < _SLACK,
        ),
        Conclusion(
            text(
                "A retry is worth what its verifier is: {perfect:.1%} when nothing is missed, "
                "{good:.1%} when 20 % is, {poor:.1%} when half is, and {many:.1%} with five "
                "retries.",
                "重试的价值取决于校验器：无漏判 {perfect:.1%}，漏判 20 % 时 {good:.1%}，"
                "漏判一半时 {poor:.1%}，即使重试五次也只有 {many:.1%}。",
            ),
            numbers["perfect"] > numbers["good"] > numbers["poor"] > numbers["plain"]
            and numbers["many"] < numbers["good"],
        ),
    ]
    if "harmful" in numbers:
        found.append(
            Conclusion(
                text(
                    "A list of forbidden words lets {deny_lost:.0f} of {harmful:.0f} ways to lose "
                    "a "
                    "file pass, and stops a harmless search ({deny_useful:.0f} of {harmless:.0f} "
                    "work); allowed programs without a shell let {allow_lost:.0f} pass and "
                    "{allow_useful:.0f} of {harmless:.0f} work.",
                    "黑名单放过 {harmful:.0f} 种删改方式中的 {deny_lost:.0f} 种，还误拦一次无害搜索"
                    "（{harmless:.0f} 个中 {deny_useful:.0f} 个可用）；不经 shell 的白名单放过 "
                    "{allow_lost:.0f} 种，{harmless:.0f} 个无害命令中 {allow_useful:.0f} 个可用。",
                ),
                numbers["allow_lost"] == 0
                and numbers["deny_lost"] > numbers["harmful"] / 2
                and numbers["allow_useful"] == numbers["harmless"] > numbers["deny_useful"],
            )
        )
    return (
        *found,
        Conclusion(
            text(
                "The best size of a chunk depends on what is kept fixed: recall@5 goes from "
                "{top_least:.0%} to {top_most:.0%} with size, since more is read; within 1000 "
                "words "
                "only from {budget_least:.0%} to {budget_most:.0%}.",
                "最佳块大小取决于固定什么：recall@5 随块大小从 {top_least:.0%} 到 {top_most:.0%}，"
                "因为读得更多；同为 1000 词预算时只从 {budget_least:.0%} 到 {budget_most:.0%}。",
            ),
            numbers["budget_most"] - numbers["budget_least"]
            < 0.6 * (numbers["top_most"] - numbers["top_least"])
            and numbers["top_800_apart"] == numbers["top_most"],
        ),
        Conclusion(
            text(
                "An overlap of 20 % mends what boundaries cut: {cut_100_apart:.0%} of answers to "
                "{cut_100_shared:.0%} at 100 words, recall@5 from {top_100_apart:.0%} to "
                "{top_100_shared:.0%}.",
                "20 % 重叠修复被边界切断的答案：每块 100 词时从 {cut_100_apart:.0%} 降到 "
                "{cut_100_shared:.0%}，recall@5 从 {top_100_apart:.0%} 升到 {top_100_shared:.0%}。",
            ),
            numbers["cut_100_shared"] < numbers["cut_100_apart"]
            and numbers["top_100_shared"] > numbers["top_100_apart"],
        ),
    )


def draw(result: Result, path: Path, language: Language) -> None:
    from infra_lab.figures import direct_labels, drawing

    lines = (
        ("top", text("first 5 passages", "前 5 段")),
        ("budget", text("1000 words", "1000 词")),
    )
    steps = range(1, 31)
    loops = (
        (text("no retry", "不重试"), 0, 0.0),
        (text("20 % missed", "漏判 20 %"), 1, 0.2),
        (text("perfect", "无漏判"), 1, 0.0),
    )
    with drawing(path, columns=2, width=9.2, height=3.6) as (_, (left, right)):
        for label, retries, missed in loops:
            left.plot(
                steps,
                [Loop(count, _SUCCESS, retries, missed).task_success() for count in steps],
                label=label[language],
            )
        left.set_title(
            {"en": "tasks done, steps of 95 %", "zh": "任务成功率（每步 95 %）"}[language]
        )
        left.set_xlabel({"en": "steps", "zh": "步数"}[language])
        left.set_ylim(0, 1.05)
        for name, label in lines:
            right.semilogx(
                _SIZES,
                [result.numbers[f"{name}_{size}_apart"] for size in _SIZES],
                base=2,
                marker="o",
                label=label[language],
            )
        right.set_title({"en": "questions answered", "zh": "命中的问题占比"}[language])
        right.set_xlabel({"en": "words a chunk", "zh": "每块词数"}[language])
        right.set_xticks(_SIZES, [str(size) for size in _SIZES])
        right.minorticks_off()
        right.set_ylim(0, 1.05)
        for axes in (left, right):
            direct_labels(axes)


EXPERIMENT = Experiment(
    "agent-loop",
    text("What makes an agent's loop fail", "Agent 循环为何失败"),
    text(
        "How do steps compound, do filters of commands hold, and how large should a chunk be?",
        "多步误差如何累积？命令过滤管用吗？分块该多大？",
    ),
    run,
    draw,
    seconds=8,
)
