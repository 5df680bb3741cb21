"""How few bits can keys and values have, and who may share a scale?

Attention over made-up keys with a few large channels, where the truth is known; then the default
model's own keys and values while it reads a text: perplexity, and how far its distributions move.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from infra_lab.claims.experiments import kv_rounding as kv
from infra_lab.claims.experiments.experiment import (
    Conclusion,
    Experiment,
    Progress,
    Result,
    Table,
    column,
)
from infra_lab.claims.experiments.quantized_model import QualityBench
from infra_lab.claims.experiments.threads import one_thread
from infra_lab.texts import Language, text

if TYPE_CHECKING:
    import torch

_TOKENS, _HEAD_DIM, _LARGE_CHANNELS = 512, 128, 4
FACTORS = (1.0, 10.0, 30.0)
_SYNTHETIC = ("int8_tensor", "int8_row", "int8_channel", "fp8_row", "int4_row", "int4_channel")
_WINDOW, _WINDOWS = 192, 2


@one_thread()
def run(progress: Progress, seed: int) -> Result:
    import torch

    formats = kv.formats()
    steps = len(formats) + 2
    progress(0, steps, text("made-up keys", "构造的 key"))
    generator = torch.Generator().manual_seed(seed)
    queries, keys, values = (torch.randn(_TOKENS, _HEAD_DIM, generator=generator) for _ in range(3))
    numbers: dict[str, float] = {}
    for name in _SYNTHETIC:
        for factor in FACTORS:
            grown = kv.with_large_channels(keys, _LARGE_CHANNELS, factor)
            # What a query weighs is the product: smaller queries there leave scores as they were.
            shrunk = kv.with_large_channels(queries, _LARGE_CHANNELS, 1 / factor)
            error = kv.attention_error(shrunk, grown, values, formats[name])
            numbers[f"{name}_x{factor:.0f}"] = error
    progress(1, steps, text("the model's own keys", "模型自己的 key"))
    bench = QualityBench(_WINDOW, _WINDOWS)
    model = bench.model.model
    numbers |= _ranges(*kv.channel_ranges(model, bench.windows[0]))
    numbers["perplexity"] = bench.base.perplexity
    rows = []
    for done, (name, one) in enumerate(formats.items()):
        progress(2 + done, steps, one.name)
        found = kv.quality(model, one, bench.windows, bench.reference)
        assert found.kl_divergence is not None
        assert found.top1_agreement is not None
        change = found.likelihood.perplexity - bench.base.perplexity
        numbers |= {
            f"{name}_change": change,
            f"{name}_kl": found.kl_divergence,
            f"{name}_agree": found.top1_agreement,
        }
        rows.append(
            (one.name, one.bits, found.likelihood.perplexity, change,
             found.kl_divergence, found.top1_agreement)
        )  # fmt: skip
    title = text(
        f"SmolLM2-135M reads {_WINDOW * _WINDOWS} tokens through its cache",
        f"SmolLM2-135M 经由缓存读 {_WINDOW * _WINDOWS} 个 token",
    )
    quality = Table(
        title,
        (
            column("cache", "缓存格式"),
            column("bits", "位数", ".2f"),
            column("perplexity", "困惑度", ".3f"),
            column("change", "变化", "+.3f"),
            column("KL", "KL", ".2e"),
            column("same top-1", "top-1 一致", ".1%"),
        ),
        tuple(rows),
    )
    return Result(numbers, (_made_up_table(numbers), quality), _conclude(numbers))


def _ranges(keys: torch.Tensor, values: torch.Tensor) -> dict[str, float]:
    """Of the largest magnitude of each channel [layers, heads, head_dim]: the largest of all, and
    how many times a head's median channel its largest one is, at most."""
    found = {}
    for name, part in (("key", keys), ("value", values)):
        found[f"{name}_largest"] = float(part.amax())
        found[f"{name}_ratio"] = float((part.amax(-1) / part.median(-1).values).amax())
    return found


def _made_up_table(numbers: dict[str, float]) -> Table:
    formats = kv.formats()
    return Table(
        text(
            f"Error of attention, {_TOKENS} tokens, d = {_HEAD_DIM}, {_LARGE_CHANNELS} key "
            "channels "
            "grown by a factor",
            f"注意力输出误差，{_TOKENS} 个 token，d = {_HEAD_DIM}，{_LARGE_CHANNELS} 个 key 通道放"
            "大",
        ),
        (
            column("cache", "缓存格式"),
            *(column(f"x{factor:.0f}", f"×{factor:.0f}", ".1%") for factor in FACTORS),
        ),
        tuple(
            (formats[name].name, *(numbers[f"{name}_x{factor:.0f}"] for factor in FACTORS))
            for name in _SYNTHETIC
        ),
    )


def _conclude(numbers: dict[str, float]) -> tuple[Conclusion, ...]:
    return (
        Conclusion(
            text(
                "Four large key channels of 128 spoil a scale shared by a token's head: int8 is "
                "off "
                "by {int8_row_x1:.1%}, {int8_row_x10:.1%} and {int8_row_x30:.1%} as they grow 1, "
                "10 "
                "and 30 times.",
                "128 个通道中 4 个偏大的 key 通道会毁掉按 token 与 head 共享的 scale：放大 1、10、"
                "30 倍时，"
                "int8 误差为 {int8_row_x1:.1%}、{int8_row_x10:.1%}、{int8_row_x30:.1%}。",
            ),
            numbers["int8_row_x1"] < 0.03 and numbers["int8_row_x30"] > 5 * numbers["int8_row_x1"],
        ),
        Conclusion(
            text(
                "Keys by channel do not mind: {int8_channel_x1:.1%}, {int8_channel_x10:.1%} and "
                "{int8_channel_x30:.1%}.",
                "key 逐通道则不受影响：{int8_channel_x1:.1%}、{int8_channel_x10:.1%}、"
                "{int8_channel_x30:.1%}。",
            ),
            numbers["int8_channel_x30"] < 2 * numbers["int8_channel_x1"],
        ),
        Conclusion(
            text(
                "fp8 has its own exponents and minds less than int8 does: {fp8_row_x1:.1%} to "
                "{fp8_row_x30:.1%}.",
                "fp8 自带指数，受影响比 int8 小：{fp8_row_x1:.1%} 到 {fp8_row_x30:.1%}。",
            ),
            numbers["fp8_row_x30"] < numbers["int8_row_x30"],
        ),
        Conclusion(
            text(
                "This model's keys reach {key_largest:.1f} and its values {value_largest:.1f}, "
                "not 3; "
                "a head's largest key channel is up to {key_ratio:.1f} times the median one.",
                "该模型的 key 达到 {key_largest:.1f}，value 达到 {value_largest:.1f}，并非 3；"
                "一个 head 中最大的 key 通道可达中位数的 {key_ratio:.1f} 倍。",
            ),
            numbers["key_largest"] > 3,
        ),
        Conclusion(
            text(
                "With one byte an element perplexity ({perplexity:.2f}) moves by "
                "{int8_row_change:+.3f} "
                "(int8, token and head), {fp8_row_change:+.3f} (fp8) and "
                "{int8_channel_change:+.3f} "
                "(keys by channel).",
                "每元素一字节时困惑度（{perplexity:.2f}）变化：int8 逐 token 逐 head "
                "{int8_row_change:+.3f}，fp8 {fp8_row_change:+.3f}，key 逐通道 "
                "{int8_channel_change:+.3f}。",
            ),
            max(abs(numbers[f"{name}_change"]) for name in ("int8_row", "int8_channel", "fp8_row"))
            < 0.02 * numbers["perplexity"],
        ),
        Conclusion(
            text(
                "Below 0.1 is not int8's as such: {int8_row_change:+.3f} with a scale for each "
                "token "
                "and head, {int8_tensor_change:+.3f} with one for all. On so short a text "
                "perplexity "
                "may even fall; KL cannot: {int8_row_kl:.1e} and {int8_tensor_kl:.1e}.",
                "“小于 0.1”并非 int8 固有：逐 token 逐 head 为 {int8_row_change:+.3f}，单一 scale "
                "为 "
                "{int8_tensor_change:+.3f}。短文本上困惑度甚至可能下降，KL 则不会："
                "{int8_row_kl:.1e} 与 {int8_tensor_kl:.1e}。",
            ),
            numbers["int8_row_kl"] < numbers["int8_tensor_kl"],
        ),
        Conclusion(
            text(
                "Who shares a scale matters more the fewer the bits: at 4 bits one scale for all "
                "moves "
                "the distributions by {int4_tensor_kl:.2f} nats, a token's head by "
                "{int4_row_kl:.3f}, "
                "keys by channel by {int4_channel_kl:.3f}.",
                "位数越少，scale 如何共享越要紧：4 位时单一 scale 使分布偏移 {int4_tensor_kl:.2f} "
                "nat，"
                "逐 token 逐 head 为 {int4_row_kl:.3f}，key 逐通道为 {int4_channel_kl:.3f}。",
            ),
            numbers["int4_channel_kl"] < numbers["int4_row_kl"] < numbers["int4_tensor_kl"],
        ),
        Conclusion(
            text(
                "At 2 bits keys by channel are at {int2_channel_kl:.2f} nats, by token and head at "
                "{int2_row_kl:.2f}.",
                "2 位时 key 逐通道为 {int2_channel_kl:.2f} nat，逐 token 逐 head 为 "
                "{int2_row_kl:.2f} nat。",
            ),
            numbers["int2_channel_kl"] < numbers["int2_row_kl"],
        ),
    )


def draw(result: Result, path: Path, language: Language) -> None:
    from infra_lab.figures import drawing

    formats = kv.formats()
    names = sorted(formats, key=lambda name: result.numbers[f"{name}_kl"])
    with drawing(path, width=7.6, height=4.2) as (_, axes):
        axes.barh(
            [formats[name].name[language] for name in names],
            [result.numbers[f"{name}_kl"] for name in names],
            height=0.6,
        )
        axes.set_xscale("log")
        axes.set_xlabel(
            {"en": "KL divergence a token, nats", "zh": "每个 token 的 KL 散度（nat）"}[language]
        )
        axes.grid(axis="y", visible=False)


EXPERIMENT = Experiment(
    "kv-quantization",
    text("Keys and values in few bits", "KV 量化"),
    text(
        "How few bits can keys and values have, and who may share a scale?",
        "KV 可以用多少位？scale 该由谁共享？",
    ),
    run,
    draw,
    seconds=45,
    needs=("model",),
)
