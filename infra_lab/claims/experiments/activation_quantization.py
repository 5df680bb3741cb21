"""Why are activations harder to round than weights, and what cures it?

The posts' example counted out (a channel of 100 beside numbers of +-3), products of made-up inputs
with large channels, and the default model with such channels planted: a model this small has few
of its own.
"""

from __future__ import annotations

import math
from pathlib import Path

from infra_lab.claims.experiments import activation_rounding as rounding
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
from infra_lab.quantization.distance import relative_error
from infra_lab.quantization.settings import PER_ROW
from infra_lab.texts import Language, Text, text

_REACH, _LARGEST = 3.0, 100.0
FACTORS = (1.0, 10.0, 30.0, 100.0)
_FACTOR = 30.0  # that the conclusions speak of
_PLANTED = 64.0
_WINDOW, _WINDOWS = 160, 1
_SHARED: tuple[rounding.Shared, ...] = ("tensor", "token", "channel")
_NAMES = {
    "tensor": text("one scale", "单一 scale"),
    "token": text("a token", "逐 token"),
    "channel": text("a channel (no kernel can)", "逐通道（内核做不到）"),
    "smooth_tensor": text("smoothed, one scale", "平滑后，单一 scale"),
    "smooth_token": text("smoothed, a token", "平滑后，逐 token"),
}


@one_thread()
def run(progress: Progress, seed: int) -> Result:
    from infra_lab.quantization.outliers import with_planted_outliers

    steps = 9
    progress(0, steps, text("made-up products", "构造的乘积"))
    left = rounding.levels_left(_REACH, _LARGEST, seed)
    numbers: dict[str, float] = {
        "levels": left.levels,
        "level_bits": math.log2(left.levels),
        "normal_error": left.error,
        "coarser": _LARGEST / _REACH,
    }
    for factor in FACTORS:
        product = rounding.made_up_product(seed, factor)
        smooth = product.smoothed()
        numbers |= {f"{shared}_x{factor:.0f}": product.error(shared) for shared in _SHARED}
        numbers |= {
            f"smooth_{shared}_x{factor:.0f}": smooth.error(shared) for shared in ("tensor", "token")
        }
        numbers["identity"] = relative_error(smooth.value, product.value)
    progress(1, steps, text("the model as it is", "原模型"))
    bench = QualityBench(_WINDOW, _WINDOWS)
    base = bench.base.perplexity
    numbers["perplexity"] = base
    sequences = bench.sequences(2, 128)
    progress(2, steps, text("channels of its own", "模型自身的通道"))
    numbers |= rounding.channel_ratios(bench.checkpoint, sequences[:1])
    planted = with_planted_outliers(bench.checkpoint, _PLANTED, seed)
    runs = (
        ("w8a8", text("W8A8", "W8A8"), "rtn", None, 8, 8),
        ("planted", text("W8A8, planted", "W8A8，植入离群"), "rtn", planted, 8, 8),
        ("smooth", text("W8A8, planted, SmoothQuant", "W8A8，植入离群，SmoothQuant"),
         "smoothquant", planted, 8, 8),
        ("w4a4", text("W4A4", "W4A4"), "rtn", None, 4, 4),
        ("w8a4", text("W8A4", "W8A4"), "rtn", None, 8, 4),
        ("rotated", text("W8A4, rotated", "W8A4，旋转"), "rotation", None, 8, 4),
    )  # fmt: skip
    rows = []
    for done, (name, title, method, source, bits, activation_bits) in enumerate(runs):
        progress(3 + done, steps, title)
        found = bench.quantized(
            method,
            source,
            sequences if method == "smoothquant" else None,
            bits=bits,
            activation_bits=activation_bits,
            symmetric=True,
            group_size=PER_ROW,
        )
        assert found.kl_divergence is not None
        times = found.likelihood.perplexity / base
        numbers |= {f"{name}_times": times, f"{name}_kl": found.kl_divergence}
        rows.append((title, found.likelihood.perplexity, times, found.kl_divergence))
    return Result(
        numbers, (_product_table(numbers), _model_table(tuple(rows), base)), _conclude(numbers)
    )


def _product_table(numbers: dict[str, float]) -> Table:
    return Table(
        text(
            "Error of a W8A8 product, 4 of 512 input channels grown by a factor",
            "W8A8 乘积误差，512 个输入通道中 4 个放大",
        ),
        (
            column("a scale of inputs for", "输入 scale 的范围"),
            *(column(f"x{factor:.0f}", f"×{factor:.0f}", ".2%") for factor in FACTORS),
        ),
        tuple(
            (title, *(numbers[f"{name}_x{factor:.0f}"] for factor in FACTORS))
            for name, title in _NAMES.items()
        ),
    )


def _model_table(rows: tuple[tuple[Text, float, float, float], ...], base: float) -> Table:
    return Table(
        text(
            f"SmolLM2-135M, a scale a row and a token; as it is: {base:.2f}; planted: channels "
            f"{_PLANTED:.0f} times as large, the same function",
            f"SmolLM2-135M，逐行与逐 token scale；原模型困惑度 {base:.2f}；植入：部分通道放大 "
            f"{_PLANTED:.0f} 倍，函数不变",
        ),
        (
            column("model", "模型"),
            column("perplexity", "困惑度", ",.2f"),
            column("times", "倍数", ",.2f"),
            column("KL", "KL", ".3f"),
        ),
        rows,
    )


def _conclude(numbers: dict[str, float]) -> tuple[Conclusion, ...]:
    return (
        Conclusion(
            text(
                "Beside a channel of 100, numbers within 3 have {levels:.0f} of 255 codes left, "
                "{level_bits:.2f} bits, a step {coarser:.0f} times their own, and an error of "
                "{normal_error:.0%}.",
                "有一个通道为 100 时，±3 以内的数只剩 255 个码中的 {levels:.0f} 个，即 "
                "{level_bits:.2f} 位，步长是单独量化时的 {coarser:.0f} 倍，误差 "
                "{normal_error:.0%}。",
            ),
            numbers["levels"] == 9 and 0.15 < numbers["normal_error"] < 0.35,
        ),
        Conclusion(
            text(
                "A scale a token helps little, as every token has the large channels: "
                "{tensor_x30:.1%} becomes {token_x30:.1%}; a scale a channel would give "
                "{channel_x30:.1%}, and cannot leave the sum of a product.",
                "逐 token scale 帮助有限，因为每个 token 都有这些大通道：{tensor_x30:.1%} 变为 "
                "{token_x30:.1%}；逐通道 scale 可达 {channel_x30:.1%}，但无法从内积的求和中提出。",
            ),
            numbers["channel_x30"] < 0.6 * numbers["token_x30"]
            and numbers["token_x30"] < numbers["tensor_x30"],
        ),
        Conclusion(
            text(
                "Smoothing is an identity ({identity:.0e}), and brings {tensor_x30:.1%} to "
                "{smooth_tensor_x30:.1%} with one scale, {token_x30:.1%} to {smooth_token_x30:.1%} "
                "with a scale a token.",
                "平滑是恒等变换（{identity:.0e}），使单一 scale 的 {tensor_x30:.1%} 降到 "
                "{smooth_tensor_x30:.1%}，逐 token 的 {token_x30:.1%} 降到 "
                "{smooth_token_x30:.1%}。",
            ),
            numbers["identity"] < 1e-14
            and numbers["smooth_tensor_x30"] < 0.6 * numbers["tensor_x30"]
            and numbers["smooth_token_x30"] < 0.8 * numbers["token_x30"],
        ),
        Conclusion(
            text(
                "This model's largest channel is {channel_ratio:.0f} times the median one, and "
                "{large_share:.2%} of its channels are above 20: W8A8 costs {w8a8_times:.3f} times "
                "of perplexity.",
                "该模型最大通道是中位通道的 {channel_ratio:.0f} 倍，超过 20 倍的通道占 "
                "{large_share:.2%}："
                "W8A8 使困惑度变为 {w8a8_times:.3f} 倍。",
            ),
            abs(numbers["w8a8_times"] - 1) < 0.1,
        ),
        Conclusion(
            text(
                "With large channels planted, which change nothing of what it computes, W8A8 costs "
                "{planted_times:.2f} times; SmoothQuant brings it back to {smooth_times:.2f}.",
                "植入大通道（不改变模型函数）后 W8A8 变为 {planted_times:.2f} 倍；SmoothQuant 恢复"
                "到 "
                "{smooth_times:.2f} 倍。",
            ),
            numbers["planted_kl"] > 3 * numbers["w8a8_kl"]
            and numbers["smooth_kl"] < 0.5 * numbers["planted_kl"],
        ),
        Conclusion(
            text(
                "3 to 5 % is no property of W4A4: rounding to nearest gives {w4a4_times:,.0f} "
                "times the "
                "perplexity. Of 4-bit activations alone {w8a4_kl:.1f} nats remain, "
                "{rotated_kl:.1f} "
                "after a rotation: the method decides.",
                "损失 3-5 % 并非 W4A4 的固有性质：就近舍入使困惑度变为 {w4a4_times:,.0f} 倍。"
                "只把激活降到 4 位时偏移 {w8a4_kl:.1f} nat，旋转后 {rotated_kl:.1f} nat：取决于方"
                "法。",
            ),
            numbers["w4a4_times"] > 1.5 and numbers["rotated_kl"] < 0.8 * numbers["w8a4_kl"],
        ),
    )


def draw(result: Result, path: Path, language: Language) -> None:
    from infra_lab.figures import direct_labels, drawing

    with drawing(path, width=7.8) as (_, axes):
        for name, title in _NAMES.items():
            axes.loglog(
                FACTORS,
                [100 * result.numbers[f"{name}_x{factor:.0f}"] for factor in FACTORS],
                marker="o",
                label=title[language],
            )
        axes.set_yticks([1, 2, 4, 8], ["1", "2", "4", "8"])
        axes.minorticks_off()
        axes.set_xlabel(
            {"en": "how much larger 4 of 512 channels are", "zh": "512 个通道中 4 个放大的倍数"}[
                language
            ]
        )
        axes.set_ylabel({"en": "error of the product, %", "zh": "乘积误差（%）"}[language])
        direct_labels(axes)


EXPERIMENT = Experiment(
    "activation-quantization",
    text("Activations in few bits", "激活量化"),
    text(
        "Why are activations harder to round than weights, and what cures it?",
        "为什么激活比权重更难量化，怎么解决？",
    ),
    run,
    draw,
    seconds=75,
    needs=("model",),
)
