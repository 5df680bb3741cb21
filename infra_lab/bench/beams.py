"""What copy-on-write saves: the KV blocks of beams that share, against those of beams that do not.

Answers "why fork a block table rather than copy it?". Both counts are the engine's own, at the
peak of each search (`RequestMetrics.peak_kv_blocks` and `peak_kv_blocks_unshared`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from infra_lab.bench.engine import EngineSettings, MeasurementError, open_engine
from infra_lab.bench.prompts import QUESTIONS, work
from infra_lab.bench.system import machine_facts
from infra_lab.sampling_params import BeamSearchParams

Notify = Callable[[str], None]


def measure_beams(
    path: Path,
    settings: EngineSettings,
    widths: Sequence[int],
    output_len: int,
    notify: Notify,
) -> list[dict[str, Any]]:
    """A row a width, over questions of a line and texts to be summarized: blocks at the peak,
    summed over the prompts, each of which is searched alone."""
    prompts = [*QUESTIONS[:4], *work("summary")[:4]]
    conversations = [[{"role": "user", "content": text}] for text in prompts]
    searches = [BeamSearchParams(beam_width=width, max_tokens=output_len) for width in widths]
    notify("loading the model")
    llm = open_engine(path, settings)
    rows = []
    for params in searches:
        width = params.beam_width
        shared = unshared = prompt_tokens = 0
        for conversation in conversations:
            (output,) = llm.chat([conversation], params, use_progress=False)
            if output.error is not None:
                raise MeasurementError(output.error)
            shared += output.metrics.peak_kv_blocks
            unshared += output.metrics.peak_kv_blocks_unshared
            prompt_tokens += len(output.prompt_token_ids)
        rows.append(
            {
                "beam_width": width,
                "prompts": len(prompts),
                "prompt_tokens": prompt_tokens,
                "peak_kv_blocks": shared,
                "peak_kv_blocks_unshared": unshared,
                "saved": 1 - shared / unshared,
            }
        )
        notify(f"beam {width}: {shared} blocks instead of {unshared}")
    return rows


def beams_report(
    model: str, block_size: int, output_len: int, rows: Sequence[dict[str, Any]]
) -> dict[str, Any]:
    """Everything about a measurement as one JSON-ready object; the figures come first."""
    return {
        "beams": list(rows),
        "block_size": block_size,
        "output_len": output_len,
        "model": model,
        "machine": machine_facts(),
    }
