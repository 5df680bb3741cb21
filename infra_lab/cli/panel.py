"""The demo's picture of an engine at work: read from the event log, drawn with rich.

Answers "what does continuous batching look like?". Each step is a bar of its batch: prompt
chunks and decodes side by side; below it the KV pool, and what every request says so far.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from infra_lab.engine.event_log import EngineStarted, Event, StepEvent
from infra_lab.outputs import RequestOutput

PROMPT_STYLE, DECODE_STYLE = "cyan", "green"
USED_STYLE, CACHED_STYLE, FREE_STYLE = "yellow", "blue", "bright_black"
SHOWN_STEPS = 6


@dataclass(slots=True)
class Line:
    """One request on the panel."""

    prompt: str
    text: str = ""
    state: str = "waiting"


@dataclass(slots=True)
class EnginePanel:
    """Takes events and outputs as they come; rich asks it for a fresh picture many times a
    second."""

    lines: dict[str, Line]
    num_blocks: int = 0
    token_budget: int = 1
    steps: deque[StepEvent] = field(default_factory=lambda: deque(maxlen=SHOWN_STEPS))
    num_steps: int = 0
    num_output_tokens: int = 0
    num_hit_tokens: int = 0
    num_preemptions: int = 0
    started: float = field(default_factory=time.monotonic)

    def on_event(self, event: Event) -> None:
        if isinstance(event, EngineStarted):
            self.num_blocks = event.num_blocks
            self.token_budget = event.max_num_batched_tokens
        if not isinstance(event, StepEvent):
            return
        self.steps.append(event)
        self.num_steps += 1
        self.num_output_tokens += event.num_sampled_tokens
        self.num_hit_tokens += event.prefix_hit_tokens
        self.num_preemptions += len(event.preempted_request_ids)
        for entry in event.batch:
            if entry.request_id in self.lines:
                state = "prefill" if entry.is_prompt_chunk else "decode"
                self.lines[entry.request_id].state = state

    def on_output(self, output: RequestOutput) -> None:
        line = self.lines[output.request_id]
        line.text = output.outputs[0].text
        if output.finished:
            line.state = output.outputs[0].finish_reason or "done"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = options.height or console.height
        yield Group(
            Panel(self._engine(options.max_width - 4), title="engine", title_align="left"),
            Panel(
                self._requests(options.max_width - 4, height - SHOWN_STEPS - 8),
                title="requests",
                title_align="left",
            ),
        )

    def _engine(self, width: int) -> Group:
        elapsed = max(time.monotonic() - self.started, 1e-9)
        summary = Text(
            f"{self.num_output_tokens / elapsed:.1f} tokens/s   step {self.num_steps}   "
            f"{self.num_output_tokens} tokens out   {self.num_hit_tokens} prompt tokens from "
            f"the prefix cache   {self.num_preemptions} preemptions"
        )
        rows = [batch_bar(step, self.token_budget, width) for step in self.steps]
        rows += [Text("")] * (SHOWN_STEPS - len(rows))
        last = self.steps[-1] if self.steps else None
        return Group(summary, *rows, pool_bar(last, self.num_blocks, width))

    def _requests(self, width: int, height: int) -> Table:
        table = Table.grid(padding=(0, 1), expand=True)
        table.add_column(width=8, no_wrap=True)
        table.add_column()
        rows_each = max(1, height // len(self.lines) - 1)
        for line in self.lines.values():
            style = {"prefill": PROMPT_STYLE, "decode": DECODE_STYLE}.get(line.state, "dim")
            table.add_row(Text(line.state, style), Text(line.prompt, "bold", no_wrap=True))
            table.add_row("", tail(line.text, width - 10, rows_each))
        return table


def batch_bar(step: StepEvent, token_budget: int, width: int) -> Text:
    """One step: a block of the first colour for each prompt chunk, as long as its share of the
    budget, and a mark of the second for each decode."""
    chunks = [entry.num_tokens for entry in step.batch if entry.is_prompt_chunk]
    num_decodes = len(step.batch) - len(chunks)
    label = (
        f"step {step.step:>4}  {step.total_ms:6.1f} ms  "
        f"{sum(chunks):>4} prompt tokens in {len(chunks)} chunks + {num_decodes} decodes  "
    )
    bar = Text(label, "none", no_wrap=True, overflow="crop")
    room = max(8, width - len(label) - num_decodes - len(chunks))
    for chunk in chunks:
        bar.append("█" * max(1, round(room * chunk / token_budget)) + " ", PROMPT_STYLE)
    bar.append("▪" * num_decodes, DECODE_STYLE)
    return bar


def pool_bar(step: StepEvent | None, num_blocks: int, width: int) -> Text:
    """The KV pool as one bar: blocks used, cached (free, but findable by hash) and free."""
    used = step.blocks_used if step else 0
    cached = step.blocks_cached if step else 0
    free = step.blocks_free if step else num_blocks
    label = f"KV blocks  {used} used  {cached} cached  {free} free  "
    total = max(used + cached + free, 1)
    room = max(8, width - len(label))
    bar = Text(label, no_wrap=True, overflow="crop")
    num_used = -(-room * used // total)
    num_cached = min(-(-room * cached // total), room - num_used)
    bar.append("█" * num_used, USED_STYLE)
    bar.append("█" * num_cached, CACHED_STYLE)
    bar.append("░" * (room - num_used - num_cached), FREE_STYLE)
    return bar


def tail(text: str, width: int, rows: int) -> Text:
    """The last lines of a text that fit, for a cell that must not grow."""
    flat = " ".join(text.split())
    wrapped = Text(flat).wrap(Console(width=max(width, 10)), max(width, 10))
    shown: Sequence[Text] = wrapped[-rows:]
    return Text("\n").join(shown)
