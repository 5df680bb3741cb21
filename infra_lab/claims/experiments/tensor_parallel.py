"""Tensor parallelism counted: how many all-reduces a layer needs, and how much each one sends.

Answers "one all-reduce forward and one backward, or two and two?" by splitting real layers over
ranks, running them forward and backward in float64, and comparing with the same layers unsplit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from infra_lab.calculators.hardware import device
from infra_lab.calculators.model_table import model
from infra_lab.calculators.parallel import (
    all_reduce_message_bytes,
    all_reduces_per_step,
    quickest_all_reduce,
    step_communication_s,
)
from infra_lab.calculators.roofline import Setting, tpot_floor
from infra_lab.calculators.units import KIB
from infra_lab.claims.experiments.experiment import (
    Conclusion,
    Experiment,
    Progress,
    Result,
    Table,
    column,
)
from infra_lab.claims.experiments.sharded_layers import LayerShape, Ring, forward, random_layers
from infra_lab.quantization.distance import relative_error
from infra_lab.texts import Language, text

RANKS = (2, 4)
_SHAPE = LayerShape()
_NUM_TOKENS = 12
_LATENCIES_US = (1.0, 2.0, 5.0, 10.0, 20.0)
_EIGHT = 8


@dataclass(frozen=True, slots=True)
class Split:
    """What splitting over so many ranks sent, and how far it is from the layers unsplit."""

    num_ranks: int
    forward_per_layer: float
    backward_per_layer: float
    sent_over_message: float
    output_error: float
    gradient_error: float


def run(progress: Progress, seed: int) -> Result:
    progress(0, 2, text("layers in shards", "分片计算"))
    splits = [measure(ranks, seed) for ranks in RANKS]
    wrong = without_one_all_reduce(RANKS[0], seed)
    progress(1, 2, text("a step of Llama-2-70B", "Llama-2-70B 的一步"))
    shares = _shares_of_step()
    numbers = _numbers(splits, wrong, shares)
    return Result(numbers, (_count_table(splits), _share_table(shares)), _conclusions(numbers))


def measure(num_ranks: int, seed: int, shape: LayerShape = _SHAPE) -> Split:
    """Forward and backward of the same layers, whole and split."""
    import torch

    layers = random_layers(shape, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    start = torch.randn(
        _NUM_TOKENS, shape.hidden_size, generator=generator, dtype=torch.float64
    ).requires_grad_()
    wanted = [start, *(one for weights in layers for one in weights.values())]
    whole = forward(layers, shape, start, Ring(1))
    whole_gradients = torch.autograd.grad(whole.square().sum(), wanted)
    ring = Ring(num_ranks)
    split = forward(layers, shape, start, ring)
    sent = ring.sent
    gradients = torch.autograd.grad(split.square().sum(), wanted)
    return Split(
        num_ranks,
        ring.forward / shape.num_layers,
        ring.backward / shape.num_layers,
        sent / ring.forward / whole.numel(),
        relative_error(split.detach(), whole.detach()),
        max(
            relative_error(one, other)
            for one, other in zip(gradients, whole_gradients, strict=True)
        ),
    )


def without_one_all_reduce(num_ranks: int, seed: int, shape: LayerShape = _SHAPE) -> float:
    """The relative error of the output where each layer sums after its MLP only."""
    import torch

    layers = random_layers(shape, seed)
    generator = torch.Generator().manual_seed(seed + 1)
    start = torch.randn(_NUM_TOKENS, shape.hidden_size, generator=generator, dtype=torch.float64)
    after_attention = set(range(1, 2 * shape.num_layers, 2))
    with torch.no_grad():
        whole = forward(layers, shape, start, Ring(1))
        one = forward(layers, shape, start, Ring(num_ranks, skipped=after_attention))
    return relative_error(one, whole)


def _shares_of_step() -> dict[float, tuple[float, float]]:
    """Milliseconds of all-reduces, and their share of a decode step at batch 1 on eight A100, by
    the start-up time of a hop in microseconds."""
    llama, a100 = model("llama-2-70b"), device("a100-80gb")
    floor = tpot_floor(llama, 1, 1, Setting(a100, num_gpus=_EIGHT)).time_s
    message = all_reduce_message_bytes(llama.hidden_size, 1)
    link = a100.nvlink_one_way_bytes_per_s
    assert link is not None
    shares = {}
    for latency_us in _LATENCIES_US:
        one = quickest_all_reduce(message, _EIGHT, link, latency_us * 1e-6)
        all_s = step_communication_s(llama, one)
        shares[latency_us] = (1000 * all_s, all_s / (floor + all_s))
    return shares


def _numbers(
    splits: Sequence[Split], wrong: float, shares: Mapping[float, tuple[float, float]]
) -> dict[str, float]:
    llama = model("llama-2-70b")
    first, last = _LATENCIES_US[0], _LATENCIES_US[-1]
    return {
        "forward_per_layer": max(one.forward_per_layer for one in splits),
        "backward_per_layer": max(one.backward_per_layer for one in splits),
        "least_per_layer": min(
            min(one.forward_per_layer, one.backward_per_layer) for one in splits
        ),
        "output_error": max(one.output_error for one in splits),
        "gradient_error": max(one.gradient_error for one in splits),
        "error_with_one": wrong,
        "sent_over_message": splits[-1].sent_over_message,
        "step_all_reduces": all_reduces_per_step(llama.num_layers),
        "message_kib": all_reduce_message_bytes(llama.hidden_size, 1) / KIB,
        "least_share": shares[first][1],
        "most_share": shares[last][1],
        "least_latency_us": first,
        "most_latency_us": last,
    }


def _count_table(splits: Sequence[Split]) -> Table:
    return Table(
        text(
            f"{_SHAPE.num_layers} Llama-like layers in shards, float64, against the same unsplit",
            f"{_SHAPE.num_layers} 层 Llama 结构分片计算（float64），与不分片对比",
        ),
        (
            column("ranks", "TP", "d"),
            column("all-reduces a layer, forward", "每层 AllReduce（前向）", ".0f"),
            column("backward", "反向", ".0f"),
            column("sent by a rank, in messages", "每卡发送量 / 消息大小", ".2f"),
            column("error of the output", "输出误差", ".1e"),
            column("of the gradients", "梯度误差", ".1e"),
        ),
        tuple(
            (
                one.num_ranks,
                one.forward_per_layer,
                one.backward_per_layer,
                one.sent_over_message,
                one.output_error,
                one.gradient_error,
            )
            for one in splits
        ),
    )


def _share_table(shares: Mapping[float, tuple[float, float]]) -> Table:
    return Table(
        text(
            "A decode step of Llama-2-70B on eight A100 at batch 1: what the all-reduces take",
            "Llama-2-70B 在 8 张 A100 上 batch 1 的 decode 步：AllReduce 的开销",
        ),
        (
            column("start-up of a hop, us", "每跳启动延迟（us）", "g"),
            column("all-reduces, ms", "AllReduce 合计（ms）", ".2f"),
            column("share of the step", "占一步的比例", ".0%"),
        ),
        tuple((latency, *found) for latency, found in shares.items()),
    )


def _conclusions(numbers: Mapping[str, float]) -> tuple[Conclusion, ...]:
    return (
        Conclusion(
            text(
                "A layer needs {forward_per_layer:.0f} all-reduces forward and "
                "{backward_per_layer:.0f} backward: {step_all_reduces:.0f} a decode step of "
                "Llama-2-70B, not half of that.",
                "每层前向 {forward_per_layer:.0f} 次、反向 {backward_per_layer:.0f} 次 AllReduce："
                "Llama-2-70B 每个 decode 步 {step_all_reduces:.0f} 次，而不是一半。",
            ),
            numbers["forward_per_layer"]
            == numbers["backward_per_layer"]
            == numbers["least_per_layer"]
            == 2,
        ),
        Conclusion(
            text(
                "The shards compute the same: output within {output_error:.0e} and gradients "
                "within {gradient_error:.0e} of the layers unsplit.",
                "分片结果与不分片一致：输出误差 {output_error:.0e}，梯度误差 "
                "{gradient_error:.0e}。",
            ),
            numbers["output_error"] < 1e-12 and numbers["gradient_error"] < 1e-10,
        ),
        Conclusion(
            text(
                "With one all-reduce a layer the output is off by {error_with_one:.0%}.",
                "每层只做一次 AllReduce，输出会差 {error_with_one:.0%}。",
            ),
            numbers["error_with_one"] > 0.05,
        ),
        Conclusion(
            text(
                "Round a ring each rank sends {sent_over_message:.2f} messages for one all-reduce "
                "of four ranks: 2 (n - 1) / n.",
                "4 卡 ring AllReduce，每卡发送 {sent_over_message:.2f} 倍消息大小：2(n−1)/n。",
            ),
            numbers["sent_over_message"] == 2 * 3 / 4,
        ),
        Conclusion(
            text(
                "What they cost is start-up, not bandwidth ({message_kib:.0f} KiB each): "
                "{least_share:.0%} of a step at {least_latency_us:.0f} us a hop, "
                "{most_share:.0%} at {most_latency_us:.0f}.",
                "开销在启动延迟而非带宽（每条消息 {message_kib:.0f} KiB）：每跳 "
                "{least_latency_us:.0f} us 时占一步的 {least_share:.0%}，"
                "{most_latency_us:.0f} us 时占 {most_share:.0%}。",
            ),
            numbers["least_share"] < 0.15 and numbers["most_share"] > 0.4,
        ),
    )


def draw(result: Result, path: Path, language: Language) -> None:
    """The share of a step that the all-reduces take, by the start-up of a hop."""
    from infra_lab.figures import drawing, in_percent

    shares = result.tables[1]
    with drawing(path, width=6.5, height=3.8) as (_, axes):
        axes.plot(shares.numbers(0), shares.numbers(2), marker="o")
        in_percent(axes.yaxis)
        axes.set_xticks(_LATENCIES_US)
        axes.set_ylim(bottom=0)
        axes.set_xlabel(shares.columns[0].title[language])
        axes.set_title(
            {
                "en": "All-reduces' share of a decode step, Llama-2-70B, TP 8",
                "zh": "AllReduce 占 decode 步的比例（Llama-2-70B，TP 8）",
            }[language]
        )


EXPERIMENT = Experiment(
    name="tensor-parallel",
    title=text("All-reduces of tensor parallelism", "张量并行的 AllReduce"),
    question=text(
        "How many all-reduces does a layer need under tensor parallelism, and what do they cost?",
        "张量并行时每层需要几次 AllReduce，开销有多大？",
    ),
    run=run,
    draw=draw,
    seconds=3,
)
