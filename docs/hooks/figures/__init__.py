"""Figures to step through. Each module makes one figure's data with the engine's own parts."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from docs.hooks.figures import batches, block_tables, flash_tiles, pipeline, prefix_chain

Text = dict[str, str]

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
