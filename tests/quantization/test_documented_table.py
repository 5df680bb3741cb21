"""The pages on quantization show what was measured, to the digit, and conclude what follows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT / "docs" / "measured" / "quantization.json"
FIGURE = ROOT / "docs" / "assets" / "measured" / "quantization.svg"


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


@pytest.mark.parametrize("language", ["en", "zh"])
def test_a_page_has_the_measured_rows_and_no_others(
    measured: dict[str, Any], language: str
) -> None:
    page = (ROOT / "docs" / language / "quantization.md").read_text(encoding="utf-8")
    shown = [line for line in page.splitlines() if line.count("|") == 10 and "---" not in line]
    assert shown[1:] == table(measured)  # the first is the header


def test_no_row_has_the_speed_of_another(measured: dict[str, Any]) -> None:
    """A number that two rows share was measured on one of them at most."""
    speeds = [row["tokens_per_s"] for row in measured["rows"] if row["tokens_per_s"] is not None]
    assert len(speeds) == len(set(speeds)) > 0


def test_the_figure_has_every_method(measured: dict[str, Any]) -> None:
    figure = FIGURE.read_text(encoding="utf-8")
    for row in measured["rows"]:
        assert f">{row['name'].partition(' ')[0]}" in figure


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
