"""`infra-lab bench`: throughput, latency, and both beside other engines.

Tables go to stdout, progress to stderr; with `--json` stdout holds one JSON object.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from infra_lab.cli.terminal import make_console, print_json
from infra_lab.errors import InfraLabError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

app = typer.Typer(
    name="bench",
    help="Measure throughput and latency, here and beside other engines.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["--help", "-h"]},
    epilog="Example: infra-lab bench throughput",
)

Model = Annotated[
    str, typer.Option(help="A name from `infra-lab models list`, a folder, a .gguf file, a hub id.")
]
CacheDir = Annotated[
    Path | None,
    typer.Option("--cache-dir", help="Cache folder; default: $INFRA_LAB_CACHE or the system's."),
]
AsJson = Annotated[bool, typer.Option("--json", help="Print one JSON object and nothing else.")]
NumRequests = Annotated[int, typer.Option(help="Requests in the batch.")]
PromptLen = Annotated[str, typer.Option(help="Prompt tokens: MIN:MAX, or one number.")]
OutputLen = Annotated[str, typer.Option(help="Output tokens: MIN:MAX, or one number.")]
StreamPromptLen = Annotated[int, typer.Option(help="Prompt tokens of a single-stream request.")]
StreamOutputLen = Annotated[int, typer.Option(help="Output tokens of a single-stream request.")]
Seed = Annotated[int, typer.Option(help="Seeds lengths and token ids.")]
Threads = Annotated[
    int | None, typer.Option(help="Threads for arithmetic; default: the engine's own choice.")
]
Dtype = Annotated[str, typer.Option(help="auto, float32, bfloat16 or float16.")]
MaxNumSeqs = Annotated[int | None, typer.Option(help="Requests that may run in one step.")]
MaxTokens = Annotated[
    int | None,
    typer.Option("--max-num-batched-tokens", help="Tokens that one step may compute."),
]
BlockSize = Annotated[int | None, typer.Option(help="Tokens in one KV-cache block.")]


@app.command(epilog="Example: infra-lab bench throughput --num-requests 32 --repeat 3 --json")
def throughput(
    model: Model = "smollm2-135m",
    num_requests: NumRequests = 32,
    prompt_len: PromptLen = "32:256",
    output_len: OutputLen = "32:128",
    seed: Seed = 0,
    repeat: Annotated[int, typer.Option(help="Timed runs; the median is reported.")] = 1,
    warmup: Annotated[
        int, typer.Option(help="Output tokens of each request in the run before; 0: no such run.")
    ] = 4,
    dtype: Dtype = "auto",
    threads: Threads = None,
    max_num_seqs: MaxNumSeqs = None,
    max_num_batched_tokens: MaxTokens = None,
    block_size: BlockSize = None,
    prefix_caching: Annotated[
        bool, typer.Option(help="Let repeated prompts be found in the cache.")
    ] = False,
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

    _require_at_least("--repeat", repeat, 1)
    _require_at_least("--warmup", warmup, 0)
    _require_threads(threads)
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
    )
    say = _progress()
    say(f"loading {model}")
    steps = StepRecorder()
    engine = open_engine(path, settings, steps)
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
        make_console().print(throughput_table(report))


@app.command(epilog="Example: infra-lab bench latency --prompt-len 64 --output-len 128 --repeat 5")
def latency(
    model: Model = "smollm2-135m",
    prompt_len: StreamPromptLen = 64,
    output_len: StreamOutputLen = 128,
    seed: Seed = 0,
    repeat: Annotated[int, typer.Option(help="Timed requests, one after another.")] = 3,
    dtype: Dtype = "auto",
    threads: Threads = None,
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

    _require_at_least("--repeat", repeat, 1)
    _require_threads(threads)
    workload = Workload(repeat, prompt_len, prompt_len, output_len, output_len, seed=seed)
    path, config = model_shape(model, cache_dir)
    workload = workload.for_model(config)
    settings = EngineSettings(dtype=dtype, threads=threads)
    say = _progress()
    say(f"loading {model}")
    steps = StepRecorder()
    engine = open_engine(path, settings, steps)
    requests = workload.requests()
    say("warming up")
    warm_up(engine, requests[:1])
    runs = measure_latency(engine, requests, steps, say)
    report = latency_report(model, config, requests, settings, runs)
    if as_json:
        print_json(report)
    else:
        make_console().print(latency_table(report))


@app.command(
    epilog="Example: infra-lab bench peers --peer vllm --python ~/vllm/bin/python "
    "--peer transformers --repeat 3"
)
def peers(
    peer: Annotated[
        list[str] | None, typer.Option(help="vllm, transformers or llama.cpp; may be repeated.")
    ] = None,
    python: Annotated[
        list[str] | None,
        typer.Option(help="The Python that has the peer; one a peer, in order."),
    ] = None,
    model: Model = "smollm2-135m",
    num_requests: NumRequests = 32,
    prompt_len: PromptLen = "32:256",
    output_len: OutputLen = "32:128",
    stream_prompt_len: StreamPromptLen = 64,
    stream_output_len: StreamOutputLen = 128,
    streams: Annotated[int, typer.Option(help="Single-stream requests in each run.")] = 2,
    seed: Seed = 0,
    repeat: Annotated[int, typer.Option(help="Rounds: each runs every engine once.")] = 3,
    dtype: Dtype = "float32",
    threads: Threads = None,
    timeout: Annotated[float, typer.Option(help="Seconds that one run may take.")] = 1800.0,
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

    _require_at_least("--repeat", repeat, 1)
    _require_threads(threads)
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
    say = _progress()
    contenders = contenders_for(pairs, path, cache_dir, say)
    comparison = compare(contenders, job, repeat, partial(run_in_child, timeout_s=timeout), say)
    report = comparison_report(comparison)
    if as_json:
        print_json(report)
    else:
        console = make_console()
        for table in comparison_tables(report):
            console.print(table)
    if comparison.failures:
        reasons = [f"{name}: {reason}" for name, reason in comparison.failures.items()]
        raise InfraLabError("an engine did not finish.\n" + "\n".join(reasons))


def _progress() -> Callable[[str], None]:
    console = make_console(stderr=True)
    return lambda message: console.print(message, markup=False)


def _require_at_least(name: str, value: int, minimum: int) -> None:
    if value < minimum:
        raise UsageError(f"{name} must be at least {minimum}, not {value}")


def _require_threads(threads: int | None) -> None:
    if threads is not None:
        _require_at_least("--threads", threads, 1)
