"""How many kernels does a decode step launch, and what does fusing them save?

One Llama layer counted four ways (launches.py): transformers' own code with eager attention and
with torch's fused one, the engine in plain torch, and the engine with its Triton kernels. A
70B has 80 such layers; the posts' 240 and 80 are three and one a layer.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from infra_lab.calculators.model_table import model
from infra_lab.claims.experiments import launches
from infra_lab.claims.experiments.experiment import (
    Conclusion,
    Experiment,
    Progress,
    Result,
    Table,
    column,
)
from infra_lab.claims.experiments.launches import Launches
from infra_lab.texts import Language, text

_PUBLISHED_UNFUSED, _PUBLISHED_FUSED = 240, 80
_PUBLISHED_LAUNCH_US = 5
_NAMES = {
    "eager": text("transformers, eager attention", "transformers，eager 注意力"),
    "sdpa": text("transformers, fused attention", "transformers，融合注意力"),
    "torch": text("infra-lab, plain torch", "infra-lab，纯 torch"),
    "fused": text("infra-lab, Triton kernels", "infra-lab，Triton 内核"),
}


def run(progress: Progress, seed: int) -> Result:
    """`seed` chooses nothing: only shapes count."""
    found: dict[str, Launches] = {}
    steps = len(_NAMES)
    for done, (name, title) in enumerate(_NAMES.items()):
        progress(done, steps, title)
        counted = _counted(name)
        if counted is not None:
            found[name] = counted
    layers = model("llama-2-70b").num_layers
    numbers: dict[str, float] = {
        "layers": layers,
        "published_unfused": _PUBLISHED_UNFUSED / layers,
        "published_fused": _PUBLISHED_FUSED / layers,
        **{f"{name}_layer": one.total for name, one in found.items()},
        **{f"{name}_step": one.total * layers for name, one in found.items()},
        **{f"{name}_products": one.torch["mm"] for name, one in found.items()},
    }
    for name in found:
        numbers[f"{name}_ms"] = numbers[f"{name}_step"] * _PUBLISHED_LAUNCH_US / 1000
    tables = (_total_table(found, numbers), _operation_table(found))
    return Result(numbers, tables, _conclude(numbers))


def _counted(name: str) -> Launches | None:
    """A layer's launches; None where they cannot be counted here."""
    if name == "torch":
        return launches.one_layer(launches.our_torch_step)
    if name != "fused":
        return launches.one_layer(lambda count: launches.reference_step(count, name))
    two, one = launches.our_fused_step(2), launches.our_fused_step(1)
    return None if two is None or one is None else two.less(one)


def _total_table(found: Mapping[str, Launches], numbers: Mapping[str, float]) -> Table:
    layers = numbers["layers"]
    published = (
        (text("published, unfused", "帖中，未融合"), _PUBLISHED_UNFUSED),
        (text("published, fused", "帖中，融合后"), _PUBLISHED_FUSED),
    )
    return Table(
        text(
            f"Launches of a decode step, {layers:.0f} layers; time if each took "
            f"{_PUBLISHED_LAUNCH_US} us and none were hidden",
            f"一个 decode 步的内核启动数，{layers:.0f} 层；时间按每次 {_PUBLISHED_LAUNCH_US} µs、"
            "完全不被掩盖计算",
        ),
        (
            column("implementation", "实现"),
            column("a layer", "每层", ".0f"),
            column("a step", "每步", ",.0f"),
            column("ms", "毫秒", ".1f"),
        ),
        (
            *(
                (
                    _NAMES[name],
                    float(one.total),
                    numbers[f"{name}_step"],
                    numbers[f"{name}_ms"],
                )
                for name, one in found.items()
            ),
            *(
                (title, count / layers, float(count), count * _PUBLISHED_LAUNCH_US / 1000)
                for title, count in published
            ),
        ),
    )


def _operation_table(found: Mapping[str, Launches]) -> Table:
    names = sorted({name for one in found.values() for name in (*one.torch, *one.triton)})
    return Table(
        text("What they are, in one layer", "一层里分别是什么"),
        (column("operation", "操作"), *(column(name, name, ".0f") for name in found)),
        tuple(
            (name, *(float(one.torch[name] + one.triton[name]) for one in found.values()))
            for name in names
        ),
    )


def _conclude(numbers: dict[str, float]) -> tuple[Conclusion, ...]:
    found = [
        Conclusion(
            text(
                "Unfused a Llama layer launches {eager_layer:.0f} kernels ({sdpa_layer:.0f} with "
                "fused attention), {eager_step:,.0f} a step of {layers:.0f} layers: not the "
                "{published_unfused:.0f} a layer that 240 would be.",
                "未融合时一个 Llama 层启动 {eager_layer:.0f} 个内核（注意力融合后 "
                "{sdpa_layer:.0f} 个），"
                "{layers:.0f} 层每步 {eager_step:,.0f} 个：并非 240 所对应的每层 "
                "{published_unfused:.0f} 个。",
            ),
            numbers["sdpa_layer"] > 8 * numbers["published_unfused"]
            and numbers["sdpa_layer"] < numbers["eager_layer"],
        ),
        Conclusion(
            text(
                "Products are {eager_products:.0f} of them, {torch_products:.0f} once q, k, v and "
                "gate, up are one each: the rest is small.",
                "其中矩阵乘 {eager_products:.0f} 个，把 q、k、v 与 gate、up 合并后为 "
                "{torch_products:.0f} 个：其余都是小内核。",
            ),
            numbers["eager_products"] == 7 and numbers["torch_products"] == 4,
        ),
    ]
    if "fused_layer" in numbers:
        found.append(
            Conclusion(
                text(
                    "Fused it is {fused_layer:.0f}: norm, qkv, rotation with cache write, "
                    "attention, "
                    "output, norm, gate and up, SwiGLU, down. A step still launches "
                    "{fused_step:,.0f}, {fused_ms:.1f} ms if none were hidden: that is left to "
                    "CUDA "
                    "graphs.",
                    "融合后为 {fused_layer:.0f} 个：norm、qkv、旋转加写缓存、注意力、输出投影、"
                    "norm、"
                    "gate/up、SwiGLU、down。每步仍有 {fused_step:,.0f} 个，完全不掩盖时 "
                    "{fused_ms:.1f} ms：这要靠 CUDA graph。",
                ),
                numbers["published_fused"] < numbers["fused_layer"] <= 10
                and numbers["fused_products"] == 4,
            )
        )
    return tuple(found)


def draw(result: Result, path: Path, language: Language) -> None:
    from infra_lab.figures import COLOURS, drawing

    names = [name for name in _NAMES if f"{name}_layer" in result.numbers]
    labels = [_NAMES[name][language] for name in names]
    products = [result.numbers[f"{name}_products"] for name in names]
    others = [
        result.numbers[f"{name}_layer"] - count for name, count in zip(names, products, strict=True)
    ]
    with drawing(path, width=7.6, height=2.8) as (_, axes):
        axes.barh(labels, products, height=0.6, label={"en": "products", "zh": "矩阵乘"}[language])
        axes.barh(
            labels, others, left=products, height=0.6, color=COLOURS[4],
            label={"en": "other kernels", "zh": "其他内核"}[language],
        )  # fmt: skip
        axes.invert_yaxis()
        axes.grid(axis="y", visible=False)
        axes.set_xlabel(
            {"en": "kernels launched by one layer, decoding", "zh": "decode 时一层启动的内核数"}[
                language
            ]
        )
        axes.legend(loc="lower right")


EXPERIMENT = Experiment(
    "layer-kernels",
    text("Kernels of a layer", "一层启动多少内核"),
    text(
        "How many kernels does a decode step launch, and what does fusing them save?",
        "一个 decode 步启动多少内核？融合能省多少？",
    ),
    run,
    draw,
    seconds=12,
)
