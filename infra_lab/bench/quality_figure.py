"""Perplexity against bits a weight as an SVG file: where each method stops being worth its bits.

Written by hand, since a few hundred marks on two axes need no plotting library. Both axes are
logarithmic, as halving the bits is one step and perplexities explode.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

_WIDTH, _HEIGHT = 860, 520
_LEFT, _RIGHT, _TOP, _BOTTOM = 70, 190, 50, 60
# Okabe and Ito's palette, which colour-blind readers can tell apart; marks differ too.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000", "#7f7f7f")
_FONT = 'font-family="system-ui, sans-serif" font-size="13"'


def quality_figure(rows: Sequence[Mapping[str, Any]], title: str) -> str:
    """rows: those of a comparison's report, the model itself first."""
    reference, *variants = rows
    shown = [row for row in variants if math.isfinite(row["perplexity"])]
    bits = [row["bits_per_weight"] for row in shown]
    perplexities = [row["perplexity"] for row in shown] + [reference["perplexity"]]
    x = _Axis(min(bits, default=2) / 1.1, max(bits, default=8) * 1.1, _LEFT, _WIDTH - _RIGHT)
    y = _Axis(min(perplexities) / 1.05, max(perplexities) * 1.15, _HEIGHT - _BOTTOM, _TOP)
    methods = list(dict.fromkeys(_series(row) for row in shown))
    parts = [*_frame(title, x, y), *_reference_line(reference["perplexity"], y)]
    for index, method in enumerate(methods):
        own = sorted(
            (row for row in shown if _series(row) == method), key=lambda row: row["bits_per_weight"]
        )
        points = [(x.at(row["bits_per_weight"]), y.at(row["perplexity"])) for row in own]
        parts += _line(method, points, index)
    parts.append("</svg>")
    return "\n".join(parts) + "\n"


class _Axis:
    """A logarithmic scale from `low` at pixel `start` to `high` at pixel `end`."""

    def __init__(self, low: float, high: float, start: float, end: float) -> None:
        self.low, self.high, self.start, self.end = low, high, start, end

    def at(self, value: float) -> float:
        share = math.log(value / self.low) / math.log(self.high / self.low)
        return round(self.start + share * (self.end - self.start), 1)

    def ticks(self, steps: Sequence[float]) -> list[float]:
        decades = range(math.floor(math.log10(self.low)), math.ceil(math.log10(self.high)) + 1)
        every = (step * 10.0**decade for decade in decades for step in steps)
        return [value for value in every if self.low <= value <= self.high]


def _series(row: Mapping[str, Any]) -> str:
    """Rows of one method and one width of inputs are one line: "gptq W4A16" is "gptq A16"."""
    name, _, widths = row["name"].partition(" ")
    activations = widths.rpartition("A")[2]
    return name if activations == "16" else f"{name}, A{activations}"


def _frame(title: str, x: _Axis, y: _Axis) -> list[str]:
    bottom = _HEIGHT - _BOTTOM
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}" {_FONT}>',
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="white"/>',
        f'<text x="{_LEFT}" y="28" font-size="16">{escape(title)}</text>',
        f'<text x="{(x.start + x.end) / 2}" y="{_HEIGHT - 16}" text-anchor="middle">'
        "bits per weight, scales counted</text>",
        f'<text transform="rotate(-90 18 {(y.start + y.end) / 2})" x="18" '
        f'y="{(y.start + y.end) / 2}" text-anchor="middle">perplexity</text>',
    ]
    for value in x.ticks((1, 2, 3, 4, 5, 6, 8)):
        at = x.at(value)
        parts.append(f'<line x1="{at}" y1="{_TOP}" x2="{at}" y2="{bottom}" stroke="#dddddd"/>')
        parts.append(f'<text x="{at}" y="{bottom + 20}" text-anchor="middle">{value:g}</text>')
    for value in y.ticks((1, 2, 5)):
        at = y.at(value)
        right = _WIDTH - _RIGHT
        parts.append(f'<line x1="{_LEFT}" y1="{at}" x2="{right}" y2="{at}" stroke="#dddddd"/>')
        parts.append(f'<text x="{_LEFT - 8}" y="{at + 4}" text-anchor="end">{value:g}</text>')
    return parts


def _reference_line(perplexity: float, y: _Axis) -> list[str]:
    at, right = y.at(perplexity), _WIDTH - _RIGHT
    return [
        f'<line x1="{_LEFT}" y1="{at}" x2="{right}" y2="{at}" stroke="#000000" '
        'stroke-dasharray="5 4"/>',
        f'<text x="{right + 8}" y="{at + 4}">fp32 ({perplexity:.2f})</text>',
    ]


def _line(method: str, points: Sequence[tuple[float, float]], index: int) -> list[str]:
    colour = _COLOURS[index % len(_COLOURS)]
    path = " ".join(f"{x},{y}" for x, y in points)
    parts = [f'<polyline points="{path}" fill="none" stroke="{colour}" stroke-width="1.5"/>']
    parts += [_mark(x, y, colour, index) for x, y in points]
    x, y = _WIDTH - _RIGHT + 20, _TOP + 20 * index
    parts.append(_mark(x, y, colour, index))
    parts.append(f'<text x="{x + 12}" y="{y + 4}">{escape(method)}</text>')
    return parts


def _mark(x: float, y: float, colour: str, index: int) -> str:
    kind = index // len(_COLOURS) % 2
    if kind == 0:
        return f'<circle cx="{x}" cy="{y}" r="4" fill="{colour}"/>'
    return f'<rect x="{x - 4}" y="{y - 4}" width="8" height="8" fill="{colour}"/>'
