"""`infra-lab bench`: throughput, latency, serving, other engines, policies and preemption.

Tables go to stdout, progress to stderr; with `--json` stdout holds one JSON object.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from infra_lab.cli.bench_depth import beams, speculation
from infra_lab.cli.bench_options import (
    NumRequests,
    OutputLen,
    PromptLen,
    StreamOutputLen,
    StreamPromptLen,
    WorkloadSeed,
    progress,
)
from infra_lab.cli.bench_peers import peers
from infra_lab.cli.bench_serve import serve
from infra_lab.cli.bench_serve_peers import serve_peers
from infra_lab.cli.options import (
    AsJson,
    BlockSize,
    CacheDir,
    Command,
    DraftLayers,
    DraftModel,
    Dtype,
    KVCacheDtype,
    KVCacheMB,
    MaxNumBatchedTokens,
    MaxNumSeqs,
    Model,
    NumSpeculativeTokens,
    Speculative,
    Threads,
    count_option,
    new_app,
)
from infra_lab.cli.session import speculative_config
from infra_lab.cli.terminal import print_json, print_table
from infra_lab.config import DEFAULT_BLOCK_SIZE
from infra_lab.errors import UsageError
from infra_lab.models.catalog import DEFAULT_MODEL

app = new_app(
    help="Measure throughput and latency, here and beside other engines.",
    epilog="Example: infra-lab bench throughput",
)


@app.command(
    cls=Command, epilog="Example: infra-lab bench throughput --num-requests 32 --repeat 3 --json"
)
def throughput(
    model: Model = DEFAULT_MODEL,
    num_requests: NumRequests = 32,
    prompt_len: PromptLen = "32:256",
    output_len: OutputLen = "32:128",
    seed: WorkloadSeed = 0,
    repeat: Annotated[int, count_option("Timed runs; the median is reported.")] = 1,
    warmup: Annotated[
        int,
        count_option("Output tokens of each request in the run before; 0: no such run.", minimum=0),
    ] = 4,
    dtype: Dtype = "auto",
    threads: Threads = None,
    max_num_seqs: MaxNumSeqs = None,
    max_num_batched_tokens: MaxNumBatchedTokens = None,
    block_size: BlockSize = None,
    kv_cache_mb: KVCacheMB = None,
    kv_cache_dtype: KVCacheDtype = "auto",
    prefix_caching: Annotated[
        bool,
        typer.Option("--prefix-caching", help="Let repeated prompts be found in the cache."),
    ] = False,
    scheduling_policy: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="fcfs, sjf, priority or static; default: fcfs."),
    ] = None,
    swap_space_mb: Annotated[
        int | None, count_option("Host memory for preempted requests, in MB.", "--swap-space-mb")
    ] = None,
    speculative: Speculative = None,
    num_speculative_tokens: NumSpeculativeTokens = None,
    draft_model: DraftModel = None,
    draft_layers: DraftLayers = None,
    cache_dir: CacheDir = None,
    as_json: AsJson = False,
) -> None:
    """Tokens a second of a batch of requests.

    All requests are handed over at once; greedy, end-of-sequence ignored.
    """
    from infra_lab.bench.engine import EngineSettings, model_shape, open_engine
    from infra_lab.bench.steps import StepRecorder
    from infra_lab.bench.tables import throughput_table
    from infra_lab.bench.throughput import measure_throughput, throughput_report, warm_up
    from infra_lab.bench.workload import Workload, parse_range

    prompts = parse_range("--prompt-len", prompt_len)
    outputs = parse_range("--output-len", output_len)
    workload = Workload(num_requests, *prompts, *outputs, seed=seed)
    path, config = model_shape(model, cache_dir)
    workload = workload.for_model(config)
    settings = EngineSettings(
        dtype=dtype,
        threads=threads,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
        block_size=block_size,
        enable_prefix_caching=prefix_caching,
        scheduling_policy=scheduling_policy,
        swap_space_bytes=None if swap_space_mb is None else swap_space_mb * 1_000_000,
        kv_cache_bytes=None if kv_cache_mb is None else kv_cache_mb * 1_000_000,
        kv_cache_dtype=kv_cache_dtype,
        speculative=speculative_config(
            speculative, num_speculative_tokens, draft_model, draft_layers
        ),
    )
    say = progress()
    say(f"loading {model}")
    steps = StepRecorder()
    engine = open_engine(path, settings, steps, cache_dir)
    requests = workload.requests()
    if warmup:
        say("warming up")
        warm_up(engine, requests, warmup)
    steps.clear()
    runs = measure_throughput(engine, requests, repeat, say)
    report = throughput_report(model, config, workload, settings, runs, steps)
    if as_json:
        print_json(report)
    else:
        print_table(throughput_table(report))


@app.command(
    cls=Command,
    epilog="Example: infra-lab bench latency --prompt-len 64 --output-len 128 --repeat 5",
)
def latency(
    model: Model = DEFAULT_MODEL,
    prompt_len: StreamPromptLen = 64,
    output_len: StreamOutputLen = 128,
    seed: WorkloadSeed = 0,
    repeat: Annotated[int, count_option("Timed requests, one after another.")] = 3,
    dtype: Dtype = "auto",
    threads: Threads = None,
    kv_cache_dtype: KVCacheDtype = "auto",
    speculative: Speculative = None,
    num_speculative_tokens: NumSpeculativeTokens = None,
    draft_model: DraftModel = None,
    draft_layers: DraftLayers = None,
    cache_dir: CacheDir = None,
    as_json: AsJson = False,
) -> None:
    """TTFT, TPOT and ITL of a single stream.

    One request at a time. TPOT is (latency - TTFT) / (output tokens - 1); ITL are the gaps
    between tokens.
    """
    from infra_lab.bench.engine import EngineSettings, model_shape, open_engine
    from infra_lab.bench.latency import latency_report, measure_latency
    from infra_lab.bench.steps import StepRecorder
    from infra_lab.bench.tables import latency_table
    from infra_lab.bench.throughput import warm_up
    from infra_lab.bench.workload import Workload

    workload = Workload(repeat, prompt_len, prompt_len, output_len, output_len, seed=seed)
    path, config = model_shape(model, cache_dir)
    workload = workload.for_model(config)
    drafting = speculative_config(speculative, num_speculative_tokens, draft_model, draft_layers)
    settings = EngineSettings(
        dtype=dtype, threads=threads, kv_cache_dtype=kv_cache_dtype, speculative=drafting
    )
    say = progress()
    say(f"loading {model}")
    steps = StepRecorder()
    engine = open_engine(path, settings, steps, cache_dir)
    requests = workload.requests()
    say("warming up")
    warm_up(engine, requests[:1])
    runs = measure_latency(engine, requests, steps, say)
    report = latency_report(model, config, requests, settings, runs)
    if as_json:
        print_json(report)
    else:
        print_table(latency_table(report))


@app.command(
    cls=Command,
    epilog="Example: infra-lab bench perplexity --kv-cache-dtype int8_per_channel_keys --budget 20",
)
def perplexity(
    model: Model = DEFAULT_MODEL,
    text: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The text; default: a story that comes with this."),
    ] = None,
    kv_cache_dtype: Annotated[
        list[str] | None,
        typer.Option(metavar="TYPE", help="A format, may be repeated; default: all there are."),
    ] = None,
    budget: Annotated[
        list[int] | None,
        typer.Option(metavar="PERCENT", help="Keep so much of a window; may be repeated."),
    ] = None,
    window: Annotated[
        int | None,
        count_option("Tokens scored together; default: 2048, or as many as fit.", minimum=2),
    ] = None,
    block_size: BlockSize = None,
    dtype: Dtype = "auto",
    threads: Threads = None,
    cache_dir: CacheDir = None,
    as_json: AsJson = False,
) -> None:
    """What a smaller KV cache costs: bytes, and perplexity on a text.

    Each format is compared with the full cache in the model's type.
    """
    from infra_lab.bench.engine import EngineSettings, model_shape
    from infra_lab.bench.perplexity import (
        DEFAULT_WINDOW,
        measure_cache_quality,
        perplexity_report,
        read_text,
    )
    from infra_lab.bench.tables import perplexity_table
    from infra_lab.config import KV_CACHE_DTYPES

    for percent in budget or ():
        if not 1 <= percent <= 100:
            raise UsageError(f"--budget must be from 1 to 100 percent, not {percent}")
    for name in kv_cache_dtype or ():
        if name not in KV_CACHE_DTYPES:
            raise UsageError(f"no kv_cache_dtype {name!r}: there are {', '.join(KV_CACHE_DTYPES)}")
    content = read_text(text)
    path, config = model_shape(model, cache_dir)
    if window is None:
        window = min(DEFAULT_WINDOW, config.max_position_embeddings - 1)
    if window >= config.max_position_embeddings:
        raise UsageError(
            f"--window {window} does not fit the model's context of "
            f"{config.max_position_embeddings} tokens, one of them for an output: give less"
        )
    settings = EngineSettings(dtype=dtype, threads=threads, block_size=block_size)
    formats = [name for name in kv_cache_dtype or KV_CACHE_DTYPES if name != "auto"]
    qualities = measure_cache_quality(
        path, settings, content, window, formats, budget or [], progress()
    )
    report = perplexity_report(model, "its story" if text is None else text.name, window, qualities)
    if as_json:
        print_json(report)
    else:
        print_table(perplexity_table(report))


@app.command(
    cls=Command, epilog="Example: infra-lab bench policies --policy fcfs --policy static --rate 1"
)
def policies(
    policy: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="fcfs, sjf, priority or static; default: all."),
    ] = None,
    num_requests: NumRequests = 400,
    rate: Annotated[
        float, typer.Option(metavar="X", help="Mean arrivals a second; 0: all at once.")
    ] = 2.2,
    seed: Annotated[int, typer.Option(metavar="N", help="Seeds arrivals and lengths.")] = 0,
    aging_steps: Annotated[
        int | None,
        count_option("Steps of waiting worth a priority level or a token; 0: none.", minimum=0),
    ] = None,
    max_num_seqs: Annotated[int, count_option("Requests that may run in one step.")] = 16,
    max_num_batched_tokens: Annotated[int, count_option("Tokens that one step may compute.")] = 256,
    num_blocks: Annotated[
        int, count_option(f"Blocks of {DEFAULT_BLOCK_SIZE} tokens in the KV pool.")
    ] = 256,
    as_json: AsJson = False,
) -> None:
    """Latency by scheduling policy, on one trace.

    The engine's own scheduler serves it, on a clock that a model of the step time moves: no model
    is loaded and the figures are the same everywhere. A tenth of the requests is urgent.
    """
    from infra_lab.bench.policies import StepCost, policies_report
    from infra_lab.bench.tables import policies_table
    from infra_lab.config import SCHEDULING_POLICIES, EngineConfig
    from infra_lab.engine.traces import Trace

    config = EngineConfig(
        num_blocks=num_blocks,
        max_num_seqs=max_num_seqs,
        max_num_batched_tokens=max_num_batched_tokens,
    )
    trace = Trace(num_requests, rate, seed)
    report = policies_report(trace, config, StepCost(), policy or SCHEDULING_POLICIES, aging_steps)
    if as_json:
        print_json(report)
    else:
        print_table(policies_table(report))


@app.command(cls=Command, epilog="Example: infra-lab bench resume --tokens 128 --tokens 1024")
def resume(
    model: Model = DEFAULT_MODEL,
    tokens: Annotated[
        list[int] | None,
        typer.Option(metavar="N", help="Length of the request; may be repeated."),
    ] = None,
    seed: Annotated[int, typer.Option(metavar="N", help="Seeds the token ids.")] = 0,
    repeat: Annotated[int, count_option("Preemptions at each length; medians are shown.")] = 3,
    dtype: Dtype = "auto",
    cache_dir: CacheDir = None,
    as_json: AsJson = False,
) -> None:
    """What a preempted request waits for: swapped in, or computed again."""
    from infra_lab.bench.engine import EngineSettings, effective_dtype, model_shape
    from infra_lab.bench.resume import checked_lengths, compare_resume, resume_report
    from infra_lab.bench.tables import resume_table

    path, config = model_shape(model, cache_dir)
    lengths = checked_lengths(tokens or [64, 256, 1024], config)
    runs = compare_resume(path, lengths, repeat, dtype, seed, config, progress())
    used = effective_dtype(EngineSettings(dtype=dtype), config)
    report = resume_report(model, used, lengths, repeat, runs)
    if as_json:
        print_json(report)
    else:
        print_table(resume_table(report))


app.command(
    cls=Command, epilog="Example: infra-lab bench serve --rate 1 --rate 2 --slo ttft=500,tpot=60"
)(serve)
app.command(
    name="serve-peers",
    cls=Command,
    epilog="Example: infra-lab bench serve-peers --python ~/vllm/bin/python --repeat 3",
)(serve_peers)
app.command(cls=Command, epilog="Example: infra-lab bench speculation --batch 1")(speculation)
app.command(cls=Command, epilog="Example: infra-lab bench beams --width 4")(beams)
app.command(
    cls=Command,
    epilog="Example: infra-lab bench peers --peer vllm --python ~/vllm/bin/python "
    "--peer transformers --repeat 3",
)(peers)
