"""`infra-lab bench serve-peers`: our server and vLLM's under the same load, in turn."""

from __future__ import annotations

import math
from typing import Annotated

import typer

from infra_lab.cli.bench_options import progress
from infra_lab.cli.options import AsJson, CacheDir, Dtype, Model, count_option
from infra_lab.cli.terminal import print_json, print_table
from infra_lab.errors import UsageError
from infra_lab.models.catalog import DEFAULT_MODEL


def serve_peers(
    python: Annotated[
        str, typer.Option(metavar="FILE", help="The Python that has vllm, such as vllm/bin/python.")
    ],
    model: Model = DEFAULT_MODEL,
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
    max_model_len: Annotated[int, count_option("Most tokens of prompt and answer.")] = 2048,
    max_num_batched_tokens: Annotated[int, count_option("Tokens that one step may compute.")] = 128,
    threads: Annotated[
        int | None, count_option("Threads for arithmetic; default: one for every core.")
    ] = None,
    cache_dir: CacheDir = None,
    as_json: AsJson = False,
) -> None:
    """Our server beside vLLM's: throughput and ITL.

    The load is always as high as --max-concurrency allows. Both have the same requests, weights,
    KV-cache memory, context, budget of a step and threads, and run in turn, never at once, each
    round against fresh processes.
    """
    from infra_lab.bench.arrivals import Arrivals
    from infra_lab.bench.engine import model_shape
    from infra_lab.bench.export import hugging_face_folder
    from infra_lab.bench.serving_peers import (
        SHORTEST_OUTPUT,
        ServerSetup,
        compare_servers,
        comparison_report,
        own_server,
        require_vllm,
        vllm_server,
    )
    from infra_lab.bench.serving_plan import ServingPlan
    from infra_lab.bench.serving_requests import parse_lengths
    from infra_lab.bench.serving_tables import comparison_table
    from infra_lab.bench.system import usable_cores
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
    if (shortest := parse_lengths("--output-len", output_len, 1).low) < SHORTEST_OUTPUT:
        raise UsageError(
            f"--output-len must be at least {SHORTEST_OUTPUT}, not {shortest}: shorter answers "
            f"have no pace that could be compared"
        )
    if max_concurrency > max_num_batched_tokens:
        raise UsageError(
            f"--max-num-batched-tokens must be at least --max-concurrency, {max_concurrency}, not "
            f"{max_num_batched_tokens}: every request under way needs one of a step's tokens"
        )
    if threads is not None and threads > usable_cores():
        raise UsageError(f"--threads must be at most {usable_cores()}, the cores there are")
    path, config = model_shape(model, cache_dir)
    if max_model_len > config.max_position_embeddings:
        raise UsageError(
            f"--max-model-len {max_model_len} is more than the model's context: give at most "
            f"{config.max_position_embeddings}"
        )
    require_vllm(python)
    setup = ServerSetup(
        dtype, max_concurrency, max_model_len, max_num_batched_tokens, threads or usable_cores()
    )
    say = progress()
    say("preparing the model")
    folder = hugging_face_folder(path, cache_dir or default_cache_dir())
    contenders = [
        own_server(folder, setup),
        vllm_server(python, folder, setup),
    ]
    found = compare_servers(contenders, plan, repeat, say)
    report = comparison_report(plan, found, model, setup)
    if as_json:
        print_json(report)
    else:
        print_table(comparison_table(report))
