"""One scheduler fed in two ways: wait for the whole batch (static), or refill at every step."""

from __future__ import annotations

from typing import Any

from infra_lab.cache.kv_cache_manager import KVCacheManager
from infra_lab.calculators.scheduling import continuous_batches, static_batches
from infra_lab.config import EngineConfig
from infra_lab.engine.request import Request
from infra_lab.engine.scheduler import Scheduler
from infra_lab.sampling_params import SamplingParams
from infra_lab.step import ModelOutput, SchedulerOutput

OUTPUT_LENGTHS = (3, 9, 2, 5, 7, 2, 4, 6)
SLOTS = 4
PROMPT_TOKENS = 4

Cell = dict[str, Any]


def figure() -> dict[str, Any]:
    static, continuous = run(is_static=True), run(is_static=False)
    steps = max(len(static), len(continuous))
    frames = [_frame(number, static, continuous) for number in range(steps)]
    frames.append(_last(static, continuous))
    return {
        "kind": "batch-over-time",
        "slots": SLOTS,
        "lengths": list(OUTPUT_LENGTHS),
        "static": static,
        "continuous": continuous,
        "frames": frames,
    }


def run(is_static: bool) -> list[list[Cell]]:
    """What each step of the engine's scheduler held: a request's number, its slot, and whether
    the step read its prompt."""
    scheduler = Scheduler(
        EngineConfig(max_num_seqs=SLOTS, max_num_batched_tokens=SLOTS * PROMPT_TOKENS),
        KVCacheManager(num_blocks=65, block_size=4, enable_prefix_caching=False),
        max_model_len=64,
    )
    waiting = list(range(len(OUTPUT_LENGTHS)))
    slots: dict[int, int] = {}
    steps: list[list[Cell]] = []
    while waiting or scheduler.has_unfinished_requests:
        if waiting and (not is_static or not scheduler.has_unfinished_requests):
            group = waiting[:SLOTS] if is_static else waiting
            waiting = waiting[len(group) :]
            for number in group:
                scheduler.add_request(_request(number))
        output = scheduler.schedule()
        steps.append(_cells(output, slots))
        scheduler.update_from_output(output, _sampled(output))
        running = {int(request.request_id) for request in scheduler.running}
        slots = {number: slot for number, slot in slots.items() if number in running}
    return steps


def _request(number: int) -> Request:
    params = SamplingParams(max_tokens=OUTPUT_LENGTHS[number], ignore_eos=True)
    prompt = [number * 100 + place for place in range(PROMPT_TOKENS)]
    return Request(str(number), prompt, params)


def _cells(output: SchedulerOutput, slots: dict[int, int]) -> list[Cell]:
    cells = []
    for item in output.scheduled:
        number = int(item.request_id)
        if number not in slots:
            slots[number] = min(set(range(SLOTS)) - set(slots.values()))
        is_prompt = item.num_computed_tokens < PROMPT_TOKENS
        cells.append({"request": number, "slot": slots[number], "prompt": is_prompt})
    return cells


def _sampled(output: SchedulerOutput) -> ModelOutput:
    return ModelOutput({item.request_id: [1] for item in output.scheduled if item.samples})


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
