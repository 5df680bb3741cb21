"""The demo's picture of an engine at work: read from the event log, drawn with rich.

Answers "what does continuous batching look like?". Each step is a bar of its batch: prompt
chunks and decodes side by side; below it the KV pool, and what every request says so far.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.panel import Panel
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from infra_lab.cli.terminal import counted
from infra_lab.engine.event_log import EngineStarted, Event, StepEvent
from infra_lab.outputs import RequestOutput

PROMPT_STYLE, DECODE_STYLE = "cyan", "green"
USED_STYLE, CACHED_STYLE, FREE_STYLE = "yellow", "blue", "bright_black"
SHOWN_STEPS = 6
_STATE_WIDTH = len("preempted")
_WIDE = 72  # columns from which a step's bar has room beside its full label


@dataclass(slots=True)
class Line:
    """One request on the panel."""

    prompt: str
    text: str = ""
    state: str = "waiting"


@dataclass(frozen=True, slots=True)
class Layout:
    """What of the panel a terminal has room for.

    Attributes:
        num_steps: bars of the last steps.
        framed: whether a frame is drawn around each half.
        answer_rows: rows below each prompt for its answer; 0 puts both in one row.
    """

    num_steps: int
    framed: bool
    answer_rows: int


def layout_for(height: int, num_requests: int) -> Layout:
    """The fullest layout of at most `height` rows, summary and pool bar included.

    Room goes first to a row for each request, then to steps, to frames, and at last to the
    answers.
    """
    spare = height - 2 - num_requests
    framed = spare >= 4 + SHOWN_STEPS // 2
    num_steps = max(0, min(SHOWN_STEPS, spare - 4 if framed else spare))
    answer_rows = (spare - 4 - num_steps) // max(num_requests, 1) if framed else 0
    return Layout(num_steps, framed, answer_rows)


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
            if line := self.lines.get(entry.request_id):
                is_prefill = entry.is_prompt_chunk and not line.text
                line.state = "prefill" if is_prefill else "decode"
        for request_id in event.preempted_request_ids:
            if line := self.lines.get(request_id):
                line.state = "preempted"

    def on_output(self, output: RequestOutput) -> None:
        line = self.lines[output.request_id]
        line.text = output.outputs[0].text
        if output.finished:
            line.state = output.outputs[0].finish_reason or "done"
        elif line.text:
            line.state = "decode"

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        height = (options.height or console.height) - 1  # a full screen would scroll
        layout = layout_for(height, len(self.lines))
        width = options.max_width - 4 if layout.framed else options.max_width
        engine = self._engine(width, layout.num_steps)
        requests = self._requests(width, layout.answer_rows)
        if layout.framed:
            yield Panel(Group(*engine), title="engine", title_align="left")
            yield Panel(requests, title="requests", title_align="left")
            return
        yield Group(*engine[:height])
        for row in console.render_lines(requests, options.update(height=None))[
            : max(0, height - len(engine))
        ]:
            yield from row
            yield Segment.line()

    def _engine(self, width: int, num_steps: int) -> list[Text]:
        steps = list(self.steps)[-num_steps:] if num_steps else []
        rows = [batch_bar(step, self.token_budget, width) for step in steps]
        rows += [Text("")] * (num_steps - len(rows))
        last = self.steps[-1] if self.steps else None
        return [self._summary(width), *rows, pool_bar(last, self.num_blocks, width)]

    def _summary(self, width: int) -> Text:
        """As many of the figures, the most telling first, as one row holds."""
        elapsed = max(time.monotonic() - self.started, 1e-9)
        figures = (
            f"{self.num_output_tokens / elapsed:.1f} tokens/s",
            counted(self.num_steps, "step"),
            f"{counted(self.num_output_tokens, 'token')} out",
            f"{counted(self.num_hit_tokens, 'prompt token')} from cache",
            counted(self.num_preemptions, "preemption"),
        )
        shown = figures[0]
        for figure in figures[1:]:
            longer = f"{shown}   {figure}"
            if len(longer) > width:
                break
            shown = longer
        return Text(shown, no_wrap=True, overflow="crop")

    def _requests(self, width: int, answer_rows: int) -> Table:
        room = max(width - _STATE_WIDTH - 1, 2)
        prompt_width = room
        if not answer_rows:
            longest = max((cell_len(line.prompt) for line in self.lines.values()), default=0)
            prompt_width = min(longest, room // 2)
        table = Table.grid(padding=(0, 1, 0, 0))
        table.add_column(width=_STATE_WIDTH, no_wrap=True)
        table.add_column(width=prompt_width, no_wrap=True, overflow="ellipsis")
        if not answer_rows:
            table.add_column(no_wrap=True, overflow="crop")
        for line in self.lines.values():
            style = {"prefill": PROMPT_STYLE, "decode": DECODE_STYLE}.get(line.state, "dim")
            cells = [Text(line.state, style), Text(line.prompt, "bold")]
            if answer_rows:
                table.add_row(*cells)
                table.add_row("", tail(line.text, room, answer_rows))
            else:
                table.add_row(*cells, last_cells(line.text, room - prompt_width - 1))
        return table


def batch_bar(step: StepEvent, token_budget: int, width: int) -> Text:
    """One step: a block of the first colour for each prompt chunk, as long as its share of the
    budget, and a mark of the second for each decode."""
    chunks = [entry.num_tokens for entry in step.batch if entry.is_prompt_chunk]
    num_decodes = len(step.batch) - len(chunks)
    prompt = f"{sum(chunks):>4} prompt" if width < _WIDE else f"{sum(chunks):>4} prompt tokens"
    label = (
        f"step {step.step:>4}  {step.total_ms:6.1f} ms  {prompt} "
        f"+ {counted(num_decodes, 'decode'):<9}  "
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


def last_cells(text: str, width: int) -> str:
    """The end of a text in one row, after an ellipsis if more came before it."""
    flat = " ".join(text.split())
    if cell_len(flat) <= width:
        return flat
    start, used = len(flat), 1
    while start and used + cell_len(flat[start - 1]) <= width:
        start -= 1
        used += cell_len(flat[start])
    return f"…{flat[start:]}" if width > 0 else ""
