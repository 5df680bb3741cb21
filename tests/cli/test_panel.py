"""The demo's panel, drawn from hand-made events at several sizes of terminal."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from infra_lab.cli.panel import (
    EnginePanel,
    Line,
    batch_bar,
    last_cells,
    layout_for,
    pool_bar,
    tail,
)
from infra_lab.engine.event_log import BatchEntry, EngineStarted, StepEvent
from infra_lab.outputs import CompletionOutput, RequestMetrics, RequestOutput


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
    assert "12 prompt tokens + 2 decodes" in text
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


@given(st.text(max_size=40), st.integers(0, 30))
def test_the_last_cells_of_a_text_fit_and_end_as_it_does(text: str, width: int) -> None:
    flat = " ".join(text.split())
    shown = last_cells(text, width)
    assert cell_len(shown) <= width
    assert shown == flat if cell_len(flat) <= width else flat.endswith(shown.removeprefix("…"))


@given(st.integers(0, 80), st.integers(0, 20))
def test_a_layout_never_asks_for_more_rows_than_there_are(height: int, num_requests: int) -> None:
    layout = layout_for(height, num_requests)
    frames = 4 if layout.framed else 0
    rows = 2 + layout.num_steps + frames + num_requests * (1 + layout.answer_rows)
    assert rows <= max(height, 2 + num_requests)
    assert min(layout.num_steps, layout.answer_rows) >= 0


def make_panel(text: str = "answer " * 99) -> EnginePanel:
    panel = EnginePanel({name: Line(f"prompt {name} " * 9, text) for name in "abcdefgh"})
    panel.on_event(EngineStarted(0.0, "model", 16, 10, 8, 24, 100))
    for number in range(9):
        panel.on_event(make_step(number))
    return panel


def rendered(panel: EnginePanel, width: int, height: int) -> list[str]:
    console = Console(width=width, height=height, force_terminal=True, color_system=None)
    with console.capture() as captured:
        console.print(panel)
    return captured.get().splitlines()


@pytest.mark.parametrize("text", ["", "answer " * 99, "答案" * 99])
@pytest.mark.parametrize(
    ("width", "height"),
    [(10, 3), (20, 5), (40, 12), (60, 15), (80, 18), (80, 24), (100, 30), (200, 60)],
)
def test_the_panel_fits_any_terminal(width: int, height: int, text: str) -> None:
    rows = rendered(make_panel(text), width, height)
    assert 0 < len(rows) < height
    assert all(cell_len(row) <= width for row in rows)


@pytest.mark.parametrize(("width", "height"), [(60, 15), (80, 24), (200, 60)])
def test_every_request_and_the_pool_are_on_the_panel(width: int, height: int) -> None:
    rows = rendered(make_panel(), width, height)
    assert all(any(f"prompt {name}" in row for row in rows) for name in "abcdefgh")
    assert any("KV blocks" in row for row in rows)
    assert sum("answer" in row for row in rows) >= 8


def test_the_summary_drops_what_has_no_room() -> None:
    wide, narrow = (rendered(make_panel(), width, 24)[1] for width in (120, 60))
    assert "9 steps   18 tokens out   36 prompt tokens from cache   0 preemptions" in wide
    assert "9 steps" in narrow
    assert "preemptions" not in narrow


def test_the_panel_counts_what_the_events_say() -> None:
    panel = make_panel()
    assert panel.num_output_tokens == 18
    assert panel.num_steps == 9


def test_a_request_is_in_prefill_until_it_has_said_something() -> None:
    panel = EnginePanel({"a": Line("prompt"), "b": Line("prompt")})
    panel.on_event(make_step())
    assert (panel.lines["a"].state, panel.lines["b"].state) == ("prefill", "decode")
    metrics = RequestMetrics(arrival_time_s=0.0)
    output = RequestOutput("a", "prompt", [1], [CompletionOutput(0, "so")], False, metrics)
    panel.on_output(output)
    assert panel.lines["a"].state == "decode"
    panel.on_event(make_step())
    assert panel.lines["a"].state == "decode"


def test_a_preempted_request_is_shown_as_such() -> None:
    panel = make_panel()
    panel.on_event(replace(make_step(), preempted_request_ids=("h",)))
    assert panel.lines["h"].state == "preempted"
