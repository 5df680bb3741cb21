"""How many elements does attention move between slow and fast memory, and by which law?

Real passes over a memory that counts (counted_memory.py), each checked against float64. The law is
fitted to the counts: traffic against the size of the fast memory, the number of tokens and the
width of a head.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from infra_lab.calculators.flash_attention import (
    first_version_io_elements,
    standard_io_elements,
    tiled_io_elements,
)
from infra_lab.calculators.units import KIB, MB
from infra_lab.claims.experiments.counted_memory import (
    CountedMemory,
    attention_memory,
    query_rows_that_fit,
    standard_attention,
    tiled_by_keys,
    tiled_by_queries,
)
from infra_lab.claims.experiments.experiment import (
    Conclusion,
    Experiment,
    Progress,
    Result,
    Table,
    column,
)
from infra_lab.claims.experiments.fits import fitted_exponent
from infra_lab.claims.experiments.threads import one_thread
from infra_lab.quantization.distance import relative_error
from infra_lab.texts import Language, text

if TYPE_CHECKING:
    import torch

_FP16 = 2
_BLOCK = 128
_LARGE_N, _LARGE_D = 4096, 128  # the posts' example, one head
_N, _D, _M = 2048, 64, 32 * KIB  # the middle of the sweeps; M in elements, 64 KiB of FP16
_SRAM = (8 * KIB, 16 * KIB, 32 * KIB, 64 * KIB, 128 * KIB)
_TOKENS = (512, 1024, 2048, 4096)
_HEAD_DIMS = (32, 64, 128, 256)
_SMALL_M = 16 * KIB  # so that even the shortest sequence has several blocks
_KEY_ROWS = 8
_TIGHT_N, _TIGHT_D, _TIGHT_M = 1024, 256, 8 * KIB  # M < d^2


@one_thread()
def run(progress: Progress, seed: int) -> Result:
    import torch

    generator = torch.Generator().manual_seed(seed)
    steps = 4 + len(_SRAM) + len(_TOKENS) + len(_HEAD_DIMS) + 2
    done, worst = 0, 0.0

    def told(en: str, zh: str) -> None:
        nonlocal done
        progress(done, steps, text(en, zh))
        done += 1

    def inputs(num_tokens: int, head_dim: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        queries, keys, values = torch.randn(3, num_tokens, head_dim, generator=generator)
        return queries, keys, values

    def checked(memory: CountedMemory, causal: bool = False) -> CountedMemory:
        nonlocal worst
        worst = max(worst, _error(memory, causal))
        return memory

    def tiled(num_tokens: int, head_dim: int, sram: int) -> CountedMemory:
        memory = attention_memory(*inputs(num_tokens, head_dim), sram)
        rows = min(num_tokens, query_rows_that_fit(sram, head_dim, _KEY_ROWS))
        tiled_by_queries(memory, rows, _KEY_ROWS)
        return checked(memory)

    large = inputs(_LARGE_N, _LARGE_D)
    told("standard, 4K tokens", "标准实现，4K token")
    standard = attention_memory(*large)
    standard_attention(standard)
    told("blocks of queries outside", "外层遍历 Q 块")
    second = attention_memory(*large)
    tiled_by_queries(second, _BLOCK, _BLOCK)
    told("blocks of keys outside", "外层遍历 K/V 块")
    first = attention_memory(*large)
    tiled_by_keys(first, _BLOCK, _BLOCK)
    told("causal", "因果")
    causal = attention_memory(*large)
    tiled_by_queries(causal, _BLOCK, _BLOCK, causal=True)
    for memory in (standard, second, first):
        checked(memory)
    checked(causal, causal=True)
    by_sram, by_tokens, by_dim = [], [], []
    for sram in _SRAM:
        told(f"fast memory of {sram:,}", f"片上存储 {sram:,} 个元素")
        by_sram.append(tiled(_N, _D, sram).moved)
    for num_tokens in _TOKENS:
        told(f"{num_tokens} tokens", f"{num_tokens} 个 token")
        by_tokens.append(tiled(num_tokens, _D, _SMALL_M).moved)
    for head_dim in _HEAD_DIMS:
        told(f"heads of {head_dim}", f"head_dim {head_dim}")
        by_dim.append(tiled(_N, head_dim, _M).moved)
    told("fast memory below d^2", "片上存储小于 d²")
    tight = tiled(_TIGHT_N, _TIGHT_D, _TIGHT_M)
    tight_standard = attention_memory(*inputs(_TIGHT_N, _TIGHT_D))
    standard_attention(tight_standard)
    told("fits", "拟合")
    numbers = {
        "worst_error": worst,
        "standard_mb": _FP16 * standard.moved / MB,
        "second_mb": _FP16 * second.moved / MB,
        "first_mb": _FP16 * first.moved / MB,
        "causal_mb": _FP16 * causal.moved / MB,
        "standard_gain": standard.moved / second.moved,
        "causal_share": causal.moved / second.moved,
        "score_share": 4 * _LARGE_N**2 / standard.moved,
        "formula_apart": float(
            abs(standard.moved - standard_io_elements(_LARGE_N, _LARGE_D))
            + abs(second.moved - tiled_io_elements(_LARGE_N, _LARGE_D, _BLOCK))
            + abs(first.moved - first_version_io_elements(_LARGE_N, _LARGE_D, _BLOCK))
        ),
        "sram_exponent": fitted_exponent(_SRAM, [moved - 2 * _N * _D for moved in by_sram]),
        "token_exponent": fitted_exponent(
            _TOKENS,
            [moved - 2 * tokens * _D for moved, tokens in zip(by_tokens, _TOKENS, strict=True)],
        ),
        "dim_exponent": fitted_exponent(
            _HEAD_DIMS,
            [moved - 2 * _N * dim for moved, dim in zip(by_dim, _HEAD_DIMS, strict=True)],
        ),
        "without_d2": by_sram[_SRAM.index(_M)] / (_N**2 / _M),
        "d2": float(_D**2),
        "tight_loss": tight.moved / tight_standard.moved,
        "tight_ratio": _TIGHT_M / _TIGHT_D**2,
    }
    tables = (
        _orders_table(standard, second, first, causal),
        _sram_table(by_sram),
    )
    series = {"sram": _SRAM, "moved": by_sram}
    return Result(numbers, tables, _conclude(numbers), series)


def _error(memory: CountedMemory, causal: bool) -> float:
    """Relative error of the output against float64."""
    import torch.nn.functional as F

    queries, keys, values = (memory.matrices[name].double()[None] for name in "QKV")
    wanted = F.scaled_dot_product_attention(queries, keys, values, is_causal=causal)[0]
    return relative_error(memory.matrices["O"], wanted)


def _orders_table(
    standard: CountedMemory, second: CountedMemory, first: CountedMemory, causal: CountedMemory
) -> Table:
    names = (
        (text("standard: S and P stored", "标准实现：写出 S 和 P"), standard),
        (text("blocks of K and V outside (FA-1)", "外层 K/V 块（FA-1）"), first),
        (text("blocks of Q outside (FA-2)", "外层 Q 块（FA-2）"), second),
        (text("the same, causal", "同上，因果"), causal),
    )
    return Table(
        text(
            f"One head, N = {_LARGE_N}, d = {_LARGE_D}, blocks of {_BLOCK}, FP16",
            f"单头，N = {_LARGE_N}，d = {_LARGE_D}，块 {_BLOCK}，FP16",
        ),
        (
            column("pass", "实现"),
            column("read, MB", "读，MB", ".1f"),
            column("written, MB", "写，MB", ".1f"),
            column("moved, MB", "合计，MB", ".1f"),
        ),
        tuple(
            (name, _FP16 * one.reads / MB, _FP16 * one.writes / MB, _FP16 * one.moved / MB)
            for name, one in names
        ),
    )


def _sram_table(by_sram: Sequence[int]) -> Table:
    return Table(
        text(
            f"By fast memory, N = {_N}, d = {_D} (elements)",
            f"随片上存储变化，N = {_N}，d = {_D}（元素数）",
        ),
        (
            column("M", "M", ",.0f"),
            column("block of Q", "Q 块行数", ".0f"),
            column("moved", "搬运量", ",.0f"),
            column("N^2 d^2 / M", "N²d²/M", ",.0f"),
            column("N^2 / M", "N²/M", ",.0f"),
            column("standard", "标准实现", ",.0f"),
        ),
        tuple(
            (
                float(sram),
                float(query_rows_that_fit(sram, _D, _KEY_ROWS)),
                float(moved),
                _N**2 * _D**2 / sram,
                _N**2 / sram,
                float(standard_io_elements(_N, _D)),
            )
            for sram, moved in zip(_SRAM, by_sram, strict=True)
        ),
    )


def _conclude(numbers: dict[str, float]) -> tuple[Conclusion, ...]:
    return (
        Conclusion(
            text(
                "Every pass gives attention's output: at most {worst_error:.0e} from float64.",
                "每种实现都得到正确输出：与 float64 相差不超过 {worst_error:.0e}。",
            ),
            numbers["worst_error"] < 1e-5,
        ),
        Conclusion(
            text(
                "At 4K and d = 128 a head moves {standard_mb:.1f} MB the standard way, "
                "{first_mb:.1f} in FlashAttention-1's order, {second_mb:.1f} in "
                "FlashAttention-2's, "
                "as the formulae say to the element.",
                "4K、d = 128 时单头搬运：标准 {standard_mb:.1f} MB，FA-1 {first_mb:.1f} MB，"
                "FA-2 {second_mb:.1f} MB，与公式逐个元素相符。",
            ),
            numbers["formula_apart"] == 0,
        ),
        Conclusion(
            text(
                "Of the standard traffic {score_share:.0%} is S and P: it is O(N^2).",
                "标准实现的搬运量中 {score_share:.0%} 是 S 和 P：即 O(N²)。",
            ),
            numbers["score_share"] > 0.9,
        ),
        Conclusion(
            text(
                "Beyond the 2 N d of Q and O, traffic goes with M^{sram_exponent:.2f}, "
                "N^{token_exponent:.2f} and d^{dim_exponent:.2f}: N^2 d^2 / M, and still quadratic "
                "in N.",
                "除 Q、O 的 2Nd 外，搬运量随 M^{sram_exponent:.2f}、N^{token_exponent:.2f}、"
                "d^{dim_exponent:.2f} "
                "变化：即 N²d²/M，对 N 仍是平方。",
            ),
            abs(numbers["sram_exponent"] + 1) < 0.15
            and abs(numbers["token_exponent"] - 2) < 0.1
            and abs(numbers["dim_exponent"] - 2) < 0.15,
        ),
        Conclusion(
            text(
                "The published N^2 / M is {without_d2:,.0f} times too small at d = 64, about "
                "d^2 = {d2:,.0f} times a small constant.",
                "帖中的 N²/M 在 d = 64 时小了 {without_d2:,.0f} 倍，约为 d² = {d2:,.0f} "
                "乘一个小常数。",
            ),
            numbers["d2"] < numbers["without_d2"] < 8 * numbers["d2"],
        ),
        Conclusion(
            text(
                "Causal masking leaves {causal_share:.0%}: blocks beyond the diagonal are not "
                "read.",
                "因果掩码剩下 {causal_share:.0%}：对角线以外的块不读。",
            ),
            0.5 < numbers["causal_share"] < 0.55,
        ),
        Conclusion(
            text(
                "Tiling is no gain by itself: with M = {tight_ratio:.3f} d^2 it moves "
                "{tight_loss:.1f} times what the standard way does.",
                "分块本身不保证收益：M = {tight_ratio:.3f} d² 时搬运量是标准实现的 "
                "{tight_loss:.1f} 倍。",
            ),
            numbers["tight_loss"] > 1.5,
        ),
    )


def draw(result: Result, path: Path, language: Language) -> None:
    from infra_lab.figures import direct_labels, drawing

    sram = list(result.series["sram"])
    lines = (
        (text("standard", "标准实现"), [standard_io_elements(_N, _D)] * len(sram)),
        (text("counted", "计数"), list(result.series["moved"])),
        (text("N²d²/M", "N²d²/M"), [_N**2 * _D**2 / one for one in sram]),
        (text("published N²/M", "帖中 N²/M"), [_N**2 / one for one in sram]),
    )
    with drawing(path, width=7.6) as (_, axes):
        for label, values in lines:
            axes.loglog(sram, values, marker="o", markersize=3, label=label[language])
        axes.set_xscale("log", base=2)
        axes.set_xlabel({"en": "fast memory M, elements", "zh": "片上存储 M（元素）"}[language])
        axes.set_ylabel({"en": "elements moved", "zh": "搬运的元素数"}[language])
        direct_labels(axes)


EXPERIMENT = Experiment(
    "flash-attention-io",
    text("FlashAttention's traffic, counted", "FlashAttention 的访存，逐个计数"),
    text(
        "How many elements does attention move, and by which law?",
        "注意力搬运多少元素，服从什么规律？",
    ),
    run,
    draw,
    seconds=8,
)
