"""Two policies of the engine's scheduler: the whole batch waits (static), or each step refills."""

from __future__ import annotations

from typing import Any

from infra_lab.calculators.scheduling import continuous_batches, static_batches
from infra_lab.config import EngineConfig
from infra_lab.engine.simulation import TracedRequest, simulate
from infra_lab.step import SchedulerOutput

OUTPUT_LENGTHS = (3, 9, 2, 5, 7, 2, 4, 6)
SLOTS = 4
PROMPT_TOKENS = 4

Cell = dict[str, Any]


class CellRecorder:
    """A cost model by which a step takes a second. `steps` keeps what each held: a request's
    number, its slot, and whether the step read its prompt."""

    def __init__(self) -> None:
        self.steps: list[list[Cell]] = []
        self._slots: dict[int, int] = {}

    def seconds(self, step: SchedulerOutput) -> float:
        numbers = [int(item.request_id) for item in step.scheduled]
        # Every running request is in each step: whoever is not has finished, and its slot is free.
        self._slots = {key: slot for key, slot in self._slots.items() if key in numbers}
        for number in numbers:
            if number not in self._slots:
                self._slots[number] = min(set(range(SLOTS)) - set(self._slots.values()))
        self.steps.append(
            [
                {
                    "request": int(item.request_id),
                    "slot": self._slots[int(item.request_id)],
                    "prompt": item.num_computed_tokens < PROMPT_TOKENS,
                }
                for item in step.scheduled
            ]
        )
        return 1.0


def figure() -> dict[str, Any]:
    static, continuous = run("static"), run("fcfs")
    steps = max(len(static), len(continuous))
    frames = [_frame(number, static, continuous) for number in range(steps)]
    frames.append(_last(static, continuous))
    return {
        "kind": "batch-over-time",
        "slots": SLOTS,
        "static": static,
        "continuous": continuous,
        "frames": frames,
    }


def run(scheduling_policy: str) -> list[list[Cell]]:
    """What each step held, of requests that all arrive at the start."""
    config = EngineConfig(
        max_num_seqs=SLOTS,
        max_num_batched_tokens=SLOTS * PROMPT_TOKENS,
        num_blocks=64,
        block_size=4,
        enable_prefix_caching=False,
        scheduling_policy=scheduling_policy,
    )
    recorder = CellRecorder()
    simulate(
        [TracedRequest(0.0, PROMPT_TOKENS, length) for length in OUTPUT_LENGTHS], config, recorder
    )
    return recorder.steps


def _frame(number: int, static: list[list[Cell]], continuous: list[list[Cell]]) -> dict[str, Any]:
    busy = [len(one[number]) if number < len(one) else 0 for one in (static, continuous)]
    en = f"continuous batching {busy[1]}" if busy[1] else "continuous batching is done"
    zh = f"连续批处理有 {busy[1]}/{SLOTS} 个" if busy[1] else "连续批处理已全部完成"
    return {
        "step": number,
        "text": {
            "en": f"Step {number + 1}: static batching keeps {busy[0]} of {SLOTS} slots busy, "
            f"{en}.",
            "zh": f"第 {number + 1} 步：静态批处理有 {busy[0]}/{SLOTS} 个槽位在工作，{zh}。",
        },
    }


def _last(static: list[list[Cell]], continuous: list[list[Cell]]) -> dict[str, Any]:
    shares = [sum(map(len, one)) / (len(one) * SLOTS) for one in (static, continuous)]
    counts = [
        static_batches(OUTPUT_LENGTHS, SLOTS),
        continuous_batches(OUTPUT_LENGTHS, SLOTS),
    ]
    assert [one.num_steps for one in counts] == [len(static), len(continuous)]
    return {
        "step": max(len(static), len(continuous)) - 1,
        "text": {
            "en": f"The same eight requests take {len(static)} steps with {shares[0]:.0%} of the "
            f"slots used, or {len(continuous)} steps with {shares[1]:.0%}: a finished request's "
            "slot goes to the next one at once.",
            "zh": f"同样 8 个请求：静态要 {len(static)} 步、槽位利用率 {shares[0]:.0%}；"
            f"连续只要 {len(continuous)} 步、{shares[1]:.0%}：请求一结束，槽位立刻让给下一个。",
        },
    }
