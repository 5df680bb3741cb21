"""`infra-lab generate`: one prompt, streamed to stdout as it is made."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra_lab.cli.options import (
    AsJson,
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
    TopK,
    TopP,
    count_option,
    new_app,
)
from infra_lab.cli.session import (
    EngineOptions,
    load_llm,
    open_event_log,
    read_prompt,
    speculative_config,
)
from infra_lab.cli.terminal import make_console, print_json
from infra_lab.errors import InfraLabError, UsageError
from infra_lab.models.catalog import DEFAULT_MODEL

if TYPE_CHECKING:
    from infra_lab.engine.llm import LLM
    from infra_lab.outputs import RequestOutput
    from infra_lab.sampling_params import BeamSearchParams, SamplingParams
    from infra_lab.structured_outputs import StructuredOutputsParams

app = new_app()
SAMPLING_OPTIONS = (
    "temperature", "top_p", "top_k", "repetition_penalty", "seed", "stop", "best_of",
    "json_schema", "regex", "choice", "kv_budget",
)  # fmt: skip


@app.command(
    cls=Command,
    epilog='Examples: infra-lab generate "What is the capital of France?" --temperature 0; '
    'infra-lab generate "Is Paris in France?" --choice yes --choice no; '
    'infra-lab generate "Describe a person as JSON." --json-schema person.schema.json',
)
def generate(
    context: typer.Context,
    text: Annotated[
        str | None,
        typer.Argument(metavar="PROMPT", help='The text; "-" or nothing reads standard input.'),
    ] = None,
    prompt: Annotated[
        str | None, typer.Option(metavar="TEXT", help="The prompt, given by name.")
    ] = None,
    model: Model = DEFAULT_MODEL,
    max_tokens: MaxTokens = 256,
    temperature: Temperature = 0.7,
    top_p: TopP = 0.95,
    top_k: TopK = 0,
    repetition_penalty: Annotated[
        float, typer.Option(metavar="X", help="Above 1 discourages every token seen so far.")
    ] = 1.0,
    seed: Seed = None,
    stop: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="End at this text; may be given several times."),
    ] = None,
    n: Annotated[int, count_option("Samples of the one prompt.", "-n", "--n")] = 1,
    best_of: Annotated[
        int | None,
        typer.Option(metavar="N", help="Draw this many samples and show the n likeliest."),
    ] = None,
    beam_width: Annotated[
        int | None,
        typer.Option(metavar="N", help="Search for the likeliest answers with so many beams."),
    ] = None,
    length_penalty: Annotated[
        float, typer.Option(metavar="X", help="Of beams: above 0 favours long answers.")
    ] = 1.0,
    json_schema: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The answer is JSON that this JSON Schema describes."),
    ] = None,
    regex: Annotated[
        str | None, typer.Option(metavar="PATTERN", help="The whole answer matches this pattern.")
    ] = None,
    choice: Annotated[
        list[str] | None,
        typer.Option(metavar="TEXT", help="The answer is one of these; give it several times."),
    ] = None,
    raw: Annotated[
        bool,
        typer.Option("--raw", help="Continue the text as it stands, without the chat template."),
    ] = False,
    lora: LoraPath = None,
    dtype: Dtype = "auto",
    device: Device = "auto",
    attention: AttentionName = "auto",
    kv_cache_dtype: KVCacheDtype = "auto",
    kv_cache_mb: KVCacheMB = None,
    kv_budget: Annotated[
        int | None,
        count_option("Tokens kept in each KV head: heavy hitters and the newest; default: all."),
    ] = None,
    speculative: Speculative = None,
    num_speculative_tokens: NumSpeculativeTokens = None,
    draft_model: DraftModel = None,
    draft_layers: DraftLayers = None,
    events: Events = None,
    cache_dir: CacheDir = None,
    as_json: AsJson = False,
) -> None:
    """Answer a prompt.

    A chat model gets the prompt through its chat template, as a user's message; --raw
    continues the text itself.
    """
    from infra_lab.sampling_params import BeamSearchParams, SamplingParams

    given = read_prompt(text, prompt)
    params: SamplingParams | BeamSearchParams = SamplingParams(
        n=n,
        best_of=best_of,
        max_tokens=max_tokens,
        temperature=temperature,
        top_p=top_p,
        top_k=top_k,
        repetition_penalty=repetition_penalty,
        seed=seed,
        stop=tuple(stop or ()),
        structured_outputs=_form(json_schema, regex, choice),
        kv_budget=kv_budget,
    )
    if beam_width is not None:
        _refuse_sampling_options(context)
        params = BeamSearchParams(beam_width, n, max_tokens, length_penalty)
    drafting = speculative_config(speculative, num_speculative_tokens, draft_model, draft_layers)
    options = EngineOptions(
        model, cache_dir, dtype, device, kv_cache_mb, attention, lora, kv_cache_dtype, drafting
    )
    with open_event_log(events) as log:
        llm = load_llm(options, log, sparse_kv=kv_budget is not None)
        ids: Any = given
        if not raw and llm.tokenizer.chat_template is not None:
            ids = llm.tokenizer.apply_chat_template([{"role": "user", "content": given}])
        output = _run(llm, ids, params, options.lora_name, shows_text=not as_json)
    if as_json:
        print_json(_as_dict(output, given))
    elif output.error is None:
        _report(output)
    if output.error is not None:
        raise InfraLabError(output.error)


def _refuse_sampling_options(context: typer.Context) -> None:
    """What shapes a random choice has no effect on beams: said, not ignored."""
    for name in SAMPLING_OPTIONS:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise UsageError(
                f"--beam-width searches for the likeliest answers and takes no "
                f"--{name.replace('_', '-')}: leave one of the two out"
            )


def _form(
    json_schema: Path | None, regex: str | None, choice: list[str] | None
) -> StructuredOutputsParams | None:
    """What form the answer must have, as the options say; None where they say nothing."""
    from infra_lab.structured_outputs import StructuredOutputsParams

    if json_schema is None and regex is None and not choice:
        return None
    schema = None if json_schema is None else _read_schema(json_schema)
    return StructuredOutputsParams(schema, regex, tuple(choice) if choice else None)


def _read_schema(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--json-schema {path}: cannot be read: {error}") from error


def _run(
    llm: LLM,
    prompt: Any,
    params: SamplingParams | BeamSearchParams,
    lora: str | None,
    shows_text: bool,
) -> RequestOutput:
    """Streams a single sample; several are shown one after another at the end."""
    output = None
    for output in llm.stream(prompt, params, lora=lora):
        if shows_text and params.n == 1:
            sys.stdout.write(output.outputs[0].new_text)
            sys.stdout.flush()
    if output is None:
        raise InfraLabError("the engine gave no output")
    if shows_text and params.n == 1:
        sys.stdout.write("\n")
    elif shows_text:
        for sample in output.outputs:
            sys.stdout.write(f"--- sample {sample.index} ({sample.finish_reason})\n{sample.text}\n")
    return output


def _report(output: RequestOutput) -> None:
    """One dim line on stderr of a terminal: how much, how fast, why it ended."""
    console = make_console(stderr=True)
    if not console.is_terminal:
        return
    metrics = output.metrics
    parts = [f"{len(output.prompt_token_ids)} + {metrics.num_output_tokens} tokens"]
    if metrics.ttft_s is not None:
        parts.append(f"TTFT {1e3 * metrics.ttft_s:.0f} ms")
    if metrics.tpot_s:
        parts.append(f"TPOT {1e3 * metrics.tpot_s:.1f} ms ({1 / metrics.tpot_s:.1f} tokens/s)")
    if metrics.peak_kv_blocks_unshared:
        saved = 1 - metrics.peak_kv_blocks / metrics.peak_kv_blocks_unshared
        parts.append(
            f"{metrics.peak_kv_blocks} KV blocks for {metrics.peak_kv_blocks_unshared} "
            f"({saved:.0%} shared)"
        )
    if metrics.num_draft_tokens:
        stood = f"{metrics.num_accepted_tokens} of {metrics.num_draft_tokens}"
        parts.append(f"{stood} drafted tokens accepted")
    parts.append(f"finish: {output.outputs[0].finish_reason}")
    console.print(f"[dim]{', '.join(parts)}[/dim]")


def _as_dict(output: RequestOutput, prompt: str) -> dict[str, Any]:
    metrics = output.metrics
    return {
        "prompt": prompt,
        "prompt_token_ids": output.prompt_token_ids,
        "outputs": [
            {
                "index": sample.index,
                "text": sample.text,
                "token_ids": sample.token_ids,
                **({} if sample.score is None else {"score": sample.score}),
                "finish_reason": sample.finish_reason,
                "stop_reason": sample.stop_reason,
            }
            for sample in output.outputs
        ],
        "num_cached_tokens": output.num_cached_tokens,
        "queue_time_s": metrics.queue_time_s,
        "ttft_s": metrics.ttft_s,
        "tpot_s": metrics.tpot_s,
        "peak_kv_blocks": metrics.peak_kv_blocks,
        "peak_kv_blocks_unshared": metrics.peak_kv_blocks_unshared,
        "num_draft_tokens": metrics.num_draft_tokens,
        "num_accepted_tokens": metrics.num_accepted_tokens,
        "error": output.error,
    }
