"""The tables of `infra-lab calc`: every result beside the product that it came from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from infra_lab.calculators.formats import NumberFormat
from infra_lab.calculators.hardware import Device
from infra_lab.calculators.kv_cache import working
from infra_lab.calculators.models import Model
from infra_lab.calculators.units import (
    TERA,
    binary_text,
    bytes_text,
    decimal_text,
    flops_text,
    rate_text,
    seconds_text,
)
from infra_lab.cli.terminal import counted, make_console, print_table

Row = tuple[str, str]
_NAMES = ("name", "cache", "id", "topic")  # heads of columns that hold words


def print_facts(title: str, rows: Sequence[Row]) -> None:
    """Two columns: what, and how much."""
    from rich.table import Table
    from rich.text import Text

    make_console().print(Text(title, "bold"), soft_wrap=True)
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(no_wrap=True, style="dim")
    table.add_column(overflow="fold")
    for label, value in rows:
        table.add_row(label, value)
    print_table(table)


def print_columns(heads: Sequence[str], rows: Sequence[Sequence[str]], mark: int = -1) -> None:
    """Right-aligned figures under their heads; the row `mark` stands out in a terminal."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False)
    for head in heads:
        table.add_column(head, justify="left" if head in _NAMES else "right", no_wrap=True)
    for index, row in enumerate(rows):
        table.add_row(*row, style="bold green" if index == mark else None)
    print_table(table)


def model_line(model: Model) -> str:
    if model.latent is not None:
        heads = f"{model.num_query_heads} heads, latent of {model.latent.kv_rank}"
    else:
        heads = (
            f"{counted(model.num_query_heads, 'query head')}, "
            f"{counted(model.num_kv_heads, 'KV head')} of {model.head_dim}"
        )
    return f"{model.title}: {model.attention_kind}, {counted(model.num_layers, 'layer')}, {heads}"


def print_kv(report: dict[str, Any], model: Model, number: NumberFormat) -> None:
    tokens, requests = report["tokens"], report["requests"]
    rows = [
        ("one token", _product(working(model, 1, 1, number), report["bytes_per_token"])),
        ("one request", _product(working(model, tokens, 1, number), report["bytes_per_request"])),
    ]
    if requests != 1:
        text = _product(working(model, tokens, requests, number), report["bytes_in_all"])
        rows.append((f"{requests:,} requests", text))
    blocks = counted(report["blocks_per_request"], "block")
    rows += [
        ("one block", f"{report['block_size']} tokens: {bytes_text(report['block_bytes'])}"),
        (
            "in blocks",
            f"{blocks}, {report['unused_slots_of_last_block']} of the last one's slots unused: "
            f"{bytes_text(report['paged_bytes_per_request'])}",
        ),
    ]
    print_facts(model_line(model), rows)
    formats = report["bytes_per_request_by_format"]
    print_columns(
        ("cache", "decimal", "binary", "of bf16"),
        [
            (name, decimal_text(size), binary_text(size), _share(size, formats["bf16"]))
            for name, size in formats.items()
        ],
    )


def print_roofline(report: dict[str, Any], model: Model) -> None:
    first = report["ttft"]
    computed = report["prompt_tokens"] - report["cached_tokens"]
    limit, crossover = report["intensity_limit_flops_per_byte"], report["crossover_batch"]
    if crossover is not None:
        turning = f"decode is bound by arithmetic from a batch of {crossover:,.0f} on"
    elif model.experts is not None:
        turning = "depends on which experts a batch meets: see the rows"
    else:
        turning = (
            f"never: an endless batch does {limit:.1f} FLOP for each byte, the ridge is at "
            f"{report['ridge_flops_per_byte']:.1f}"
        )
    rows = [
        ("hardware", f"{report['gpus']} x {report['gpu']}"),
        (
            "ridge",
            f"{flops_text(report['flops_per_s'])}/s / {rate_text(report['bytes_per_s'])} "
            f"= {report['ridge_flops_per_byte']:.1f} FLOP/byte ({report['operands']})",
        ),
        (
            "prefill",
            f"{computed:,} of {report['prompt_tokens']:,} tokens computed: "
            f"{flops_text(report['prefill_flops'])}",
        ),
        (
            "TTFT floor",
            f"{seconds_text(first['floor_s'])} (compute {seconds_text(first['compute_s'])}, "
            f"memory {seconds_text(first['memory_s'])}: {first['bound']} bound)",
        ),
        ("crossover", turning),
    ]
    print_facts(f"{model_line(model)}, weights in {report['weights']}", rows)
    print_columns(
        ("batch", "weights", "KV cache", "FLOP/byte", "compute", "memory", "bound", "tokens/s"),
        [
            (
                f"{row['batch']:,}",
                decimal_text(row["weight_bytes"]),
                decimal_text(row["cache_bytes"]),
                f"{row['intensity_flops_per_byte']:.1f}",
                seconds_text(row["compute_s"]),
                seconds_text(row["memory_s"]),
                row["bound"],
                f"{row['tokens_per_s']:,.0f}",
            )
            for row in report["decode"]
        ],
    )


def print_fit(report: dict[str, Any], model: Model) -> None:
    gpus = report["gpus"]
    rows = [
        (
            "budget",
            f"{gpus} x {decimal_text(report['memory_bytes_per_gpu'])} x {report['utilization']:g} "
            f"= {bytes_text(report['budget_bytes'])}",
        ),
        (
            "weights",
            f"{report['bits_per_weight']:g} bits in the layers "
            f"{decimal_text(report['quantized_weight_bytes'])} + the rest "
            f"{decimal_text(report['other_weight_bytes'])} "
            f"= {bytes_text(report['weight_bytes'])}",
        ),
    ]
    if report["other_bytes"]:
        rows.append(("set aside", bytes_text(report["other_bytes"])))
    if report["cache_bytes"] < 0:
        rows.append(("left for KV", f"none: {decimal_text(-report['cache_bytes'])} are missing"))
    else:
        rows.append(("left for KV", bytes_text(report["cache_bytes"])))
    copies = report["cache_copies"]
    copied = f", held {copies:g} times" if copies != 1 else ""
    rows += [
        (
            "one request",
            f"{report['tokens']:,} tokens{copied}: {bytes_text(report['bytes_per_request'])}",
        ),
        ("at once", _requests(report)),
    ]
    print_facts(f"{model_line(model)} on {report['gpu']}", rows)


def _requests(report: dict[str, Any]) -> str:
    if report["fits"]:
        ratio = (
            f"{decimal_text(report['cache_bytes'])} / {decimal_text(report['bytes_per_request'])}"
        )
        return f"{ratio} = {report['exact_requests']:.1f}: {counted(report['requests'], 'request')}"
    bits = report["most_bits_per_weight"]
    narrower = f", or weights of at most {bits:.2f} bits" if bits is not None and bits >= 1 else ""
    fewest = report["fewest_gpus"]
    if fewest is None:
        heads = report["model"]["query_heads"]
        return f"no request fits, not even on {counted(heads, 'GPU')} with a head each{narrower}"
    return f"no request fits: it takes {counted(fewest, 'GPU')}{narrower}"


def print_speculate(report: dict[str, Any]) -> None:
    a, k, c = report["acceptance"], report["drafts"], report["draft_cost"]
    tokens, verify = report["expected_tokens"], report["verify_cost"]
    formula = f"(1 - {a:g}^{k + 1}) / (1 - {a:g})" if a < 1 else f"{k} + 1"
    best = report["best_drafts"]
    none_pays = "acceptance does not exceed the cost" if verify == 1 else "none pays for verifying"
    rows = [
        ("tokens a step", f"{formula} = {tokens:.3f}"),
        ("speed-up", f"{tokens:.3f} / ({k} x {c:g} + {verify:g}) = {report['speedup']:.2f}"),
        (
            "best",
            f"{counted(best, 'draft')}" if best else "no drafts: " + none_pays,
        ),
    ]
    print_facts(f"acceptance {a:g}, {counted(k, 'draft')} of cost {c:g} each", rows)
    print_columns(
        ("drafts", "tokens a step", "speed-up"),
        [
            (f"{row['drafts']}", f"{row['expected_tokens']:.3f}", f"{row['speedup']:.2f}")
            for row in report["by_drafts"]
        ],
        mark=best,
    )


def print_parallel(report: dict[str, Any], model: Model) -> None:
    gpus, count = report["tensor_parallel"], report["all_reduces_per_step"]
    ring, tree = report["ring"], report["tree"]
    floor, communication = report["step_floor_s"], report["communication_s"]
    network = rate_text(report["network_bytes_per_s"])
    rows = [
        (
            "each GPU",
            f"{counted(report['kv_heads_per_gpu'], 'KV head')}, "
            f"{decimal_text(report['weight_bytes_per_gpu'])} of weights",
        ),
        (
            "all-reduces",
            f"2 x {model.num_layers} layers = {count} a step, each of {model.hidden_size:,} x "
            f"{report['batch']:,} x 2 bytes = {bytes_text(report['message_bytes'])}"
            if count
            else "none: one GPU has everything",
        ),
        ("link", f"{report['link']}, {rate_text(report['link_one_way_bytes_per_s'])} one way"),
        ("ring", _parts(ring)),
        ("tree", _parts(tree)),
        (
            "decode step",
            f"{seconds_text(floor)} floor + {seconds_text(communication)} "
            f"communication = {seconds_text(report['step_s'])} "
            f"({report['communication_share']:.1%} communication)",
        ),
        (
            "pipeline",
            f"{counted(report['pipeline_parallel'], 'stage')} of layers "
            + " ".join(f"{first}-{last - 1}" for first, last in report["layers_of_stages"])
            + f"; bubble {report['bubble']:.1%} with {report['micro_batches']} in flight",
        ),
        (
            "KV transfer",
            f"{decimal_text(report['cache_bytes_of_prompt'])} at {network}: "
            f"{seconds_text(report['cache_transfer_s'])}",
        ),
    ]
    devices = gpus * report["pipeline_parallel"]
    print_facts(f"{model_line(model)} on {devices} x {report['gpu']}", rows)
    print_columns(
        ("TP", "replicas", "fits at once", "decode step", "communication", "tokens/s"),
        [_plan_row(row, report["batch"]) for row in report["plans"]],
    )


def _plan_row(row: dict[str, Any], batch: int) -> tuple[str, ...]:
    """One way to split the tensor-parallel GPUs into replicas."""
    too_few = " (too few)" if row["most_requests"] < batch else ""
    return (
        f"{row['tensor_parallel']}",
        f"{row['num_replicas']}",
        f"{row['most_requests']:,}{too_few}",
        seconds_text(row["step_s"]),
        seconds_text(row["communication_s"]),
        f"{row['tokens_per_s']:,.0f}",
    )


def print_models(facts: Sequence[dict[str, Any]]) -> None:
    """One row a model; the active parameters where they are not all."""
    print_columns(
        ("name", "kind", "layers", "heads", "parameters", "active", "KV/token"),
        [
            (
                one["name"],
                one["attention"],
                f"{one['layers']}",
                f"{one['query_heads']}/{one['kv_heads']}",
                f"{one['parameters']:,}",
                f"{one['active_parameters'] / 1e9:.1f}B"
                if one["active_parameters"] != one["parameters"]
                else "-",
                binary_text(one["kv_bytes_per_token_bf16"]),
            )
            for one in facts
        ],
    )


def print_devices(devices: Sequence[Device]) -> None:
    """One row a GPU, then where each one's numbers are from."""
    print_columns(
        ("name", "bf16", "fp8", "memory", "bandwidth", "FLOP/byte", "NVLink", "PCIe"),
        [
            (
                one.name,
                f"{one.peak('bf16') / TERA:,.4g}",
                f"{one.peak_flops_per_s['fp8'] / TERA:,.4g}"
                if "fp8" in one.peak_flops_per_s
                else "-",
                decimal_text(one.memory_bytes),
                rate_text(one.bandwidth_bytes_per_s),
                f"{one.ridge_flops_per_byte('bf16'):.0f}",
                _link(one.nvlink_one_way_bytes_per_s),
                _link(one.pcie_one_way_bytes_per_s),
            )
            for one in devices
        ],
    )
    make_console().print("Peaks are dense, in TFLOP/s; links are one way; memory is as sold.\n")
    for one in devices:
        print_facts(one.name, [("", source) for source in one.sources])


def _link(bytes_per_s: float | None) -> str:
    return "-" if bytes_per_s is None else rate_text(bytes_per_s)


def _parts(one: dict[str, float]) -> str:
    return (
        f"{seconds_text(one['time_s'])} each "
        f"(starts {seconds_text(one['latency_s'])}, wire {seconds_text(one['transfer_s'])})"
    )


def _product(factors: str, size: float) -> str:
    return f"{factors} = {bytes_text(size)}"


def _share(part: float, whole: float) -> str:
    return f"{part / whole:.1%}" if whole else "-"
