"""`infra-lab chat`: a conversation in the terminal. The prefix cache makes each turn cheap:
all but the newest message is found in it."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated

import typer

from infra_lab.cli.options import CacheDir
from infra_lab.cli.session import (
    Device,
    Dtype,
    EngineOptions,
    Events,
    KVCacheMB,
    MaxTokens,
    Model,
    Seed,
    Temperature,
    TopP,
    load_llm,
    open_event_log,
)
from infra_lab.cli.terminal import make_console
from infra_lab.errors import InvalidRequestError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from infra_lab.engine.llm import LLM
    from infra_lab.sampling_params import SamplingParams

app = typer.Typer(
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"]},
)

Messages = list[dict[str, str]]


@app.command(epilog='Example: infra-lab chat --system "You answer in one sentence."')
def chat(
    model: Model = "smollm2-135m",
    system: Annotated[
        str | None, typer.Option(help="The system message; default: the model's own.")
    ] = None,
    max_tokens: MaxTokens = 512,
    temperature: Temperature = 0.5,
    top_p: TopP = 0.9,
    seed: Seed = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    kv_cache_mb: KVCacheMB = None,
    events: Events = None,
    cache_dir: CacheDir = None,
) -> None:
    """Talk with a model.

    /clear forgets the conversation, /quit or Ctrl-D ends it, Ctrl-C stops an answer.
    """
    from infra_lab.sampling_params import SamplingParams

    params = SamplingParams(max_tokens=max_tokens, temperature=temperature, top_p=top_p, seed=seed)
    options = EngineOptions(model, cache_dir, dtype, device, kv_cache_mb)
    opening: Messages = [] if system is None else [{"role": "system", "content": system}]
    with open_event_log(events) as log:
        llm = load_llm(options, log)
        messages = list(opening)
        for line in _lines():
            if line in ("/quit", "/exit"):
                break
            if line == "/clear":
                messages = list(opening)
                continue
            messages.append({"role": "user", "content": line})
            _answer(llm, messages, params)


def _lines() -> Iterator[str]:
    """What the user types, line by line; piped input works too."""
    shows_prompt = sys.stdin.isatty()
    if shows_prompt:
        make_console(stderr=True).print("[dim]/clear forgets, /quit ends[/dim]")
    while True:
        try:
            line = input("> " if shows_prompt else "").strip()
        except EOFError:
            return
        if line:
            yield line


def _answer(llm: LLM, messages: Messages, params: SamplingParams) -> None:
    """Streams the answer and appends it to `messages`; a refused turn is taken back."""
    output = None
    try:
        prompt = llm.tokenizer.apply_chat_template(messages)
        for output in llm.stream(prompt, params):
            sys.stdout.write(output.outputs[0].new_text)
            sys.stdout.flush()
    except KeyboardInterrupt:
        sys.stdout.write(" [stopped]")
    except InvalidRequestError as error:
        messages.pop()
        sys.stdout.write(f"{error}\n")
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
