"""`infra-lab bench serve-peers`: our server and vLLM's under the same load, in turn."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from infra_lab.cli.bench_options import progress
from infra_lab.cli.options import AsJson, CacheDir, Dtype, Model, Threads, count_option
from infra_lab.cli.terminal import print_json, print_table
from infra_lab.errors import UsageError


def serve_peers(
    python: Annotated[
        str, typer.Option(metavar="FILE", help="The Python that has vllm, such as vllm/bin/python.")
    ],
    model: Model = "smollm2-135m",
    num_requests: Annotated[int, count_option("Requests in each round.")] = 48,
    max_concurrency: Annotated[
        int, count_option("Requests under way, all the time: the load is never less.")
    ] = 16,
    prompt_len: Annotated[
        str, typer.Option(metavar="DIST", help="As in `bench serve`.")
    ] = "32:256",
    output_len: Annotated[
        str, typer.Option(metavar="DIST", help="As in `bench serve`.")
    ] = "32:128",
    seed: Annotated[int, typer.Option(metavar="N", help="Seeds lengths and words.")] = 0,
    repeat: Annotated[int, count_option("Rounds: each runs both servers once.")] = 3,
    dtype: Dtype = "float32",
    max_model_len: Annotated[int, count_option("Context that vLLM is set up for.")] = 2048,
    threads: Threads = None,
    cache_dir: CacheDir = None,
    as_json: AsJson = False,
) -> None:
    """Our server beside vLLM's: throughput and ITL.

    The load is always as high as --max-concurrency allows. Both have the same requests and weights
    and run in turn, never at once, each round against fresh processes. --threads is for vLLM,
    which by default gets a thread for every core, as ours does.
    """
    from infra_lab.bench.arrivals import Arrivals
    from infra_lab.bench.engine import model_shape
    from infra_lab.bench.export import hugging_face_folder
    from infra_lab.bench.serving_peers import (
        compare_servers,
        comparison_report,
        own_server,
        vllm_server,
    )
    from infra_lab.bench.serving_plan import ServingPlan
    from infra_lab.bench.serving_tables import comparison_table
    from infra_lab.paths import default_cache_dir

    if dtype == "auto":
        raise UsageError("--dtype auto may mean another type to each server: name one")
    plan = ServingPlan(
        (Arrivals(math.inf),),
        num_requests,
        prompt_len,
        output_len,
        max_concurrency=max_concurrency,
        seed=seed,
    )
    path, _ = model_shape(model, cache_dir)
    say = progress()
    say("preparing the model")
    folder = hugging_face_folder(path, cache_dir or default_cache_dir())
    contenders = [
        own_server(folder, dtype, max_concurrency),
        vllm_server(python, folder, dtype, max_concurrency, max_model_len, threads),
    ]
    found = compare_servers(contenders, plan, repeat, say)
    report = comparison_report(plan, found, {"model": model, "dtype": dtype})
    if as_json:
        print_json(report)
    else:
        print_table(comparison_table(report))
