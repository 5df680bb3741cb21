"""`infra-lab bench serve`: what the users of a server see under load."""

from __future__ import annotations

import asyncio
import math
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from infra_lab.cli.options import AsJson, CacheDir, Dtype, KVCacheMB, MaxNumSeqs, count_option
from infra_lab.cli.terminal import make_console, print_json, print_table, steps_progress
from infra_lab.errors import InfraLabError, UsageError

if TYPE_CHECKING:
    from infra_lab.bench.arrivals import Arrivals
    from infra_lab.bench.openai_endpoint import Endpoint
    from infra_lab.bench.serving import ServingRun
    from infra_lab.bench.serving_requests import Lengths, ServingRequest

DEFAULT_MODEL = "smollm2-135m"
Lengths_ = Annotated[str, typer.Option(metavar="DIST")]


def serve(
    base_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL", help="An OpenAI endpoint, with its /v1; default: our own server."
        ),
    ] = None,
    model: Annotated[
        str | None,
        typer.Option(
            metavar="MODEL",
            help=f"Default: the first that --base-url lists; for our own server {DEFAULT_MODEL}.",
        ),
    ] = None,
    api_key: Annotated[
        str | None,
        typer.Option(metavar="KEY", envvar="OPENAI_API_KEY", help="For --base-url."),
    ] = None,
    api: Annotated[
        str, typer.Option(metavar="NAME", help="completions or chat.")
    ] = "completions",
    rate: Annotated[
        list[float] | None,
        typer.Option(
            metavar="X", help="Mean requests a second, may be repeated; default: inf, all at once."
        ),
    ] = None,
    burstiness: Annotated[
        float,
        typer.Option(metavar="X", help="1: Poisson arrivals; less: bursts; inf: even spacing."),
    ] = 1.0,
    max_concurrency: Annotated[
        int | None, count_option("Most requests under way; default: no limit.")
    ] = None,
    num_requests: Annotated[int, count_option("Requests at each rate.")] = 100,
    prompt_len: Annotated[
        str,
        typer.Option(metavar="DIST", help="Tokens: sharegpt, alpaca, MIN:MAX or one number."),
    ] = "sharegpt",
    output_len: Annotated[
        str, typer.Option(metavar="DIST", help="Tokens of an answer, likewise.")
    ] = "sharegpt",
    prompts: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="JSON lines with prompt or messages, and max_tokens, in place of random words.",
        ),
    ] = None,
    respect_eos: Annotated[
        bool,
        typer.Option(
            "--respect-eos", help="Let answers end early: for endpoints without ignore_eos."
        ),
    ] = False,
    temperature: Annotated[
        float, typer.Option(metavar="X", help="What the requests ask for.")
    ] = 0.0,
    slo: Annotated[
        str | None,
        typer.Option(
            metavar="LIMITS", help="Report goodput under these ms, such as ttft=500,tpot=50."
        ),
    ] = None,
    timeout: Annotated[
        float, typer.Option(metavar="S", help="Seconds that one request may take.")
    ] = 600.0,
    seed: Annotated[
        int, typer.Option(metavar="N", help="Seeds arrivals, lengths and words.")
    ] = 0,
    figure: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the runs there, as SVG.")
    ] = None,
    dtype: Dtype = "auto",
    max_num_seqs: MaxNumSeqs = None,
    kv_cache_mb: KVCacheMB = None,
    cache_dir: CacheDir = None,
    as_json: AsJson = False,
) -> None:
    """TTFT, TPOT, ITL, throughput and goodput of a server under load.

    Requests are streamed and sent on a schedule, whatever became of those before; tokens are
    counted by the server. Without --base-url our own server is started, and --dtype,
    --max-num-seqs, --kv-cache-mb and --cache-dir are for it. Lengths called sharegpt and alpaca
    are log-normal, with the means of those conversations.
    """
    from infra_lab.bench.arrivals import Arrivals
    from infra_lab.bench.openai_endpoint import APIS, Endpoint
    from infra_lab.bench.serving_report import parse_slo
    from infra_lab.bench.serving_requests import parse_lengths, read_requests
    from infra_lab.figures import checked_figure_path

    if api not in APIS:
        raise UsageError(f"--api must be {' or '.join(APIS)}, not {api!r}")
    if not 0 < timeout < math.inf:
        raise UsageError(f"--timeout must be above 0 seconds, not {timeout:g}")
    figure = checked_figure_path(figure)
    schedules = [Arrivals(one, burstiness) for one in rate or [math.inf]]
    lengths = (
        parse_lengths("--prompt-len", prompt_len, 0),
        parse_lengths("--output-len", output_len, 1),
    )
    limits = None if slo is None else parse_slo(slo)
    given = None
    if prompts is not None:
        given = read_requests(prompts, max_tokens=256)
        if api == "completions" and any(not isinstance(one.prompt, str) for one in given):
            raise UsageError(f"--prompts {prompts} has messages in it: give --api chat")
    own = _own_options(dtype, max_num_seqs, kv_cache_mb, cache_dir)
    if base_url is not None and own:
        raise UsageError(f"{own[0]} is for our own server: leave it or --base-url out")
    extra: dict[str, Any] = {"temperature": temperature}
    if not respect_eos:
        extra["ignore_eos"] = True

    async def measure(url: str, served_model: str) -> tuple[list[ServingRun], float]:
        key = api_key if base_url is not None else None
        endpoint = Endpoint(url, served_model, api, key, extra, timeout)
        try:
            return await _measure(
                endpoint, schedules, num_requests, lengths, given, max_concurrency, seed
            )
        finally:
            await endpoint.close()

    with _server(base_url, model or DEFAULT_MODEL, own) as url:
        served_model = model or (DEFAULT_MODEL if base_url is None else _first_model(url, api_key))
        runs, tokens_per_word = asyncio.run(measure(url, served_model))
    from infra_lab.bench.serving_report import serving_report

    report = serving_report(
        runs,
        schedules,
        limits,
        {
            "model": served_model,
            "base_url": base_url or "its own server",
            "api": api,
            "burstiness": None if math.isinf(burstiness) else burstiness,
            "max_concurrency": max_concurrency,
            "prompt_len": prompt_len if prompts is None else None,
            "output_len": output_len if prompts is None else None,
            "prompts": None if prompts is None else prompts.name,
            "tokens_per_word": tokens_per_word if prompts is None else None,
            "ignore_eos": not respect_eos,
            "temperature": temperature,
            "seed": seed,
        },
    )
    if figure is not None:
        from infra_lab.bench.serving_figure import draw_serving

        draw_serving(figure, runs, report["runs"])
    _show(report, as_json)
