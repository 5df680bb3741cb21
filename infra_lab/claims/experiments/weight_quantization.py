"""How many bits do weights need, who may share a scale, and what do better methods gain?

Matrices of the default model rounded to nearest, one layer's outputs by method, and the whole
model's perplexity. The model's file keeps its weights as Q4_1: 4 bits, a scale and a minimum for
32 columns, so that a group has no more than 16 values. The grids here always have zero among their
points, which Q4_1's have not, so that none of them is the file's own.
"""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

from infra_lab.claims.experiments import weight_rounding as rounding
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
from infra_lab.quantization.settings import PER_ROW
from infra_lab.texts import Language, Text, text

_LAYERS = (0, 14, 29)
_LAYER = 6  # whose outputs are compared
_SEQUENCES, _LENGTH = 9, 128
_GROUP = 64
_WINDOW, _WINDOWS = 192, 1
_SALIENT = 0.01
# Bits, and columns with one scale; PER_ROW is one for a row.
_GRIDS: dict[str, tuple[Text, int, int]] = {
    "w8_row": (text("8 bits, a row", "8 位，逐行"), 8, PER_ROW),
    "w4_group": (text("4 bits, groups of 64", "4 位，每组 64"), 4, 64),
    "w4_row": (text("4 bits, a row", "4 位，逐行"), 4, PER_ROW),
    "w3_group": (text("3 bits, groups of 64", "3 位，每组 64"), 3, 64),
    "w2_group": (text("2 bits, groups of 64", "2 位，每组 64"), 2, 64),
}
_METHODS = {
    "rtn": text("round to nearest", "就近舍入"),
    "awq": text("AWQ", "AWQ"),
    "gptq": text("GPTQ", "GPTQ"),
    "ldlq": text("LDLQ", "LDLQ"),
}


@one_thread()
def run(progress: Progress, seed: int) -> Result:
    steps = 3 + len(_GRIDS)
    progress(0, steps, text("the model as it is", "原模型"))
    bench = QualityBench(_WINDOW, _WINDOWS)
    progress(1, steps, text("matrices", "权重矩阵"))
    weights = rounding.matrices(bench.checkpoint, _LAYERS)
    errors = {
        (bits, granularity): rounding.mean_error(weights, bits, granularity)
        for bits in rounding.BITS
        for granularity in rounding.GRANULARITIES
    }
    progress(2, steps, text("one layer by method", "单层：各方法"))
    sequences = bench.sequences(_SEQUENCES, _LENGTH)
    layer = rounding.layer_inputs(bench.checkpoint, _LAYER, sequences)
    by_bits = {bits: rounding.method_errors(layer, bits, _GROUP) for bits in (4, 3, 2)}
    salient = rounding.salient_columns(layer, 3, _GROUP, _SALIENT, seed)
    inside, clipped = rounding.straight_through()
    base = bench.base.perplexity
    numbers: dict[str, float] = {
        "perplexity": base,
        "on_grid": rounding.mean_error(weights, 4, 32, symmetric=False),
        "group_values": rounding.most_values_in_a_group(weights),
        "ste_inside": inside,
        "ste_clipped": clipped,
        **{f"e{bits}_{granularity}": error for (bits, granularity), error in errors.items()},
        **{
            f"{method}_{bits}": error
            for bits, found in by_bits.items()
            for method, error in found.items()
        },
        **{f"columns_{name}": error for name, error in salient.items()},
    }
    rows = []
    for done, (name, (title, bits, group_size)) in enumerate(_GRIDS.items()):
        progress(3 + done, steps, title)
        found = bench.quantized("rtn", bits=bits, group_size=group_size, symmetric=True)
        ratio = found.likelihood.perplexity / base
        assert found.kl_divergence is not None
        numbers |= {f"{name}_times": ratio, f"{name}_kl": found.kl_divergence}
        rows.append((title, found.likelihood.perplexity, ratio, found.kl_divergence))
    tables = (_error_table(errors), _method_table(by_bits), _model_table(tuple(rows), base))
    return Result(numbers, tables, _conclude(numbers))


def _error_table(errors: dict[tuple[int, rounding.Granularity], float]) -> Table:
    names = {
        "tensor": text("a tensor", "整个张量"),
        "channel": text("a row", "逐行"),
    }
    return Table(
        text(
            "Relative error of weights, rounded to nearest, symmetric, layers 0, 14 and 29",
            "权重的相对误差：就近舍入，对称，第 0、14、29 层",
        ),
        (
            column("a scale for", "scale 共享范围"),
            *(column(f"{bits} bits", f"{bits} 位", ".2%") for bits in rounding.BITS),
        ),
        tuple(
            (
                names[one] if isinstance(one, str) else text(f"{one} columns", f"{one} 列"),
                *(errors[bits, one] for bits in rounding.BITS),
            )
            for one in rounding.GRANULARITIES
        ),
    )


def _method_table(by_bits: dict[int, dict[str, float]]) -> Table:
    return Table(
        text(
            f"Error of gate and up's output in layer {_LAYER}, groups of {_GROUP}, on unseen "
            "tokens",
            f"第 {_LAYER} 层 gate/up 输出误差，每组 {_GROUP} 列，未见过的 token",
        ),
        (
            column("method", "方法"),
            *(column(f"{bits} bits", f"{bits} 位", ".2%") for bits in by_bits),
        ),
        tuple(
            (title, *(found[name] for found in by_bits.values()))
            for name, title in _METHODS.items()
        ),
    )


def _model_table(rows: tuple[tuple[Text, float, float, float], ...], base: float) -> Table:
    return Table(
        text(
            f"SmolLM2-135M, weights only, rounded to nearest; as it is: {base:.2f}",
            f"SmolLM2-135M，只量化权重，就近舍入；原模型困惑度 {base:.2f}",
        ),
        (
            column("weights", "权重"),
            column("perplexity", "困惑度", ",.2f"),
            column("times", "倍数", ",.2f"),
            column("KL", "KL", ".3f"),
        ),
        rows,
    )


def _conclude(numbers: dict[str, float]) -> tuple[Conclusion, ...]:
    finer = [f"e{{}}_{one}" for one in rounding.GRANULARITIES]
    return (
        Conclusion(
            text(
                "The fewer share a scale, the smaller the error: at 4 bits {e4_tensor:.1%} for a "
                "tensor, {e4_channel:.1%} for a row, {e4_64:.1%} for 64 columns, {e4_32:.1%} for "
                "32.",
                "共享 scale 的数越少误差越小：4 位时整个张量 {e4_tensor:.1%}，逐行 "
                "{e4_channel:.1%}，64 列 {e4_64:.1%}，32 列 {e4_32:.1%}。",
            ),
            all(
                numbers[coarse.format(bits)] > numbers[fine.format(bits)]
                for bits in (8, 3, 4)
                for coarse, fine in pairwise(finer)
            ),
        ),
        Conclusion(
            text(
                "A bit less doubles the error: {e8_channel:.2%}, {e4_channel:.1%}, "
                "{e3_channel:.1%} "
                "and {e2_channel:.0%} a row at 8, 4, 3 and 2 bits.",
                "少一位误差约翻倍：逐行 8、4、3、2 位为 {e8_channel:.2%}、{e4_channel:.1%}、"
                "{e3_channel:.1%}、{e2_channel:.0%}。",
            ),
            12 < numbers["e4_channel"] / numbers["e8_channel"] < 20
            and 1.7 < numbers["e3_channel"] / numbers["e4_channel"] < 2.6,
        ),
        Conclusion(
            text(
                "The file's weights have {group_values:.0f} values at most in 32 columns (Q4_1), "
                "and "
                "still lose {on_grid:.1%} on a 4-bit grid of 32 columns that has a zero: it is "
                "another grid, though as fine.",
                "该文件的权重每 32 列最多 {group_values:.0f} 个取值（Q4_1），按每 32 列、含零点的 "
                "4 位网格"
                "舍入仍损失 {on_grid:.1%}：网格同样细，但不是同一个。",
            ),
            numbers["group_values"] <= 16 and numbers["on_grid"] > 0.02,
        ),
        Conclusion(
            text(
                "Making up for errors in later columns pays: GPTQ's output error is {gptq_4:.1%} "
                "at 4 "
                "bits and {gptq_3:.1%} at 3, rounding's {rtn_4:.1%} and {rtn_3:.1%}; LDLQ's is "
                "GPTQ's.",
                "用后面的列补偿误差有效：GPTQ 输出误差 4 位 {gptq_4:.1%}、3 位 {gptq_3:.1%}，"
                "就近舍入为 {rtn_4:.1%} 与 {rtn_3:.1%}；LDLQ 与 GPTQ 相当。",
            ),
            all(
                numbers[f"gptq_{bits}"] < numbers[f"rtn_{bits}"]
                and abs(numbers[f"ldlq_{bits}"] / numbers[f"gptq_{bits}"] - 1) < 0.1
                for bits in (4, 3)
            ),
        ),
        Conclusion(
            text(
                "AWQ keeps nothing whole and still gains: {awq_3:.1%} at 3 bits. The 1 % of "
                "columns "
                "with the largest inputs kept whole bring {columns_none:.1%} down to "
                "{columns_salient:.1%}, as many at random to {columns_random:.1%}.",
                "AWQ 不保留任何高精度列也有收益：3 位时 {awq_3:.1%}。保留输入最大的 1 % 列使 "
                "{columns_none:.1%} 降到 {columns_salient:.1%}，随机保留同样多列为 "
                "{columns_random:.1%}。",
            ),
            numbers["awq_3"] < numbers["rtn_3"]
            and numbers["columns_salient"] < numbers["columns_random"],
        ),
        Conclusion(
            text(
                "Groups are no condition of 4 bits, they make them cheaper: perplexity is "
                "{w4_row_times:.2f} times as large with a scale a row, {w4_group_times:.2f} with "
                "groups of 64; 8 bits a row: {w8_row_times:.2f}.",
                "4 位并不必须分组，分组只是损失更小：困惑度在逐行 scale 时为 {w4_row_times:.2f} "
                "倍，"
                "每组 64 列时为 {w4_group_times:.2f} 倍；8 位逐行为 {w8_row_times:.2f} 倍。",
            ),
            1 < numbers["w4_group_times"] < numbers["w4_row_times"] < 10
            and abs(numbers["w8_row_times"] - 1) < 0.03,
        ),
        Conclusion(
            text(
                "1 to 3 % is no property of 4 bits: on 135M parameters rounding alone costs "
                "{w4_group_times:.2f} times, and at 3 and 2 bits it ruins the model, "
                "{w3_group_times:.1f} and {w2_group_times:,.0f} times.",
                "损失 1-3 % 并非 4 位的固有性质：在 135M 参数的模型上单纯舍入为 "
                "{w4_group_times:.2f} 倍，3 位与 2 位则毁掉模型，分别为 {w3_group_times:.1f} 倍与 "
                "{w2_group_times:,.0f} 倍。",
            ),
            1.03 < numbers["w4_group_times"] < numbers["w3_group_times"]
            and numbers["w2_group_times"] > 10 * numbers["w3_group_times"],
        ),
        Conclusion(
            text(
                "A straight-through estimator passes {ste_inside:.0f} of the gradient inside the "
                "range "
                "and {ste_clipped:.0f} of what was clipped.",
                "直通估计器在范围内放行梯度 {ste_inside:.0f}，对被截断的数为 {ste_clipped:.0f}。",
            ),
            numbers["ste_inside"] == 1 and numbers["ste_clipped"] == 0,
        ),
    )


def draw(result: Result, path: Path, language: Language) -> None:
    from infra_lab.figures import direct_labels, drawing

    labels = {
        "tensor": text("tensor", "张量"),
        "channel": text("row", "行"),
    }
    places = range(len(rounding.GRANULARITIES))
    with drawing(path, width=7.2) as (_, axes):
        for bits in rounding.BITS:
            axes.semilogy(
                places,
                [result.numbers[f"e{bits}_{one}"] for one in rounding.GRANULARITIES],
                marker="o",
                label={"en": f"{bits} bits", "zh": f"{bits} 位"}[language],
            )
        axes.set_xticks(
            places,
            [
                labels[one][language] if isinstance(one, str) else str(one)
                for one in rounding.GRANULARITIES
            ],
        )
        axes.set_xlabel({"en": "who shares a scale", "zh": "谁共享一个 scale"}[language])
        axes.set_ylabel({"en": "relative error", "zh": "相对误差"}[language])
        direct_labels(axes)


EXPERIMENT = Experiment(
    "weight-quantization",
    text("Weights in few bits", "权重量化"),
    text(
        "How many bits do weights need, and who may share a scale?",
        "权重需要多少位？scale 该由谁共享？",
    ),
    run,
    draw,
    seconds=60,
    needs=("model",),
)
