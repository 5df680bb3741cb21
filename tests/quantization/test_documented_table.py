"""The pages on quantization show what was measured, to the digit, and conclude what follows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT / "docs" / "measured" / "quantization.json"
FIGURE = ROOT / "docs" / "assets" / "measured" / "quantization.svg"

# In this order: what GPTQ and AWQ win back; what GPTQ does in the columns' own order, and in the
# other; SmoothQuant's rise and plain rounding's; GPTQ's seconds of work, by the clock, and MiB; by
# what part gate_proj errs as it is, with the norm folded in, rotated; its weights rotated and as
# they are; its output off the file's grid; the share of six channels in front of the norm's weight
# and behind it; three bits by AWQ, GPTQ and quip; tokens a second in fp32, 8 bits and 4.
PROSE = {
    "en": (
        "GPTQ wins back {0} and AWQ {1}.",
        "in their own order it won back {2} on the chapter held out, and in this order {3}.",
        "W8A8 with SmoothQuant is at {4} of fp32, plain rounding at {5}:",
        "took {6} s of processor time ({7} s by the clock,",
        "and {8} MiB of memory at its peak.",
        "errs by {9} of its output as it is, by {10} once the norm's weight is folded into it, "
        "and by {11} when it is rotated, too;",
        "is *smaller* rotated, {12} against {13}.",
        "by 3% of their spread err by {14} as well.",
        "channels hold {15} of its energy, and behind the norm's weight {16}.",
        "stay together: AWQ {17}, GPTQ {18}, `quip` {19}.",
        "{20} tokens/s in fp32, {21} in eight bits, {22} in four",
    ),
    "zh": (
        "GPTQ 挽回 {0}，AWQ 挽回 {1}。",
        "按原顺序只挽回 {2}，按这个顺序挽回 {3}。",
        "SmoothQuant 的 W8A8 相对 fp32 为 {4}，直接取整为 {5}：",
        "用时 {6} 秒 CPU 时间（墙钟 {7} 秒，",
        "内存峰值 {8} MiB。",
        "输出误差原样为 {9}，把 norm 的权重并入矩阵后为 {10}，再旋转为 {11}；",
        "旋转后反而*更小*，{12} 对 {13}。",
        "误差同样是 {14}。",
        "占了 {15} 的能量，乘上 norm 的权重之后是 {16}。",
        "不相上下：AWQ {17}，GPTQ {18}，`quip` {19}。",
        "fp32 为 {20} token/s，8 比特 {21}，4 比特 {22}",
    ),
}


@pytest.fixture(scope="module")
def measured() -> dict[str, Any]:
    report: dict[str, Any] = json.loads(MEASURED.read_text(encoding="utf-8"))
    return report


def table(report: dict[str, Any]) -> list[str]:
    """The rows of a page's table."""
    base = report["rows"][0]["perplexity"]
    return [
        f"| {row['name']} | {_group(row['settings'])} | {row['bits_per_weight']:.2f} | "
        f"{row['size_bytes'] / 1e6:.1f} | {_number(row['perplexity'])} | "
        f"{_change(row['perplexity'] / base - 1)} | {row['kl_divergence']:.4f} | "
        f"{row['top1_agreement']:.1%} | {_speed(row['tokens_per_s'])} |"
        for row in report["rows"]
    ]


def _group(settings: dict[str, Any]) -> str:
    return str(settings["group_size"] or "–") if settings else "–"


def _speed(tokens_per_s: float | None) -> str:
    return "–" if tokens_per_s is None else f"{tokens_per_s:.0f}"


def _number(perplexity: float) -> str:
    return f"{perplexity:.3f}" if perplexity < 100 else f"{perplexity:,.0f}"


def _change(part: float) -> str:
    return f"{part:+.1%}" if part < 10 else f"×{part + 1:,.0f}"


def held_out_table(report: dict[str, Any], language: str) -> list[str]:
    """What was chosen by: the rise of the perplexity over fp32 on a chapter held out."""
    return [
        f"| {row['name'][language]} | "
        + "".join(f"{one:+.1%} | " if one is not None else "| " for one in row["rise"]).rstrip()
        for row in report["held_out"]["rows"]
    ]


def outliers_table(report: dict[str, Any], language: str) -> list[str]:
    """W8A8 on the model as it is and with planted outliers, in the digits that were noted."""
    joint = ", KL " if language == "en" else "，KL "
    return [
        f"| {row['name'][language]} | "
        + " | ".join(map(joint.join, zip(row["rise"], row["kl_divergence"], strict=True)))
        + " |"
        for row in report["planted_outliers"]["rows"]
    ]


def read_page(language: str) -> str:
    return (ROOT / "docs" / language / "quantization.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_page_has_the_measured_rows_and_no_others(
    measured: dict[str, Any], language: str
) -> None:
    shown = [
        line
        for line in read_page(language).splitlines()
        if line.count("|") == 10 and "---" not in line
    ]
    assert shown[1:] == table(measured)  # the first is the header


def test_no_row_has_the_speed_of_another(measured: dict[str, Any]) -> None:
    """A number that two rows share was measured on one of them at most."""
    speeds = [row["tokens_per_s"] for row in measured["rows"] if row["tokens_per_s"] is not None]
    assert len(speeds) == len(set(speeds)) > 0


def test_the_figure_has_every_method(measured: dict[str, Any]) -> None:
    figure = FIGURE.read_text(encoding="utf-8")
    for row in measured["rows"]:
        assert f">{row['name'].partition(' ')[0]}" in figure


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_page_has_the_small_tables_as_they_were_measured(
    measured: dict[str, Any], language: str
) -> None:
    page = read_page(language)
    for rows in (held_out_table(measured, language), outliers_table(measured, language)):
        # A rule, the rows and an empty line: no row more.
        assert "---|\n" + "\n".join(rows) + "\n\n" in page


@pytest.mark.parametrize("language", ["en", "zh"])
def test_the_prose_has_the_shares_that_follow(measured: dict[str, Any], language: str) -> None:
    page = " ".join(read_page(language).split())
    base, nearest, gptq, awq = (
        perplexity(measured, name) for name in ("fp32", "rtn W4A16", "gptq W4A16", "awq W4A16")
    )
    won = [f"{(nearest - found) / (nearest - base):.0%}" for found in (gptq, awq)]
    rises = {row["name"]["en"]: row["rise"][0] for row in measured["held_out"]["rows"]}
    by_order = [
        f"{1 - rise / rises['rtn']:.0%}"
        for name, rise in rises.items()
        if name.startswith("gptq")  # in the columns' own order, then in that of their inputs
    ]
    w8a8 = [
        f"{perplexity(measured, name) / base - 1:+.2%}" for name in ("smoothquant W8A8", "rtn W8A8")
    ]
    cost = measured["gptq_cost"]
    seconds = [f"{cost[name]:,}" for name in ("cpu_s", "wall_s", "peak_mib")]
    rotation = measured["rotation_alone"]
    outputs, weights = rotation["output_error"], rotation["weight_error"]
    errors = [outputs[name] for name in ("as it is", "norm folded in", "rotated")]
    errors += [weights["rotated"], weights["as it is"], outputs["off its grid"]]
    shares = [f"{one:.1%}" for one in errors]
    shares += [f"{one:.0%}" for one in rotation["energy_of_six_channels"].values()]
    three = [f"{perplexity(measured, f'{name} W3A16'):.1f}" for name in ("awq", "gptq", "quip")]
    speeds = [
        f"{row['tokens_per_s']:.0f}"
        for name in ("fp32", "gptq W8A16", "gptq W4A16")
        for row in measured["rows"]
        if row["name"] == name
    ]
    for text in PROSE[language]:
        said = text.format(*won, *by_order, *w8a8, *seconds, *shares, *three, *speeds)
        assert said in page


def perplexity(report: dict[str, Any], name: str) -> float:
    (found,) = (row["perplexity"] for row in report["rows"] if row["name"] == name)
    return float(found)


@pytest.mark.parametrize("method", ["gptq", "awq"])
def test_half_of_what_rounding_to_nearest_loses_in_four_bits_is_won_back(
    measured: dict[str, Any], method: str
) -> None:
    base, nearest, found = (
        perplexity(measured, name) for name in ("fp32", "rtn W4A16", f"{method} W4A16")
    )
    assert found - base < 0.5 * (nearest - base)


def test_w8a8_with_smoothquant_is_the_model_to_one_percent(measured: dict[str, Any]) -> None:
    change = perplexity(measured, "smoothquant W8A8") / perplexity(measured, "fp32") - 1
    assert abs(change) < 0.01
