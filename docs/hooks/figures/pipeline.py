"""Bubbles of a pipeline: stages wait at both ends, and more micro-batches make that matter less."""

from __future__ import annotations

from typing import Any

from infra_lab.calculators.parallel import pipeline_bubble

STAGES = 4
MICRO_BATCHES = (1, 2, 4, 8, 16)


def schedule(num_stages: int, num_micro_batches: int) -> list[list[int | None]]:
    """Of each stage, by tick, the micro-batch it works on: stage s has micro-batch i at s + i."""
    ticks = num_stages + num_micro_batches - 1
    return [
        [tick - stage if 0 <= tick - stage < num_micro_batches else None for tick in range(ticks)]
        for stage in range(num_stages)
    ]


def figure() -> dict[str, Any]:
    return {
        "kind": "pipeline-bubbles",
        "frames": [_frame(number) for number in MICRO_BATCHES],
    }


def _frame(number: int) -> dict[str, Any]:
    share = pipeline_bubble(STAGES, number)
    plan = schedule(STAGES, number)
    idle = sum(cell is None for row in plan for cell in row)
    ticks = len(plan[0])
    batches = "1 micro-batch" if number == 1 else f"{number} micro-batches"
    return {
        "text": {
            "en": f"{STAGES} stages, {batches}: {idle} of {STAGES * ticks} places are empty, "
            f"(p - 1) / (m + p - 1) = {share:.1%}. A batch takes {ticks} ticks.",
            "zh": f"{STAGES} 个阶段、{number} 个 micro-batch："
            f"{STAGES * ticks} 个格子空了 {idle} 个，"
            f"(p − 1) / (m + p − 1) = {share:.1%}。全批需要 {ticks} 拍。",
        },
        "plan": plan,
    }
