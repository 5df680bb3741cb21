"""Figures as SVG files that look the same wherever they are made.

Text stays text: a browser sets it in its own font, Chinese included, and a page may colour INK
to suit its theme. The same figure gives the same bytes, so that a kept one changes only when its
numbers do.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra_lab.errors import UsageError
from infra_lab.texts import Say, english

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure

INK = "#3b4252"
GRID = "#9aa3b2"
# Okabe and Ito's palette, which colour-blind readers can tell apart.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7f7f7f")

_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "infra-lab",  # ids inside the file do not differ from run to run
    "font.family": ["system-ui", "sans-serif"],
    "font.size": 11,
    "text.color": INK,
    "axes.labelcolor": INK,
    "axes.edgecolor": INK,
    "axes.titlesize": 12,
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": GRID,
    "grid.alpha": 0.35,
    "grid.linewidth": 0.7,
    "xtick.color": INK,
    "ytick.color": INK,
    "legend.frameon": False,
    "savefig.transparent": True,
    "figure.constrained_layout.use": True,
}


def checked_figure_path(
    path: Path | None, option: str = "--figure", say: Say = english
) -> Path | None:
    """The path, its folder made. Raises UsageError before any work is done for nothing."""
    if path is None:
        return None
    if path.suffix.lower() != ".svg":
        raise UsageError(
            say(
                f"{option} writes SVG: {path} must end in .svg",
                f"{option} 输出 SVG：{path} 必须以 .svg 结尾",
            )
        )
    if path.is_dir():
        raise UsageError(
            say(
                f"{option} {path} is a folder: name a file in it",
                f"{option} {path} 是文件夹：请给出其中的文件名",
            )
        )
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UsageError(
            say(
                f"{option}: cannot make the folder {path.parent}: {error.strerror}",
                f"{option}：无法创建文件夹 {path.parent}：{error.strerror}",
            )
        ) from error
    if not os.access(path.parent, os.W_OK):
        raise UsageError(
            say(
                f"{option}: the folder {path.parent} cannot be written to",
                f"{option}：文件夹 {path.parent} 不可写",
            )
        )
    return path


@contextmanager
def drawing(
    path: Path, *, rows: int = 1, columns: int = 1, width: float = 7.2, height: float = 4.0
) -> Iterator[tuple[Figure, Any]]:
    """Gives a figure and its axes (one, or an array when rows * columns > 1); writes it at the
    end, whole or not at all. width, height: inches, 72 points each."""
    import matplotlib as mpl
    from matplotlib.backends.backend_svg import FigureCanvasSVG
    from matplotlib.figure import Figure

    with mpl.rc_context(), warnings.catch_warnings():
        mpl.rcParams.update(mpl.rcParamsDefault | _STYLE | {"axes.prop_cycle": _cycle()})
        # Only widths are guessed from the fonts at hand; the reader's browser has its own.
        warnings.filterwarnings("ignore", message=".*(missing from|not found).*")
        figure = Figure(figsize=(width, height))
        FigureCanvasSVG(figure)
        yield figure, figure.subplots(rows, columns)
        _write(figure, path)


def direct_labels(axes: Axes, *, padding: float = 4) -> None:
    """Names each line at its right end, in its colour: easier to read than a legend."""
    for line in axes.get_lines():
        label = str(line.get_label())
        if label.startswith("_"):
            continue
        x, y = line.get_xdata()[-1], line.get_ydata()[-1]  # type: ignore[index]
        axes.annotate(
            label, (x, y), xytext=(padding, 0), textcoords="offset points",
            color=line.get_color(), va="center",
        )  # fmt: skip


def in_percent(axis: Axis) -> None:
    """Labels shares of 0 to 1 as percentages."""
    axis.set_major_formatter(lambda share, _: f"{share:.0%}")


def _cycle() -> Any:
    from cycler import cycler

    return cycler(color=COLOURS)


def _write(figure: Figure, path: Path) -> None:
    import logging

    logging.getLogger("matplotlib.font_manager").setLevel(logging.ERROR)
    handle, name = tempfile.mkstemp(prefix=".figure-", suffix=".svg", dir=path.parent)
    os.close(handle)
    unfinished = Path(name)
    try:
        figure.savefig(unfinished, format="svg", metadata={"Date": None, "Creator": None})
        unfinished.chmod(0o644)
        unfinished.replace(path)
    finally:
        unfinished.unlink(missing_ok=True)
