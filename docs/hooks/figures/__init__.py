"""Figures to step through, one module's data each.

Block tables, batches and the prefix chain are runs of the engine's own scheduler, block pool and
cache. Tiles and bubbles are arithmetic: the recurrence of the online softmax, and the timetable of
a pipeline, which the calculator's share of bubbles must match; no kernel and no stage runs here.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from docs.hooks.figures import batches, block_tables, flash_tiles, pipeline, prefix_chain

FIGURES: dict[str, Callable[[], dict[str, Any]]] = {
    "block-tables": block_tables.figure,
    "batch-over-time": batches.figure,
    "flash-tiles": flash_tiles.figure,
    "prefix-radix": prefix_chain.figure,
    "pipeline-bubbles": pipeline.figure,
}


def step_files() -> dict[str, str]:
    """File name and JSON of every figure."""
    return {
        f"steps/{name}.json": json.dumps(make(), ensure_ascii=False, separators=(",", ":")) + "\n"
        for name, make in FIGURES.items()
    }
