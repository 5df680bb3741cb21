"""Prefix caching on the real engine: what a common prefix saves, and what it never does.

Answers "1500 of 2000 tokens are cached: how many are computed?" with the engine's own scheduler
and cache, and "what does that do to TTFT?" with the default model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from statistics import median

from infra_lab.cache.kv_cache_manager import KVCacheManager
from infra_lab.calculators.prefix import computed_tokens, memory_saved_share
from infra_lab.claims.experiments.experiment import (
    Conclusion,
    Experiment,
    Progress,
    Result,
    Table,
    column,
)
from infra_lab.config import DEFAULT_BLOCK_SIZE, EngineConfig
from infra_lab.engine.request import Request
from infra_lab.engine.scheduler import Scheduler
from infra_lab.models.catalog import DEFAULT_MODEL
from infra_lab.sampling_params import SamplingParams
from infra_lab.step import ModelOutput
from infra_lab.texts import Language, text

BLOCK_SIZE = DEFAULT_BLOCK_SIZE
PROMPT = 320
SHARES = (0.0, 0.5, 0.75, 0.9, 1.0)
REPEATS = 3
_NUM_BLOCKS = 1024
_EXAMPLES = ((1500, 2000), (1488, 2000), (1487, 2000), (2000, 2000), (15, 2000))
_SHARERS = (2, 8)


@dataclass(frozen=True, slots=True)
class Timed:
    """A prompt of which so many tokens were cached, and the median seconds to its first token."""

    shared: int
    cached: int
    ttft_s: float


def run(progress: Progress, seed: int) -> Result:
    total = 1 + len(SHARES)
    progress(0, total, text("counting", "计数"))
    counted = {pair: computed(*pair) for pair in _EXAMPLES}
    saved = {number: memory_saved(number) for number in _SHARERS}
    kept = prefix_left_after_eviction()
    progress(1, total, text("loading the model", "加载模型"))
    timed = _time_prompts(progress, total, Random(seed))
    numbers = _numbers(counted, saved, kept, timed)
    return Result(
        numbers, (_count_table(counted), _ttft_table(timed)), _conclusions(numbers, timed)
    )


def computed(num_shared: int, num_prompt: int, block_size: int = BLOCK_SIZE) -> int:
    """Tokens that the engine's scheduler computes of a prompt whose first ones a request before
    it had, too."""
    first = list(range(num_shared)) or [0]
    second = [*range(num_shared), *(10**6 + one for one in range(num_prompt - num_shared))]
    scheduler = _scheduler(_NUM_BLOCKS, block_size)
    _serve(scheduler, Request("first", first, SamplingParams(max_tokens=1, ignore_eos=True)))
    return _serve(
        scheduler, Request("second", second, SamplingParams(max_tokens=1, ignore_eos=True))
    )


def memory_saved(num_requests: int, num_blocks: int = 20) -> float:
    """Of the blocks of requests that run at once and share the first half of their prompts."""
    scheduler = _scheduler(_NUM_BLOCKS, BLOCK_SIZE)
    half = num_blocks * BLOCK_SIZE // 2
    for index in range(num_requests):
        own = [10**6 * (index + 1) + one for one in range(half)]
        params = SamplingParams(max_tokens=100, ignore_eos=True)
        scheduler.add_request(Request(str(index), [*range(half), *own], params))
        step = scheduler.schedule()  # the tokens of those before wait: only blocks are counted
        scheduler.update_from_output(step, ModelOutput())
    # Nothing was sampled, so that each holds the blocks of its prompt.
    return 1 - scheduler.kv_cache.usage.used / (num_requests * num_blocks)


def prefix_left_after_eviction() -> int:
    """Blocks of a finished prompt of four that can still be found when three others were needed
    and two were free: the last one made room."""
    scheduler = _scheduler(6, BLOCK_SIZE)
    old = list(range(4 * BLOCK_SIZE))
    params = SamplingParams(max_tokens=1, ignore_eos=True)
    _serve(scheduler, Request("old", old, params))
    _serve(scheduler, Request("new", [10**6 + one for one in range(3 * BLOCK_SIZE)], params))
    cache = scheduler.kv_cache
    return len(cache.find_cached_prefix(cache.new_chain(), [*old, 0]).blocks)


def _scheduler(num_blocks: int, block_size: int) -> Scheduler:
    config = EngineConfig(
        num_blocks=num_blocks, block_size=block_size, max_num_batched_tokens=4096, max_num_seqs=64
    )
    return Scheduler(config, KVCacheManager(num_blocks + 1, block_size), max_model_len=8192)


def _serve(scheduler: Scheduler, request: Request) -> int:
    """Runs one request to its end; returns how many tokens were computed for it."""
    scheduler.add_request(request)
    total = 0
    while scheduler.has_unfinished_requests:
        step = scheduler.schedule()
        total += step.total_num_scheduled_tokens
        sampled = {one.request_id: [7] for one in step.scheduled if one.samples}
        scheduler.update_from_output(step, ModelOutput(sampled))
    return total


def _time_prompts(progress: Progress, total: int, random: Random) -> list[Timed]:
    """TTFT of the default model on this machine, by the tokens that a prompt shares."""
    from infra_lab.engine.llm import LLM

    llm = LLM(
        DEFAULT_MODEL, num_blocks=512, block_size=BLOCK_SIZE, max_num_batched_tokens=2 * PROMPT
    )
    params = SamplingParams(temperature=0.0, max_tokens=1, ignore_eos=True)
    vocabulary = llm.model_config.vocab_size
    llm.generate(_tokens(PROMPT, vocabulary, random), params)  # the first run warms up
    fresh: list[float] = []
    timed: list[Timed] = []
    for step, share in enumerate(SHARES[1:]):
        progress(2 + step, total, text(f"{share:.0%} shared", f"共享 {share:.0%}"))
        shared = round(share * PROMPT)
        times, cached = [], 0
        for _ in range(REPEATS):
            llm.engine.scheduler.reset_prefix_cache()
            first = _tokens(PROMPT, vocabulary, random)
            own = _tokens(PROMPT - shared, vocabulary, random)
            (before,) = llm.generate(first, params)
            (output,) = llm.generate([*first[:shared], *own], params)
            assert before.metrics.ttft_s is not None
            assert output.metrics.ttft_s is not None
            fresh.append(before.metrics.ttft_s)
            times.append(output.metrics.ttft_s)
            cached = output.num_cached_tokens
        timed.append(Timed(shared, cached, median(times)))
    return [Timed(0, 0, median(fresh)), *timed]


def _tokens(count: int, vocabulary: int, random: Random) -> list[int]:
    return [int(random.random() * vocabulary) for _ in range(count)]


def _numbers(
    counted: Mapping[tuple[int, int], int],
    saved: Mapping[int, float],
    kept: int,
    timed: Sequence[Timed],
) -> dict[str, float]:
    none = timed[0]
    by_share = dict(zip(SHARES, timed, strict=True))
    return {
        "prompt": PROMPT,
        "computed_1500": counted[1500, 2000],
        "computed_all": counted[2000, 2000],
        "saved_2": saved[2],
        "saved_8": saved[8],
        "kept_blocks": kept,
        "cached_75": by_share[0.75].cached,
        "cached_90": by_share[0.9].cached,
        "cached_100": by_share[1.0].cached,
        "speedup_50": none.ttft_s / by_share[0.5].ttft_s,
        "speedup_90": none.ttft_s / by_share[0.9].ttft_s,
        "speedup_100": none.ttft_s / by_share[1.0].ttft_s,
        "work_90": PROMPT / (PROMPT - by_share[0.9].cached),
    }


def _count_table(counted: Mapping[tuple[int, int], int]) -> Table:
    return Table(
        text(
            "Tokens that the scheduler computes, blocks of 16",
            "调度器实际计算的 token 数（块大小 16）",
        ),
        (
            column("shared with a request before", "与之前请求相同的前缀", ",.0f"),
            column("prompt", "prompt 长度", ",.0f"),
            column("computed", "实际计算", ",.0f"),
            column("by the formula", "按公式", ",.0f"),
        ),
        tuple((*pair, found, computed_tokens(*pair)) for pair, found in counted.items()),
    )


def _ttft_table(timed: Sequence[Timed]) -> Table:
    none = timed[0].ttft_s
    return Table(
        text(
            f"A prompt of {PROMPT} tokens on SmolLM2-135M, this machine, median of {REPEATS}",
            f"{PROMPT} token 的 prompt，SmolLM2-135M，本机，{REPEATS} 次取中位数",
        ),
        (
            column("shared tokens", "共享 token", ",.0f"),
            column("found in the cache", "命中 token", ",.0f"),
            column("computed", "实际计算", ",.0f"),
            column("TTFT, ms", "TTFT（ms）", ",.0f"),
            column("times faster", "加速比", ".1f"),
        ),
        tuple(
            (one.shared, one.cached, PROMPT - one.cached, 1000 * one.ttft_s, none / one.ttft_s)
            for one in timed
        ),
    )


def _conclusions(numbers: Mapping[str, float], timed: Sequence[Timed]) -> tuple[Conclusion, ...]:
    hits = [PROMPT - computed_tokens(one.shared, PROMPT, BLOCK_SIZE) for one in timed]
    return (
        Conclusion(
            text(
                "With 1500 of 2000 tokens shared {computed_1500:.0f} are computed, not 500: only "
                "whole blocks are found.",
                "2000 个 token 共享前 1500 个时，实际计算 {computed_1500:.0f} 个而不是 500 个："
                "只命中满块。",
            ),
            numbers["computed_1500"] == 512,
        ),
        Conclusion(
            text(
                "A prompt that is cached whole still computes {computed_all:.0f} tokens: the last "
                "one's logits are needed, and blocks are whole.",
                "整条命中的 prompt 仍要计算 {computed_all:.0f} 个 token：需要最后一个 token 的 "
                "logits，而块只能整块命中。",
            ),
            numbers["computed_all"] == BLOCK_SIZE,
        ),
        Conclusion(
            text(
                "The engine found exactly as many as the formula says at every share "
                "({cached_75:.0f}, {cached_90:.0f} and {cached_100:.0f} of {prompt:.0f} at 75, "
                "90 and 100 %).",
                "每种共享比例下命中数都与公式完全一致（75%、90%、100% 时 {prompt:.0f} 个中命中 "
                "{cached_75:.0f}、{cached_90:.0f}、{cached_100:.0f} 个）。",
            ),
            [one.cached for one in timed] == hits,
        ),
        Conclusion(
            text(
                "TTFT falls {speedup_50:.1f} times at half and {speedup_90:.1f} times at 90 % "
                "shared, for {work_90:.1f} times less work there: a step costs something by "
                "itself, and attention reads the whole prefix.",
                "共享一半时 TTFT 快 {speedup_50:.1f} 倍，90% 时快 {speedup_90:.1f} 倍，而后者"
                "计算量减少 {work_90:.1f} 倍：每步有固定开销，注意力仍要读整个前缀。",
            ),
            numbers["speedup_50"] > 1.2 and numbers["speedup_90"] > 2,
        ),
        Conclusion(
            text(
                "Requests that run at once and share half of their prompts save {saved_2:.1%} of "
                "the blocks when there are two, {saved_8:.1%} when there are eight: p (1 - 1/N).",
                "同时运行、共享一半 prompt 的请求：2 个时节省 {saved_2:.1%} 的块，8 个时节省 "
                "{saved_8:.1%}，即 p(1−1/N)。",
            ),
            all(
                abs(numbers[f"saved_{number}"] - memory_saved_share(0.5, number)) < 1e-12
                for number in _SHARERS
            ),
        ),
        Conclusion(
            text(
                "Eviction takes a sequence's end first: {kept_blocks:.0f} of 4 blocks are still "
                "found when one had to go.",
                "淘汰从序列尾部开始：必须腾出 1 块时，4 块中仍能命中 {kept_blocks:.0f} 块。",
            ),
            numbers["kept_blocks"] == 3,
        ),
    )


def draw(result: Result, path: Path, language: Language) -> None:
    """TTFT by the share of the prompt that is cached."""
    from infra_lab.figures import drawing, in_percent

    ttft = result.tables[1]
    with drawing(path, width=6.5, height=3.8) as (_, axes):
        shares = [shared / PROMPT for shared in ttft.numbers(0)]
        axes.plot(shares, ttft.numbers(3), marker="o")
        in_percent(axes.xaxis)
        axes.set_ylim(bottom=0)
        axes.set_xlabel(
            {"en": "share of the prompt seen before", "zh": "与之前请求相同的前缀比例"}[language]
        )
        axes.set_title(
            {
                "en": f"TTFT of {PROMPT} tokens, ms (SmolLM2-135M)",
                "zh": f"{PROMPT} token 的 TTFT，ms（SmolLM2-135M）",
            }[language]
        )


EXPERIMENT = Experiment(
    name="prefix-cache",
    title=text("What a common prefix saves", "公共前缀能省多少"),
    question=text(
        "How many tokens does a prefix cache save, and what does that do to TTFT?",
        "前缀缓存能省下多少 token，TTFT 因此快多少？",
    ),
    run=run,
    draw=draw,
    seconds=12,
    needs=("model",),
)
