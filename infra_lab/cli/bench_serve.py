"""`infra-lab bench serve`: what the users of a server see under load."""

from __future__ import annotations

import asyncio
import math
import os
import sys
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Annotated, Any

import typer

from infra_lab.cli.options import AsJson, CacheDir, Dtype, KVCacheMB, MaxNumSeqs, count_option
from infra_lab.cli.terminal import make_console, print_json, print_table, steps_progress
from infra_lab.errors import InfraLabError, UsageError
from infra_lab.models.catalog import DEFAULT_MODEL

DEFAULT_LENGTHS = "sharegpt"
KEY_VARIABLE = "OPENAI_API_KEY"
DEFAULT_MAX_TOKENS = 256  # of a request from a file that names none


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
        typer.Option(metavar="KEY", help=f"For --base-url; default: ${KEY_VARIABLE}."),
    ] = None,
    api: Annotated[str, typer.Option(metavar="NAME", help="completions or chat.")] = "completions",
    rate: Annotated[
        list[float] | None,
        typer.Option(
            metavar="X", help="Mean requests a second, may be repeated; default: inf, all at once."
        ),
    ] = None,
    burstiness: Annotated[
        float | None,
        typer.Option(
            metavar="X", help="1, the default: Poisson arrivals; less: bursts; inf: even spacing."
        ),
    ] = None,
    max_concurrency: Annotated[
        int | None, count_option("Most requests under way; default: no limit.")
    ] = None,
    num_requests: Annotated[int, count_option("Requests at each rate.")] = 100,
    prompt_len: Annotated[
        str | None,
        typer.Option(
            metavar="DIST",
            help=f"Tokens: sharegpt, alpaca, MIN:MAX or one number; default: {DEFAULT_LENGTHS}.",
        ),
    ] = None,
    output_len: Annotated[
        str | None, typer.Option(metavar="DIST", help="Tokens of an answer, likewise.")
    ] = None,
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
        int | None, typer.Option(metavar="N", help="Seeds arrivals, lengths and words; default: 0.")
    ] = None,
    figure: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Draw the runs there, as SVG.")
    ] = None,
    dtype: Dtype = "auto",
    max_num_seqs: MaxNumSeqs = None,
    kv_cache_mb: KVCacheMB = None,
    cache_dir: CacheDir = None,
    as_json: AsJson = False,
) -> None:
    """TTFT, ITL, throughput and goodput of a server.

    Requests are streamed and sent on a schedule, whatever became of those before; tokens are
    counted by the server. Without --base-url our own server is started, and --dtype,
    --max-num-seqs, --kv-cache-mb and --cache-dir are for it. Lengths called sharegpt and alpaca
    are log-normal, with the means of those conversations.
    """
    from infra_lab.bench.arrivals import Arrivals
    from infra_lab.bench.openai_endpoint import first_model
    from infra_lab.bench.serving_plan import ServingPlan
    from infra_lab.bench.serving_report import parse_slo
    from infra_lab.bench.serving_requests import read_requests
    from infra_lab.figures import checked_figure_path

    figure = checked_figure_path(figure)
    shape = 1.0 if burstiness is None else burstiness
    arrivals = tuple(Arrivals(one, shape) for one in rate or [math.inf])
    are_all_at_once = all(math.isinf(one.rate_per_s) for one in arrivals)
    if are_all_at_once and burstiness is not None:
        raise UsageError("--burstiness is for arrivals with gaps between them: give a --rate, too")
    if prompts is not None:
        unused: dict[str, object] = {"--prompt-len": prompt_len, "--output-len": output_len}
        if are_all_at_once:
            unused["--seed"] = seed
        for option, value in unused.items():
            if value is not None:
                raise UsageError(f"{option} is for what is drawn: leave it or --prompts out")
    plan = ServingPlan(
        arrivals=arrivals,
        num_requests=num_requests,
        prompt_len=DEFAULT_LENGTHS if prompt_len is None else prompt_len,
        output_len=DEFAULT_LENGTHS if output_len is None else output_len,
        prompts=None if prompts is None else tuple(read_requests(prompts, DEFAULT_MAX_TOKENS)),
        api=api,
        max_concurrency=max_concurrency,
        ignore_eos=not respect_eos,
        temperature=temperature,
        timeout_s=timeout,
        seed=seed or 0,
        slo=None if slo is None else parse_slo(slo),
    )
    own = _own_options(dtype, max_num_seqs, kv_cache_mb, cache_dir)
    if base_url is not None and own:
        raise UsageError(f"{own[0]} is for our own server: leave it or --base-url out")
    if base_url is None and api_key is not None:
        raise UsageError("--api-key is for --base-url: our own server is started without one")
    key = _key(api_key) if base_url is not None else None
    with (
        _server(base_url, model or DEFAULT_MODEL, own) as url,
        steps_progress("requests") as notify,
    ):
        if model is None:
            model = DEFAULT_MODEL if base_url is None else asyncio.run(first_model(url, key))
        runs = asyncio.run(plan.run(url, model, key, notify))
    report = plan.report(base_url, model, runs)
    _show(report, as_json)
    if not any(run["completed"] for run in report["runs"]):
        raise InfraLabError(
            "no request was served: the notes say why"
            + ("" if figure is None else f"; {figure} was not drawn")
        )
    if figure is not None:
        from infra_lab.bench.serving_figure import draw_serving

        draw_serving(figure, runs, report["runs"])


def _key(given: str | None) -> str | None:
    """As clients of OpenAI do it: what is given, else what the environment has, if anything."""
    return os.environ.get(KEY_VARIABLE) or None if given is None else given


def _own_options(
    dtype: str, max_num_seqs: int | None, kv_cache_mb: int | None, cache_dir: Path | None
) -> list[str]:
    """Those given, as `infra-lab serve` takes them."""
    given = {
        "--dtype": None if dtype == "auto" else dtype,
        "--max-num-seqs": max_num_seqs,
        "--kv-cache-mb": kv_cache_mb,
        "--cache-dir": cache_dir,
    }
    return [str(part) for pair in given.items() if pair[1] is not None for part in pair]


def _server(base_url: str | None, model: str, options: list[str]) -> AbstractContextManager[str]:
    """The URL to measure; a server of our own runs until the block ends."""
    if base_url is not None:
        return nullcontext(base_url)
    from infra_lab.bench.server_process import serving
    from infra_lab.models.store import resolve

    cache_dir = dict(zip(options[::2], options[1::2], strict=True)).get("--cache-dir")
    resolve(model, None if cache_dir is None else Path(cache_dir))  # says what is wrong, if it is
    make_console(stderr=True).print(f"starting a server with {model}", markup=False)
    command = [sys.executable, "-m", "infra_lab", "serve", "--model", model, "--log-level", "error"]
    return serving([*command, *options])


def _show(report: dict[str, Any], as_json: bool) -> None:
    from infra_lab.bench.serving_tables import remarks, serving_table

    if as_json:
        print_json(report)
    else:
        print_table(serving_table(report))
    console = make_console(stderr=True)
    for remark in remarks(report):
        console.print(f"note: {remark}", markup=False)
