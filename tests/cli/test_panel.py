"""The demo's panel, drawn from hand-made events at several sizes of terminal."""

from __future__ import annotations

import io

import pytest
from rich.console import Console

from infra_lab.cli.panel import EnginePanel, Line, batch_bar, pool_bar, tail
from infra_lab.engine.event_log import BatchEntry, EngineStarted, StepEvent


def make_step(number: int = 7, used: int = 3, cached: int = 2, free: int = 5) -> StepEvent:
    batch = (
        BatchEntry("a", 12, 0, is_prompt_chunk=True),
        BatchEntry("b", 1, 9, is_prompt_chunk=False),
        BatchEntry("c", 1, 4, is_prompt_chunk=False),
    )
    return StepEvent(
        number,
        0.0,
        0.5,
        10.0,
        0.5,
        batch,
        num_sampled_tokens=2,
        blocks_used=used,
        blocks_cached=cached,
        blocks_free=free,
        prefix_hit_tokens=4,
    )


def test_a_batch_bar_tells_chunks_from_decodes() -> None:
    text = batch_bar(make_step(), token_budget=24, width=100).plain
    assert "12 prompt tokens in 1 chunks + 2 decodes" in text
    assert text.endswith("▪▪")
    assert "█" in text


@pytest.mark.parametrize("counts", [(0, 0, 10), (10, 0, 0), (0, 10, 0), (1, 1, 8), (3, 3, 4)])
def test_a_pool_bar_is_as_wide_as_its_room_whatever_it_holds(counts: tuple[int, int, int]) -> None:
    used, cached, free = counts
    bar = pool_bar(make_step(used=used, cached=cached, free=free), 10, 80).plain
    assert len(bar) == 80
    assert f"{used} used  {cached} cached  {free} free" in bar


def test_a_tail_is_the_last_lines_that_fit() -> None:
    text = " ".join(f"word{index}" for index in range(50))
    shown = tail(text, width=20, rows=2).plain.split("\n")
    assert len(shown) == 2
    assert shown[-1].strip().endswith("word49")
    assert all(len(line) <= 20 for line in shown)


@pytest.mark.parametrize(("width", "height"), [(40, 12), (80, 24), (200, 60)])
def test_the_panel_fits_any_terminal(width: int, height: int) -> None:
    panel = EnginePanel({name: Line(f"prompt {name} " * 9, "answer " * 99) for name in "abcdefgh"})
    panel.on_event(EngineStarted(0.0, "model", 16, 10, 8, 24, 100))
    for number in range(9):
        panel.on_event(make_step(number))
    console = Console(file=io.StringIO(), width=width, height=height, force_terminal=True)
    console.print(panel)
    lines = console.file.getvalue().split("\n")  # type: ignore[attr-defined]
    assert lines
    assert panel.num_output_tokens == 18
    assert panel.lines["a"].state == "prefill"
    assert panel.lines["b"].state == "decode"
