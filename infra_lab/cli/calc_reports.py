"""The reports behind `infra-lab calc`: plain numbers with their units in their names, as --json
prints them and as the tables are made from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, fields
from typing import Any

from infra_lab.calculators.capacity import capacity
from infra_lab.calculators.compute import decode_attention_intensity
from infra_lab.calculators.formats import NumberFormat
from infra_lab.calculators.hardware import Device
from infra_lab.calculators.kv_cache import (
    block_bytes,
    bytes_per_token,
    cache_bytes,
    cache_format,
    num_blocks,
)
from infra_lab.calculators.models import Model
from infra_lab.calculators.paging import last_block_waste
from infra_lab.calculators.parallel import (
    all_reduce_message_bytes,
    all_reduces_per_step,
    cache_copies,
    kv_heads_per_rank,
    layer_ranges,
    pipeline_bubble,
    quickest_all_reduce,
    ring_all_reduce,
    step_communication_s,
    transfer_s,
    tree_all_reduce,
)
from infra_lab.calculators.parameters import num_active_parameters, num_parameters
from infra_lab.calculators.replicas import fewest_gpus_that_split, replica_plans
from infra_lab.calculators.roofline import (
    Setting,
    crossover_batch,
    decode_cost,
    intensity_limit,
    prefill_cost,
    step_time,
    tpot_floor,
    ttft_floor,
)
from infra_lab.calculators.speculation import best_num_drafts, expected_tokens, speedup
from infra_lab.calculators.weights import most_bits_per_weight, weight_bytes
from infra_lab.errors import UsageError

KV_FORMATS = ("fp32", "bf16", "fp8", "int8-token-head", "int4-token-head")


def model_facts(model: Model) -> dict[str, Any]:
    return {
        "name": model.name,
        "attention": model.attention_kind,
        "layers": model.num_layers,
        "query_heads": model.num_query_heads,
        "kv_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "parameters": num_parameters(model),
        "active_parameters": num_active_parameters(model),
        "context": model.max_context,
        "kv_bytes_per_token_bf16": bytes_per_token(model),
        "source": model.source,
    }


def device_facts(device: Device) -> dict[str, Any]:
    plain = {one.name: getattr(device, one.name) for one in fields(device)}
    return {**plain, "peak_flops_per_s": dict(device.peak_flops_per_s)}


def kv_report(
    model: Model, num_tokens: int, num_requests: int, number: NumberFormat, block_size: int
) -> dict[str, Any]:
    """One request and all of them; the same in other formats."""
    one = cache_bytes(model, num_tokens, 1, number)
    paged = cache_bytes(model, num_tokens, 1, number, block_size)
    return {
        "model": model_facts(model),
        "cache_format": number.name,
        "bits_per_element": number.bits_per_element,
        "tokens": num_tokens,
        "requests": num_requests,
        "block_size": block_size,
        "bytes_per_token": bytes_per_token(model, number),
        "bytes_per_request": one,
        "bytes_in_all": cache_bytes(model, num_tokens, num_requests, number),
        "block_bytes": block_bytes(model, block_size, number),
        "blocks_per_request": num_blocks(num_tokens, block_size),
        "unused_slots_of_last_block": last_block_waste(num_tokens, block_size),
        "paged_bytes_per_request": paged,
        "bytes_per_request_by_format": {
            name: cache_bytes(model, num_tokens, 1, cache_format(name, model))
            for name in KV_FORMATS
        },
    }


def roofline_report(
    model: Model,
    setting: Setting,
    prompt_tokens: int,
    cached_tokens: int,
    context: int,
    batches: Sequence[int],
) -> dict[str, Any]:
    """Floors of a prompt's first token and of decode steps, by batch."""
    if cached_tokens >= prompt_tokens:
        raise UsageError(
            f"--cached {cached_tokens} of --prompt {prompt_tokens}: at least the last token of a "
            "prompt is computed"
        )
    new_tokens = prompt_tokens - cached_tokens
    prefill = prefill_cost(model, new_tokens, cached_tokens, setting)
    first = ttft_floor(model, new_tokens, setting, cached_tokens)
    device = setting.device
    return {
        "model": model_facts(model),
        "gpu": device.name,
        "gpus": setting.num_gpus,
        "weights": setting.weights.name,
        "cache_format": setting.cache.name,
        "operands": setting.operands,
        "flops_per_s": setting.flops_per_s,
        "bytes_per_s": setting.bytes_per_s,
        "ridge_flops_per_byte": setting.flops_per_s / setting.bytes_per_s,
        "prompt_tokens": prompt_tokens,
        "cached_tokens": cached_tokens,
        "prefill_flops": prefill.flops,
        "ttft": {
            "compute_s": first.compute_s,
            "memory_s": first.memory_s,
            "floor_s": first.time_s,
            "bound": first.bound,
        },
        "context": context,
        "decode": [_decode_row(model, setting, batch, context) for batch in batches],
        "crossover_batch": crossover_batch(model, context, setting),
        "intensity_limit_flops_per_byte": intensity_limit(model, context, setting),
        "attention_flops_per_byte": decode_attention_intensity(
            model, setting.cache.bytes_per_element
        ),
    }


def _decode_row(model: Model, setting: Setting, batch: int, context: int) -> dict[str, Any]:
    cost = decode_cost(model, batch, context, setting)
    found = step_time(cost, setting)
    return {
        "batch": batch,
        "flops": cost.flops,
        "weight_bytes": cost.weight_bytes,
        "cache_bytes": cost.cache_bytes,
        "intensity_flops_per_byte": cost.intensity_flops_per_byte,
        "compute_s": found.compute_s,
        "memory_s": found.memory_s,
        "floor_s": found.time_s,
        "bound": found.bound,
        "tokens_per_s": batch / found.time_s,
    }


def fit_report(
    model: Model,
    device: Device,
    num_gpus: int,
    weights: NumberFormat,
    number: NumberFormat,
    num_tokens: int,
    block_size: int,
    utilization: float,
    other_bytes: float,
) -> dict[str, Any]:
    """How many requests of so many tokens run at once, or what it would take for one."""
    copies = cache_copies(model, num_gpus)
    one_copy = cache_bytes(model, num_tokens, 1, number, block_size)
    request = one_copy * copies
    stored = weight_bytes(model, weights)
    found = capacity(
        device.memory_bytes,
        stored.total_bytes,
        request,
        num_gpus=num_gpus,
        utilization=utilization,
        other_bytes=other_bytes,
    )
    room = found.budget_bytes - other_bytes - request - stored.other_bytes
    linear = stored.linear_bytes / weights.bytes_per_element
    return {
        "model": model_facts(model),
        "gpu": device.name,
        "gpus": num_gpus,
        "memory_bytes_per_gpu": device.memory_bytes,
        "utilization": utilization,
        "budget_bytes": found.budget_bytes,
        "weights": weights.name,
        "bits_per_weight": weights.bits_per_element,
        "weight_bytes": stored.total_bytes,
        "quantized_weight_bytes": stored.linear_bytes,
        "other_weight_bytes": stored.other_bytes,
        "other_bytes": other_bytes,
        "cache_bytes": found.cache_bytes,
        "cache_format": number.name,
        "tokens": num_tokens,
        "block_size": block_size,
        "cache_copies": copies,
        "bytes_per_request": request,
        "fits": found.fits,
        "requests": found.num_requests,
        "exact_requests": found.exact_requests,
        "fewest_gpus": fewest_gpus_that_split(
            model,
            device.memory_bytes,
            stored.total_bytes,
            one_copy,
            utilization=utilization,
            other_bytes=other_bytes,
        ),
        "most_bits_per_weight": most_bits_per_weight(round(linear), room) if room > 0 else None,
    }


def speculate_report(
    acceptance: float, num_drafts: int, draft_cost: float, verify_cost: float, most: int
) -> dict[str, Any]:
    """The formula at the given numbers, and at every other number of drafts up to `most`."""
    return {
        "acceptance": acceptance,
        "drafts": num_drafts,
        "draft_cost": draft_cost,
        "verify_cost": verify_cost,
        "expected_tokens": expected_tokens(acceptance, num_drafts),
        "speedup": speedup(acceptance, num_drafts, draft_cost, verify_cost),
        "best_drafts": best_num_drafts(acceptance, draft_cost, most, verify_cost),
        "by_drafts": [
            {
                "drafts": k,
                "expected_tokens": expected_tokens(acceptance, k),
                "speedup": speedup(acceptance, k, draft_cost, verify_cost if k else 1),
            }
            for k in range(most + 1)
        ],
    }


def parallel_report(
    model: Model,
    setting: Setting,
    num_stages: int,
    num_micro_batches: int,
    batch: int,
    context: int,
    latency_s: float,
    network_bytes_per_s: float,
) -> dict[str, Any]:
    """A decode step over GPUs, the stages of a pipeline, a prompt's way to another instance."""
    device, num_gpus = setting.device, setting.num_gpus
    link = device.nvlink_one_way_bytes_per_s or device.pcie_one_way_bytes_per_s
    if link is None:
        raise UsageError(f"no link between GPUs is known for {device.title}: choose another --gpu")
    message = all_reduce_message_bytes(model.hidden_size, batch)
    count = all_reduces_per_step(model.num_layers) if num_gpus > 1 else 0
    floor = tpot_floor(model, batch, context, setting)
    ring = ring_all_reduce(message, num_gpus, link, latency_s)
    tree = tree_all_reduce(message, num_gpus, link, latency_s)
    communication_s = step_communication_s(
        model, quickest_all_reduce(message, num_gpus, link, latency_s)
    )
    plans = replica_plans(model, setting, num_gpus, batch, context, link, latency_s)
    request = cache_bytes(model, context, 1, setting.cache)
    stored = weight_bytes(model, setting.weights).total_bytes
    return {
        "model": model_facts(model),
        "gpu": device.name,
        "tensor_parallel": num_gpus,
        "link": "NVLink" if device.nvlink_bytes_per_s else "PCIe",
        "link_one_way_bytes_per_s": link,
        "batch": batch,
        "context": context,
        "kv_heads_per_gpu": kv_heads_per_rank(model, num_gpus),
        "cache_copies": cache_copies(model, num_gpus),
        "weight_bytes_per_gpu": stored / (num_gpus * num_stages),
        "all_reduces_per_step": count,
        "message_bytes": message,
        "latency_s": latency_s,
        "ring": {**asdict(ring), "time_s": ring.time_s},
        "tree": {**asdict(tree), "time_s": tree.time_s},
        "communication_s": communication_s,
        "step_floor_s": floor.time_s,
        "step_s": floor.time_s + communication_s,
        "communication_share": communication_s / (floor.time_s + communication_s),
        "plans": [asdict(one) for one in plans],
        "pipeline_parallel": num_stages,
        "layers_of_stages": layer_ranges(model.num_layers, num_stages),
        "micro_batches": num_micro_batches,
        "bubble": pipeline_bubble(num_stages, num_micro_batches),
        "cache_bytes_of_prompt": request,
        "network_bytes_per_s": network_bytes_per_s,
        "cache_transfer_s": transfer_s(request, network_bytes_per_s),
    }
