"""`infra-lab bench peers`: our engine and others on the same work, side by side."""

from __future__ import annotations

from typing import Annotated

import typer

from infra_lab.cli.bench_options import (
    NumRequests,
    OutputLen,
    PromptLen,
    StreamOutputLen,
    StreamPromptLen,
    WorkloadSeed,
    progress,
)
from infra_lab.cli.options import AsJson, CacheDir, Dtype, Model, Threads, count_option
from infra_lab.cli.terminal import print_json, print_table
from infra_lab.errors import InfraLabError, UsageError
from infra_lab.models.catalog import DEFAULT_MODEL


def peers(
    peer: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="vllm, transformers or llama.cpp; may be repeated."),
    ] = None,
    python: Annotated[
        list[str] | None,
        typer.Option(metavar="FILE", help="The Python that has the peer; one a peer, in order."),
    ] = None,
    model: Model = DEFAULT_MODEL,
    num_requests: NumRequests = 32,
    prompt_len: PromptLen = "32:256",
    output_len: OutputLen = "32:128",
    stream_prompt_len: StreamPromptLen = 64,
    stream_output_len: StreamOutputLen = 128,
    streams: Annotated[
        int, typer.Option(metavar="N", help="Single-stream requests in each run.")
    ] = 2,
    seed: WorkloadSeed = 0,
    repeat: Annotated[int, count_option("Rounds: each runs every engine once.")] = 3,
    dtype: Dtype = "float32",
    threads: Threads = None,
    timeout: Annotated[
        float, typer.Option(metavar="SECONDS", help="What one run may take.")
    ] = 1800.0,
    cache_dir: CacheDir = None,
    as_json: AsJson = False,
) -> None:
    """Our engine beside others, on the same token ids.

    All run in turn, each run in a fresh process. A peer runs under a Python of its own, so that
    its packages need not agree with ours. vllm and transformers get the weights in fp32,
    dequantized once; llama.cpp reads the quantized .gguf file itself.
    """
    from functools import partial

    from infra_lab.bench.comparison import comparison_report
    from infra_lab.bench.contenders import contenders_for, job_for, pair_peers_with_pythons
    from infra_lab.bench.engine import model_shape
    from infra_lab.bench.peers import compare, run_in_child
    from infra_lab.bench.tables import comparison_tables
    from infra_lab.bench.workload import Workload, parse_range

    if dtype == "auto":
        raise UsageError("--dtype auto may mean another type to each engine: name one")
    pairs = pair_peers_with_pythons(peer or [], python or [])
    prompts = parse_range("--prompt-len", prompt_len)
    outputs = parse_range("--output-len", output_len)
    batch = Workload(num_requests, *prompts, *outputs, seed=seed)
    stream_lengths = (stream_prompt_len, stream_prompt_len, stream_output_len, stream_output_len)
    stream = Workload(streams, *stream_lengths, seed=seed + 1)
    path, config = model_shape(model, cache_dir)
    job = job_for(batch, stream, config, dtype, threads)
    say = progress()
    contenders = contenders_for(pairs, path, cache_dir, say)
    comparison = compare(contenders, job, repeat, partial(run_in_child, timeout_s=timeout), say)
    report = comparison_report(comparison)
    if as_json:
        print_json(report)
    else:
        for table in comparison_tables(report):
            print_table(table)
    if comparison.failures:
        reasons = [f"{name}: {reason}" for name, reason in comparison.failures.items()]
        raise InfraLabError("an engine did not finish.\n" + "\n".join(reasons))
