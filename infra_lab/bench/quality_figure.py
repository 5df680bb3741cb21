"""Perplexity against bits a weight as an SVG file: where each method stops being worth its bits.

Both axes are logarithmic, as halving the bits is one step and perplexities explode.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra_lab.figures import COLOURS, INK, drawing

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_MARKS = ("o", "s", "^", "D")  # a colour comes back with another mark
_BITS = (2, 2.5, 3, 4, 5, 6, 8)
_HIGHEST = 1000  # times the model's own perplexity: beyond, lines leave the figure at the top


def quality_figure(rows: Sequence[Mapping[str, Any]], title: str, path: Path) -> None:
    """rows: those of a comparison's report, the model itself first."""
    reference, *variants = rows
    shown = [row for row in variants if math.isfinite(row["perplexity"])]
    lines: dict[str, list[Mapping[str, Any]]] = {}
    for row in sorted(shown, key=lambda row: row["bits_per_weight"]):
        lines.setdefault(_series(row), []).append(row)
    with drawing(path, width=8.6, height=5.2) as (_, axes):
        base = reference["perplexity"]
        axes.axhline(base, color=INK, linestyle="--", linewidth=1, label=f"fp32 ({base:.2f})")
        for index, method in enumerate(dict.fromkeys(map(_series, shown))):
            axes.plot(
                [row["bits_per_weight"] for row in lines[method]],
                [row["perplexity"] for row in lines[method]],
                color=COLOURS[index % len(COLOURS)],
                marker=_MARKS[index // len(COLOURS) % len(_MARKS)],
                markersize=5,
                label=method,
            )
        axes.set_title(title)
        _label_axes(axes)
        worst = max((row["perplexity"] for row in shown), default=base)
        axes.set_ylim(base / 1.1, min(worst * 1.3, base * _HIGHEST))
        axes.legend(loc="upper left", bbox_to_anchor=(1.01, 1.0))


def _series(row: Mapping[str, Any]) -> str:
    """Rows of one method and one width of inputs are one line: "gptq W4A16" is "gptq A16"."""
    name, _, widths = row["name"].partition(" ")
    activations = widths.rpartition("A")[2]
    return name if activations == "16" else f"{name}, A{activations}"


def _label_axes(axes: Axes) -> None:
    """Logarithmic, with plain numbers on both."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xlabel("bits per weight, scales counted")
    axes.set_ylabel("perplexity")
    axes.set_xticks(_BITS, [f"{bits:g}" for bits in _BITS])
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_minor_formatter(NullFormatter())
