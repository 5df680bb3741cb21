"""Copy-on-write in block tables: what parallel samples and beams share, and what they copy.

Answers "N samples of one prompt share its blocks: is memory divided by N?". Samples share their
prompt only; beams share their past as well. The block tables are the engine's; the beams are
those of the default model. Compared with the vLLM paper (arXiv 2309.06180), figure 15.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING

from infra_lab.cache.kv_cache_manager import KVCacheManager
from infra_lab.claims.computed import measured
from infra_lab.claims.experiments.experiment import (
    Cell,
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
from infra_lab.engine.traces import ALPACA, SHAREGPT, Lengths, draw_lengths
from infra_lab.models.catalog import DEFAULT_MODEL
from infra_lab.sampling_params import BeamSearchParams, SamplingParams
from infra_lab.step import ModelOutput
from infra_lab.texts import Language, text

if TYPE_CHECKING:
    from infra_lab.engine.llm import LLM

WIDTHS = (2, 4, 6)
BLOCK_SIZE = DEFAULT_BLOCK_SIZE
_NUM_PROMPTS = {"Alpaca": 60, "ShareGPT": 25}
_BEAM_TOKENS = 56  # about the mean answer of Alpaca
_QUESTIONS = (
    "Give three tips for staying healthy.",
    "What are the three primary colours?",
    "Describe the structure of an atom.",
    "How can we reduce air pollution?",
)


@dataclass(frozen=True, slots=True)
class Shared:
    """Block steps that were held, those without sharing, and blocks copied when written."""

    held: int
    unshared: int
    copies: int

    @property
    def saved(self) -> float:
        return 1 - self.held / self.unshared


def run(progress: Progress, seed: int) -> Result:
    total = 2 + len(WIDTHS)
    samples: dict[str, dict[int, Shared]] = {}
    for step, lengths in enumerate((ALPACA, SHAREGPT)):
        progress(step, total, text(f"samples, {lengths.name}", f"并行采样，{lengths.name}"))
        samples[lengths.name] = {width: _samples(lengths, width, seed) for width in WIDTHS}
    beams = _beams(progress, total)
    numbers = _numbers(samples, beams)
    return Result(numbers, (_saving_table(samples, beams), _copies_table()), _conclusions(numbers))


def sample_group(prompt: int, outputs: Sequence[int]) -> Shared:
    """Samples of one prompt, of the given lengths, in the engine's scheduler."""
    longest = prompt + max(outputs)
    num_blocks = len(outputs) * (2 + longest // BLOCK_SIZE)
    config = EngineConfig(
        num_blocks=num_blocks,
        block_size=BLOCK_SIZE,
        max_num_batched_tokens=4096,
        enable_prefix_caching=False,
    )
    cache = KVCacheManager(num_blocks + 1, BLOCK_SIZE, enable_prefix_caching=False)
    scheduler = Scheduler(config, cache, max_model_len=longest + 1)
    names = [str(index) for index in range(len(outputs))]
    for name, output in zip(names, outputs, strict=True):
        params = SamplingParams(max_tokens=output, ignore_eos=True)
        leader = None if name == names[0] else names[0]
        scheduler.add_request(Request(name, list(range(prompt)), params), leader)
    held = unshared = copies = 0
    while scheduler.has_unfinished_requests:
        step = scheduler.schedule()
        copies += len(step.block_copies)
        ours, without = cache.num_blocks_held(names)
        held, unshared = held + ours, unshared + without
        sampled = {
            name: [1]
            for one in step.scheduled
            if one.samples
            for name in (one.request_id, *one.forks)
        }
        scheduler.update_from_output(step, ModelOutput(sampled))
    return Shared(held, unshared, copies)


def _samples(lengths: Lengths, width: int, seed: int) -> Shared:
    """Over all prompts of a trace; the samples of a prompt are as long as its answer there."""
    found = [
        sample_group(prompt, [output] * width)
        for prompt, output in draw_lengths(lengths, _NUM_PROMPTS[lengths.name], Random(seed))
    ]
    return Shared(
        sum(one.held for one in found),
        sum(one.unshared for one in found),
        sum(one.copies for one in found),
    )


def _beams(progress: Progress, total: int) -> dict[int, Shared]:
    """Beam searches of the default model, at the peak of each."""
    from infra_lab.engine.llm import LLM

    progress(2, total, text("loading the model", "加载模型"))
    llm = LLM(DEFAULT_MODEL, num_blocks=512, block_size=BLOCK_SIZE)
    found = {}
    for step, width in enumerate(WIDTHS):
        progress(2 + step, total, text(f"beams, width {width}", f"beam search，宽度 {width}"))
        found[width] = _search(llm, width)
    return found


def _search(llm: LLM, width: int) -> Shared:
    conversations = [[{"role": "user", "content": one}] for one in _QUESTIONS]
    params = BeamSearchParams(beam_width=width, max_tokens=_BEAM_TOKENS)
    outputs = llm.chat(conversations, params, use_progress=False)
    return Shared(
        sum(one.metrics.peak_kv_blocks for one in outputs),
        sum(one.metrics.peak_kv_blocks_unshared for one in outputs),
        0,
    )


def _numbers(
    samples: Mapping[str, Mapping[int, Shared]], beams: Mapping[int, Shared]
) -> dict[str, float]:
    numbers = {
        f"{trace.lower()}_{width}": one.saved
        for trace, found in samples.items()
        for width, one in found.items()
    }
    numbers |= {f"beams_{width}": one.saved for width, one in beams.items()}
    numbers |= {f"bound_{width}": 1 - 1 / width for width in WIDTHS}
    numbers |= {f"paper_beams_{width}": measured.BEAM_SAVING_ALPACA[width] for width in WIDTHS}
    return numbers | {
        "paper_samples_2": measured.SAMPLE_SAVING_ALPACA[2],
        "paper_samples_6": measured.SAMPLE_SAVING_ALPACA[6],
        "paper_long_2": measured.SAMPLE_SAVING_SHAREGPT[0],
        "paper_long_6": measured.SAMPLE_SAVING_SHAREGPT[1],
        "copies_unaligned": sample_group(BLOCK_SIZE + 3, [20] * 4).copies,
        "copies_aligned": sample_group(2 * BLOCK_SIZE, [20] * 4).copies,
    }


def _saving_table(
    samples: Mapping[str, Mapping[int, Shared]], beams: Mapping[int, Shared]
) -> Table:
    rows: list[tuple[Cell, ...]] = [
        (
            text(f"samples, {trace}-like", f"并行采样，{trace} 类"),
            *(found[width].saved for width in WIDTHS),
        )
        for trace, found in samples.items()
    ]
    rows.append(
        (
            text("beams, SmolLM2-135M", "beam search，SmolLM2-135M"),
            *(beams[width].saved for width in WIDTHS),
        )
    )
    bound = text("if all were shared: 1 - 1/N", "若全部共享：1−1/N")
    rows.append((bound, *(1 - 1 / width for width in WIDTHS)))
    return Table(
        text(
            "KV blocks saved by sharing, by samples or beams",
            "共享节省的 KV 块，按采样数或 beam 宽度",
        ),
        (column("", ""), *(column(f"{width}", f"{width}", ".1%") for width in WIDTHS)),
        tuple(rows),
    )


def _copies_table() -> Table:
    rows = []
    for prompt in (BLOCK_SIZE + 3, 2 * BLOCK_SIZE - 1, 2 * BLOCK_SIZE):
        rows.append((prompt, *(sample_group(prompt, [20] * n).copies for n in WIDTHS)))
    return Table(
        text("Blocks copied when written, a group of N samples", "写时复制的块数，每组 N 个采样"),
        (
            column("prompt tokens", "prompt 长度", "d"),
            *(column(f"N = {width}", f"N = {width}", "d") for width in WIDTHS),
        ),
        tuple(rows),
    )


def _conclusions(numbers: Mapping[str, float]) -> tuple[Conclusion, ...]:
    return (
        Conclusion(
            text(
                "Samples share their prompt and nothing else: {alpaca_2:.1%} to {alpaca_6:.1%} "
                "saved with Alpaca's short prompts (paper: {paper_samples_2:.1%} to "
                "{paper_samples_6:.1%}), {sharegpt_2:.1%} to {sharegpt_6:.1%} with ShareGPT's "
                "(paper: {paper_long_2:.1%} to {paper_long_6:.1%}).",
                "并行采样只共享 prompt：Alpaca 类短 prompt 节省 {alpaca_2:.1%} 到 {alpaca_6:.1%}"
                "（论文 {paper_samples_2:.1%} 到 {paper_samples_6:.1%}），ShareGPT 类节省 "
                "{sharegpt_2:.1%} 到 {sharegpt_6:.1%}（论文 {paper_long_2:.1%} 到 "
                "{paper_long_6:.1%}）。",
            ),
            0.02 < numbers["alpaca_2"] < numbers["alpaca_6"] < numbers["sharegpt_6"] < 0.4,
        ),
        Conclusion(
            text(
                "Beams share their past too: {beams_2:.1%}, {beams_4:.1%} and {beams_6:.1%} at "
                "widths 2, 4 and 6 (paper, Alpaca: {paper_beams_2:.1%}, {paper_beams_4:.1%}, "
                "{paper_beams_6:.1%}).",
                "beam 还共享历史：宽度 2、4、6 时节省 {beams_2:.1%}、{beams_4:.1%}、"
                "{beams_6:.1%}（论文 Alpaca：{paper_beams_2:.1%}、{paper_beams_4:.1%}、"
                "{paper_beams_6:.1%}）。",
            ),
            all(numbers[f"beams_{one}"] > numbers[f"alpaca_{one}"] for one in WIDTHS)
            and numbers["beams_2"] < numbers["beams_4"] < numbers["beams_6"],
        ),
        Conclusion(
            text(
                "None divides memory by N: that would save {bound_2:.0%}, {bound_4:.0%} and "
                "{bound_6:.0%}.",
                "都到不了“除以 N”：那要节省 {bound_2:.0%}、{bound_4:.0%}、{bound_6:.0%}。",
            ),
            all(
                numbers[f"{kind}_{one}"] < numbers[f"bound_{one}"]
                for kind in ("alpaca", "sharegpt", "beams")
                for one in WIDTHS
            ),
        ),
        Conclusion(
            text(
                "Four samples copy {copies_unaligned:.0f} blocks, once each, when the prompt ends "
                "within a block, and {copies_aligned:.0f} when it ends with one: full blocks are "
                "never written again.",
                "4 个采样：prompt 没填满最后一块时共复制 {copies_unaligned:.0f} 块（最后一个持有者"
                "原地写），恰好填满时复制 {copies_aligned:.0f} 块：满块不会再被写。",
            ),
            numbers["copies_unaligned"] == 3 and numbers["copies_aligned"] == 0,
        ),
    )


def draw(result: Result, path: Path, language: Language) -> None:
    """Savings by width, and the bound."""
    from infra_lab.figures import COLOURS, drawing, in_percent

    saving = result.tables[0]
    names = saving.texts(0, language)
    with drawing(path, width=7.5, height=4.2) as (_, axes):
        for row, name, style in zip(saving.rows, names, ("o-", "s-", "D-", "--"), strict=True):
            colour = COLOURS[6] if style == "--" else None
            axes.plot(WIDTHS, row[1:], style, color=colour, label=name)
        in_percent(axes.yaxis)
        axes.set_xticks(WIDTHS)
        axes.set_ylim(0, 1)
        axes.set_xlabel({"en": "samples or beams", "zh": "采样数或 beam 宽度"}[language])
        axes.set_title({"en": "KV blocks saved by sharing", "zh": "共享节省的 KV 块"}[language])
        axes.legend(loc="upper left")


EXPERIMENT = Experiment(
    name="copy-on-write",
    title=text("Copy-on-write in block tables", "块表的写时复制"),
    question=text(
        "How much memory do samples and beams of one prompt save by sharing blocks?",
        "同一 prompt 的多个采样或 beam 共享块能省多少显存？",
    ),
    run=run,
    draw=draw,
    seconds=14,
    needs=("model",),
)
