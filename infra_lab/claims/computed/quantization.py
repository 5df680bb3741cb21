"""Section N: bits, levels and bytes of quantized models."""

from __future__ import annotations

from itertools import pairwise
from math import ceil

from infra_lab.calculators.compute import attention_flops, product_flops
from infra_lab.calculators.formats import grouped, number_format, per_head_vector
from infra_lab.calculators.hardware import device
from infra_lab.calculators.kv_cache import bytes_per_token, cache_bytes
from infra_lab.calculators.model_table import model
from infra_lab.calculators.quantization import (
    codes_used,
    e2m1_values,
    e4m3_values,
    e5m2_values,
    effective_bits,
    integer_range,
    nf4_values,
    smoothing_scale,
    symmetric_step,
)
from infra_lab.calculators.roofline import Setting, crossover_batch
from infra_lab.calculators.units import GB, GIB, TERA
from infra_lab.calculators.weights import most_bits_per_weight, stored_bytes
from infra_lab.claims.claim import Numbers
from infra_lab.claims.computed import measured

_LLAMA_70B = model("llama-2-70b")
_P70 = 70_000_000_000


def _gigabytes(name: str) -> float:
    return stored_bytes(_P70, number_format(name)) / GB


def n9() -> Numbers:
    low, high = integer_range(8)
    return {"low": low, "high": high}


def n10() -> Numbers:
    low, high = integer_range(4)
    return {"low": low, "high": high, "a100": device("a100").peak("int4") / TERA}


def n11() -> Numbers:
    return {"e4m3": max(e4m3_values()), "e5m2": max(e5m2_values())}


def n13() -> Numbers:
    levels = nf4_values()
    gaps = [high - low for low, high in pairwise(levels)]
    plain, double = (number_format(name) for name in ("nf4", "nf4-double"))
    return {
        "levels": len(levels),
        "widest": max(gaps) / min(gaps),
        "plain": plain.bits_per_element,
        "double": double.bits_per_element,
        "saved_gb": (stored_bytes(_P70, plain) - stored_bytes(_P70, double)) / GB,
    }


def n14() -> Numbers:
    return {"largest": max(e2m1_values()), "bits": number_format("mxfp4").bits_per_element}


def n15() -> Numbers:
    return {
        "g128": grouped(4, 128).bits_per_element,
        "g128_zero": grouped(4, 128, zero_bits=4).bits_per_element,
        "g32": grouped(4, 32).bits_per_element,
    }


def n17() -> Numbers:
    return {
        "codes_gb": _gigabytes("int4"),
        "scaled_gb": _gigabytes("int4-g128"),
        "bits": most_bits_per_weight(_P70, device("rtx-4090").memory_bytes),
    }


def n18() -> Numbers:
    return {
        "fp16_gb": _gigabytes("fp16"),
        "int4_gb": _gigabytes("int4"),
        "least_gb": _gigabytes("int4-g128"),
        "most_gb": _gigabytes("int4-g128-z4"),
    }


def n19() -> Numbers:
    """Ideal at 2 TB/s, as the posts round an A100's bandwidth."""
    return {
        "ideal_ms": 1000 * stored_bytes(_P70, number_format("int4")) / (2 * TERA),
        "measured": 70 / (1000 / measured.LLAMA_70B_INT4),
        "small": measured.LLAMA_7B_INT4 / measured.LLAMA_7B_BF16,
    }


def n20() -> Numbers:
    a100 = device("a100")
    return {"ratio": a100.peak("int8") / a100.peak("fp16")}


def n21() -> Numbers:
    token_flops = product_flops(_P70, 1)
    own_flops = token_flops + attention_flops(_LLAMA_70B, 4096)
    return {
        "one": token_flops / stored_bytes(_P70, number_format("fp16")),
        "b32": 32 * token_flops / stored_bytes(_P70, number_format("fp16")),
        "int4": token_flops / stored_bytes(_P70, number_format("int4")),
        "limit": own_flops / cache_bytes(_LLAMA_70B, 4096),
        "int4_batch": _compute_bound_batch("int4-g128"),
        "fp16_batch": _compute_bound_batch("fp16"),
        "ridge": Setting(device("a100")).flops_per_s / Setting(device("a100")).bytes_per_s,
    }


def _compute_bound_batch(weights: str) -> int:
    """The first whole batch at 4K whose step an A100's arithmetic bounds, with an FP8 KV cache."""
    setting = Setting(device("a100"), weights=number_format(weights), cache=number_format("fp8"))
    crossover = crossover_batch(_LLAMA_70B, 4096, setting)
    assert crossover is not None
    return ceil(crossover)


def n24() -> Numbers:
    step = symmetric_step(100, 8)
    levels = codes_used(3, 100)
    return {
        "edge": 3 / step,
        "levels": levels,
        "bits": effective_bits(levels),
        "coarser": step / symmetric_step(3, 8),
    }


def n25() -> Numbers:
    scale = smoothing_scale(100, 1)
    return {"scale": scale, "both": 100 / scale}


def n27() -> Numbers:
    found = n19()
    return {"large": found["measured"], "small": found["small"]}


def n28() -> Numbers:
    return {"peak": n20()["ratio"], "size": 16 / number_format("int8").bits_per_element}


def n29() -> Numbers:
    size = cache_bytes(_LLAMA_70B, 2048, 32)
    return {"gb": size / GB, "gib": size / GIB}


def n30() -> Numbers:
    int8 = number_format("int8")
    return {
        "gb": cache_bytes(_LLAMA_70B, 2048, 32, int8) / GB,
        "more": bytes_per_token(_LLAMA_70B) / bytes_per_token(_LLAMA_70B, int8) - 1,
    }


def n31() -> Numbers:
    return {
        "gb": cache_bytes(_LLAMA_70B, 2048, 32, number_format("int4")) / GB,
        "saved": 1 - per_head_vector(4, 128).bits_per_element / 16,
    }
