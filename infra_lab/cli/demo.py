"""`infra-lab demo`: eight chats at once through one engine, with its inside on show."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Annotated

import typer

from infra_lab.cli.options import (
    AttentionName,
    CacheDir,
    Command,
    Device,
    Dtype,
    Events,
    MaxTokens,
    Model,
    new_app,
)
from infra_lab.cli.session import EngineOptions, load_llm, open_event_log
from infra_lab.cli.terminal import counted, make_console, print_table
from infra_lab.models.catalog import DEFAULT_MODEL

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import Console

    from infra_lab.cli.panel import EnginePanel
    from infra_lab.engine.event_log import EventLog, StepEvent
    from infra_lab.engine.llm import LLM
    from infra_lab.outputs import RequestOutput

app = new_app()

PROMPTS = (
    "What is the capital of France?",
    "Why is the sky blue?",
    "Give me three tips for a job interview.",
    "What is photosynthesis?",
    "Write a short story about a robot who learns to paint.",
    "Explain gravity to a child.",
    "What is the difference between a list and a tuple in Python?",
    "Write a short poem about the sea.",
)

# Small on purpose: the eight prompts do not fit one step, so chunks and decodes share steps,
# and the later requests find the system prompt of the first ones in the prefix cache.
TOKEN_BUDGET = 128
KV_CACHE_BYTES = 64 << 20


@app.command(cls=Command, epilog="Example: infra-lab demo --max-tokens 64 --events steps.jsonl")
def demo(
    model: Model = DEFAULT_MODEL,
    max_tokens: MaxTokens = 128,
    plain: Annotated[
        bool,
        typer.Option("--plain", help="Text instead of the live panel, as when output is piped."),
    ] = False,
    dtype: Dtype = "auto",
    device: Device = "auto",
    attention: AttentionName = "auto",
    events: Events = None,
    cache_dir: CacheDir = None,
) -> None:
    """Answer eight chat prompts at once, with the engine's inside on show.

    In a terminal a live panel shows each step's batch (prompt chunks and decodes), the KV
    blocks, and the answers as they stream; piped, the same as lines of text.
    """
    console = make_console()
    options = EngineOptions(model, cache_dir, dtype, device, attention=attention)
    with open_event_log(events, capacity=4096) as log:
        lines = {f"chat-{index}": prompt for index, prompt in enumerate(PROMPTS)}
        panel = _new_panel(lines, log)
        llm = load_llm(
            options,
            log,
            max_num_batched_tokens=TOKEN_BUDGET,
            max_num_seqs=len(PROMPTS),
            kv_cache_bytes=KV_CACHE_BYTES,
        )
        _submit(llm, lines, max_tokens)
        panel.started = time.monotonic()
        live = console.is_terminal and not plain
        outputs = _run_live(llm, panel, console) if live else _run_plain(llm, panel, log)
        _summarize(panel, outputs, time.monotonic() - panel.started)


def _new_panel(lines: dict[str, str], log: EventLog) -> EnginePanel:
    from infra_lab.cli.panel import EnginePanel, Line

    panel = EnginePanel({name: Line(prompt) for name, prompt in lines.items()})
    log.subscribe(panel.on_event)
    return panel


def _submit(llm: LLM, lines: dict[str, str], max_tokens: int) -> None:
    from infra_lab.sampling_params import SamplingParams

    params = SamplingParams(max_tokens=max_tokens, temperature=0.3, top_p=0.9, seed=0)
    for name, prompt in lines.items():
        token_ids = llm.tokenizer.apply_chat_template([{"role": "user", "content": prompt}])
        llm.engine.add_request(name, token_ids, params)


def _run_live(llm: LLM, panel: EnginePanel, console: Console) -> list[RequestOutput]:
    from rich.live import Live

    with Live(panel, console=console, refresh_per_second=12, screen=False, transient=True):
        outputs = _drain(llm, panel.on_output)
    for output in outputs:
        console.print(_answer(panel, output), markup=False)
    return outputs


def _run_plain(llm: LLM, panel: EnginePanel, log: EventLog) -> list[RequestOutput]:
    """A line a step while prompts are being read, then one every 20 steps, then each answer
    as it is finished."""

    def on_step(event: object) -> None:
        from infra_lab.engine.event_log import StepEvent

        if isinstance(event, StepEvent) and _is_worth_a_line(event):
            typer.echo(_step_line(event))

    def on_output(output: RequestOutput) -> None:
        panel.on_output(output)
        if output.finished:
            typer.echo(_answer(panel, output))

    stop = log.subscribe(on_step)
    try:
        return _drain(llm, on_output)
    finally:
        stop()


def _drain(llm: LLM, on_output: Callable[[RequestOutput], None]) -> list[RequestOutput]:
    finished = []
    while llm.engine.has_unfinished_requests:
        for output in llm.engine.step():
            on_output(output)
            if output.finished:
                finished.append(output)
    return finished


def _is_worth_a_line(event: StepEvent) -> bool:
    return event.step % 20 == 0 or any(entry.is_prompt_chunk for entry in event.batch)


def _step_line(event: StepEvent) -> str:
    chunks = [entry.num_tokens for entry in event.batch if entry.is_prompt_chunk]
    decodes = len(event.batch) - len(chunks)
    return (
        f"step {event.step:>4}: {counted(len(chunks), 'prompt chunk')} "
        f"({counted(sum(chunks), 'token')}, {event.prefix_hit_tokens} more from the prefix cache) "
        f"+ {counted(decodes, 'decode')}; KV blocks {event.blocks_used} used, "
        f"{event.blocks_cached} cached, {event.blocks_free} free; {event.total_ms:.0f} ms"
    )


def _answer(panel: EnginePanel, output: RequestOutput) -> str:
    answer = output.error or output.outputs[0].text.strip()
    return f"\n> {panel.lines[output.request_id].prompt}\n{answer}"


def _summarize(panel: EnginePanel, outputs: list[RequestOutput], elapsed_s: float) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(title="\nhow each request fared", title_justify="left")
    table.add_column("prompt")
    for name in ("in", "cached", "out", "TTFT ms", "TPOT ms", "finish"):
        table.add_column(name, justify="right", no_wrap=True)
    for output in sorted(outputs, key=lambda one: one.request_id):
        metrics = output.metrics
        table.add_row(
            Text(panel.lines[output.request_id].prompt, no_wrap=True, overflow="ellipsis"),
            str(len(output.prompt_token_ids)),
            str(output.num_cached_tokens),
            str(metrics.num_output_tokens),
            "-" if metrics.ttft_s is None else f"{1e3 * metrics.ttft_s:.0f}",
            "-" if metrics.tpot_s is None else f"{1e3 * metrics.tpot_s:.1f}",
            output.outputs[0].finish_reason,
        )
    print_table(table)
    typer.echo(
        f"{counted(panel.num_output_tokens, 'token')} in {elapsed_s:.1f} s: "
        f"{panel.num_output_tokens / elapsed_s:.1f} tokens/s over "
        f"{counted(panel.num_steps, 'step')}"
    )
    typer.echo("next: infra-lab chat, or infra-lab bench throughput")
