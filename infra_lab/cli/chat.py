"""`infra-lab chat`: a conversation in the terminal. The prefix cache makes each turn cheap:
all but the newest message is found in it."""

from __future__ import annotations

import sys
from itertools import chain
from typing import TYPE_CHECKING, Annotated

import typer

from infra_lab.cli.options import (
    AttentionName,
    CacheDir,
    Command,
    Device,
    DraftLayers,
    DraftModel,
    Dtype,
    Events,
    KVCacheDtype,
    KVCacheMB,
    LoraPath,
    MaxTokens,
    Model,
    NumSpeculativeTokens,
    Seed,
    Speculative,
    Temperature,
    TopP,
    new_app,
)
from infra_lab.cli.session import EngineOptions, load_llm, open_event_log, speculative_config
from infra_lab.cli.terminal import make_console, print_error
from infra_lab.errors import InvalidRequestError, UsageError
from infra_lab.models.catalog import DEFAULT_MODEL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infra_lab.engine.llm import LLM
    from infra_lab.sampling_params import SamplingParams

app = new_app()

Messages = list[dict[str, str]]


@app.command(cls=Command, epilog='Example: infra-lab chat --system "You answer in one sentence."')
def chat(
    model: Model = DEFAULT_MODEL,
    system: Annotated[
        str | None,
        typer.Option(metavar="TEXT", help="The system message; default: the model's own."),
    ] = None,
    max_tokens: MaxTokens = 512,
    temperature: Temperature = 0.5,
    top_p: TopP = 0.9,
    seed: Seed = None,
    lora: LoraPath = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    attention: AttentionName = "auto",
    kv_cache_dtype: KVCacheDtype = "auto",
    kv_cache_mb: KVCacheMB = None,
    speculative: Speculative = None,
    num_speculative_tokens: NumSpeculativeTokens = None,
    draft_model: DraftModel = None,
    draft_layers: DraftLayers = None,
    events: Events = None,
    cache_dir: CacheDir = None,
) -> None:
    """Talk with a model.

    /clear forgets the conversation, /quit or Ctrl-D ends it, Ctrl-C stops an answer.
    """
    from infra_lab.sampling_params import SamplingParams

    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed)
    drafting = speculative_config(speculative, num_speculative_tokens, draft_model, draft_layers)
    options = EngineOptions(
        model, cache_dir, dtype, device, kv_cache_mb, attention, lora, kv_cache_dtype, drafting
    )
    opening: Messages = [] if system is None else [{"role": "system", "content": system}]
    lines = _typed() if sys.stdin.isatty() else _piped()
    with open_event_log(events) as log:
        llm = load_llm(options, log)
        messages = list(opening)
        for line in lines:
            if line in ("/quit", "/exit"):
                break
            if line == "/clear":
                messages = list(opening)
                continue
            messages.append({"role": "user", "content": line})
            _answer(llm, messages, params, options.lora_name)


def _typed() -> Iterator[str]:
    """What the user types, line by line."""
    make_console(stderr=True).print("[dim]/clear forgets, /quit ends[/dim]")
    while True:
        try:
            line = input("> ").strip()
        except EOFError:
            make_console(stderr=True).print()
            return
        if line:
            yield line


def _piped() -> Iterator[str]:
    """Lines that are not blank, as they arrive; the first is awaited before a model is loaded."""
    lines = (stripped for line in sys.stdin if (stripped := line.strip()))
    first = next(lines, None)
    if first is None:
        raise UsageError("nothing to answer: standard input is empty; type, or pipe lines in")
    return chain([first], lines)


def _answer(llm: LLM, messages: Messages, params: SamplingParams, lora: str | None) -> None:
    """Streams the answer and appends it to `messages`; a refused turn is taken back, unless
    nobody is there to try another."""
    output = None
    try:
        prompt = llm.tokenizer.apply_chat_template(messages)
        for output in llm.stream(prompt, params, lora=lora):
            sys.stdout.write(output.outputs[0].new_text)
            sys.stdout.flush()
    except KeyboardInterrupt:
        sys.stdout.write(" [stopped]")
    except InvalidRequestError as error:
        if not sys.stdin.isatty():
            raise
        messages.pop()
        print_error(str(error))
        return
    sys.stdout.write("\n")
    if output is None:
        messages.pop()
        return
    messages.append({"role": "assistant", "content": output.outputs[0].text})
    _report(len(output.prompt_token_ids), output.num_cached_tokens, output.metrics.ttft_s)


def _report(num_prompt_tokens: int, num_cached_tokens: int, ttft_s: float | None) -> None:
    console = make_console(stderr=True)
    if console.is_terminal and ttft_s is not None:
        console.print(
            f"[dim]{num_prompt_tokens} prompt tokens, {num_cached_tokens} of them cached, "
            f"TTFT {1e3 * ttft_s:.0f} ms[/dim]"
        )
