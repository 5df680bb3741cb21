"""`infra-lab calc`: what a model costs in memory and time, with the working shown.

Answers "how much KV cache, how many requests, how fast at best, what does another GPU bring?" on
the command line; the formulae are those of `infra_lab.calculators`.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated

import typer

from infra_lab.calculators.capacity import DEFAULT_UTILIZATION
from infra_lab.calculators.checks import (
    require_efficiency,
    require_not_negative,
    require_positive,
    require_share,
    require_within,
)
from infra_lab.calculators.formats import number_format
from infra_lab.calculators.kv_cache import cache_format
from infra_lab.calculators.roofline import Setting, default_operands
from infra_lab.calculators.units import GB, GIB
from infra_lab.cli import calc_reports as reports
from infra_lab.cli import calc_view as view
from infra_lab.cli.calc_inputs import (
    GPU,
    Cache,
    Efficiency,
    HeadDim,
    Heads,
    KVHeads,
    Layers,
    ModelName,
    Operands,
    Weights,
    at_least_zero,
    known_devices,
    known_models,
    wanted_device,
    wanted_model,
)
from infra_lab.cli.options import AsJson, CacheDir, Command, count_option, new_app
from infra_lab.cli.terminal import print_json
from infra_lab.config import DEFAULT_BLOCK_SIZE

app = new_app(
    help="Compute memory, speed and size from a model's shape, with the working shown.",
    epilog="Example: infra-lab calc kv llama-2-70b --tokens 4096",
)

_MOST_DRAFTS = 64
_MICROSECOND = 1e-6

BlockSize = Annotated[int, count_option("Tokens in one KV-cache block.")]
NumGPUs = Annotated[int, count_option("GPUs that split everything evenly.", "--gpus")]
Context = Annotated[int, count_option("Tokens that each request has when it decodes.")]


@app.command(cls=Command, epilog="Example: infra-lab calc kv llama-2-70b --tokens 4096")
def kv(
    model: ModelName = None,
    tokens: Annotated[int, at_least_zero("Tokens of one request.")] = 4096,
    requests: Annotated[int, at_least_zero("Requests at once.")] = 1,
    cache: Cache = "bf16",
    block_size: BlockSize = DEFAULT_BLOCK_SIZE,
    layers: Layers = None,
    heads: Heads = None,
    kv_heads: KVHeads = None,
    head_dim: HeadDim = None,
    cache_dir: CacheDir = None,
    as_json: AsJson = False,
) -> None:
    """Bytes of KV cache: a token, a request, all of them, and in other formats."""
    shape = wanted_model(model, layers, heads, kv_heads, head_dim, cache_dir)
    number = cache_format(cache, shape)
    report = reports.kv_report(shape, tokens, requests, number, block_size)
    if as_json:
        print_json(report)
    else:
        view.print_kv(report, shape, number)


@app.command(cls=Command, epilog="Example: infra-lab calc roofline llama-2-70b --gpu h100 --gpus 2")
def roofline(
    model: ModelName = None,
    gpu: GPU = "a100-80gb",
    gpus: NumGPUs = 1,
    weights: Weights = "bf16",
    cache: Cache = "bf16",
    operands: Operands = None,
    prompt: Annotated[int, count_option("Tokens of the prompt.")] = 4096,
    cached: Annotated[int, at_least_zero("Of these, found in the prefix cache.")] = 0,
    context: Context = 4096,
    batch: Annotated[
        list[int] | None,
        typer.Option(metavar="N", help="Requests in a decode step, may be repeated."),
    ] = None,
    compute_efficiency: Efficiency = 1.0,
    bandwidth_efficiency: Efficiency = 1.0,
    cache_dir: CacheDir = None,
    as_json: AsJson = False,
) -> None:
    """The times that prefill and decode cannot go below, and what bounds them."""
    batches = batch or [1, 8, 32, 128, 512]
    for size in batches:
        require_positive("--batch", size)
    require_efficiency("--compute-efficiency", compute_efficiency)
    require_efficiency("--bandwidth-efficiency", bandwidth_efficiency)
    shape = wanted_model(model, cache_dir=cache_dir)
    number = number_format(weights)
    setting = Setting(
        wanted_device(gpu),
        number,
        cache_format(cache, shape),
        operands or default_operands(number),
        gpus,
        compute_efficiency,
        bandwidth_efficiency,
    )
    report = reports.roofline_report(shape, setting, prompt, cached, context, batches)
    if as_json:
        print_json(report)
    else:
        view.print_roofline(report, shape)


@app.command(
    cls=Command, epilog="Example: infra-lab calc fit llama-2-70b --gpu a100 --weights int4-g128"
)
def fit(
    model: ModelName = None,
    gpu: GPU = "a100-80gb",
    gpus: NumGPUs = 1,
    weights: Weights = "bf16",
    cache: Cache = "bf16",
    tokens: Annotated[int, count_option("Tokens of one request.")] = 4096,
    block_size: BlockSize = DEFAULT_BLOCK_SIZE,
    utilization: Annotated[
        float, typer.Option(metavar="X", help="Share of the memory that may be used.")
    ] = DEFAULT_UTILIZATION,
    memory_gib: Annotated[
        float | None,
        typer.Option(
            metavar="GIB", help="Memory of a GPU as its driver reports it; default: as sold, in GB."
        ),
    ] = None,
    other_gb: Annotated[
        float, typer.Option(metavar="GB", help="Set aside: activations, graphs, buffers.")
    ] = 0.0,
    cache_dir: CacheDir = None,
    as_json: AsJson = False,
) -> None:
    """Does it fit, and how many requests at once?"""
    require_efficiency("--utilization", utilization)
    require_not_negative("--other-gb", other_gb)
    shape = wanted_model(model, cache_dir=cache_dir)
    found = wanted_device(gpu)
    if memory_gib is not None:
        require_positive("--memory-gib", memory_gib)
        found = replace(found, memory_bytes=round(memory_gib * GIB))
    report = reports.fit_report(
        shape,
        found,
        gpus,
        number_format(weights),
        cache_format(cache, shape),
        tokens,
        block_size,
        utilization,
        other_gb * GB,
    )
    if as_json:
        print_json(report)
    else:
        view.print_fit(report, shape)


@app.command(
    cls=Command, epilog="Example: infra-lab calc speculate --acceptance 0.8 --drafts 5 --cost 0.1"
)
def speculate(
    acceptance: Annotated[
        float, typer.Option(metavar="X", help="Probability that a draft is accepted, 0 to 1.")
    ] = 0.8,
    drafts: Annotated[int, count_option("Tokens drafted for a step.")] = 5,
    cost: Annotated[
        float, typer.Option(metavar="X", help="A run of the draft model, in runs of the target.")
    ] = 0.1,
    verify_cost: Annotated[
        float,
        typer.Option(metavar="X", help="The target's run over all drafts, in runs over one token."),
    ] = 1.0,
    most: Annotated[int, count_option("Try up to so many drafts.")] = 10,
    as_json: AsJson = False,
) -> None:
    """Tokens a step and speed-up of speculative decoding, and the best number of drafts."""
    require_within("--most", most, _MOST_DRAFTS)
    require_share("--acceptance", acceptance)
    require_not_negative("--cost", cost)
    require_positive("--verify-cost", verify_cost)
    report = reports.speculate_report(acceptance, drafts, cost, verify_cost, most)
    if as_json:
        print_json(report)
    else:
        view.print_speculate(report)


@app.command(cls=Command, epilog="Example: infra-lab calc parallel llama-2-70b --tp 8 --batch 1")
def parallel(
    model: ModelName = None,
    gpu: GPU = "a100-80gb",
    tp: Annotated[int, count_option("GPUs that split every matrix.", "--tp")] = 8,
    pp: Annotated[int, count_option("Stages that split the layers.", "--pp")] = 1,
    micro_batches: Annotated[int, count_option("Micro-batches that fill the stages.")] = 4,
    weights: Weights = "bf16",
    cache: Cache = "bf16",
    batch: Annotated[int, count_option("Requests in a decode step.")] = 1,
    context: Context = 4096,
    latency_us: Annotated[
        float, typer.Option(metavar="US", help="Start-up of one hop of a message.")
    ] = 1.0,
    network_gb: Annotated[
        float, typer.Option(metavar="GB", help="GB/s from a prefill to a decode instance.")
    ] = 50.0,
    cache_dir: CacheDir = None,
    as_json: AsJson = False,
) -> None:
    """What tensor and pipeline parallelism send, and what that costs a step."""
    require_not_negative("--latency-us", latency_us)
    require_positive("--network-gb", network_gb)
    shape = wanted_model(model, cache_dir=cache_dir)
    number = number_format(weights)
    setting = Setting(
        wanted_device(gpu), number, cache_format(cache, shape), default_operands(number), tp
    )
    report = reports.parallel_report(
        shape,
        setting,
        pp,
        micro_batches,
        batch,
        context,
        latency_us * _MICROSECOND,
        network_gb * GB,
    )
    if as_json:
        print_json(report)
    else:
        view.print_parallel(report, shape)


@app.command(cls=Command, epilog="Example: infra-lab calc models --json")
def models(as_json: AsJson = False) -> None:
    """The models that calc knows by name."""
    facts = [reports.model_facts(one) for one in known_models()]
    if as_json:
        print_json(facts)
        return
    view.print_models(facts)


@app.command(cls=Command, epilog="Example: infra-lab calc gpus --json")
def gpus(as_json: AsJson = False) -> None:
    """The GPUs that calc knows, dense peaks and links one way, and where the numbers are from."""
    devices = known_devices()
    if as_json:
        print_json([reports.device_facts(one) for one in devices])
        return
    view.print_devices(devices)
