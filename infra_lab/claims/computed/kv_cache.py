"""Section K: the size of the cache, what it saves, and what follows from it."""

from __future__ import annotations

from infra_lab.calculators.capacity import capacity
from infra_lab.calculators.compute import cacheless_projection_ratio, cacheless_score_ratio
from infra_lab.calculators.formats import per_head_vector
from infra_lab.calculators.hardware import pcie_one_way_bytes_per_s
from infra_lab.calculators.kv_cache import ENGINE_SCALE_BITS, bytes_per_token, cache_bytes
from infra_lab.calculators.model_table import model
from infra_lab.calculators.models import custom_model
from infra_lab.calculators.parallel import transfer_s
from infra_lab.calculators.quantization import symmetric_step
from infra_lab.calculators.units import GB, GIB
from infra_lab.claims.claim import Numbers
from infra_lab.claims.computed import measured

_LLAMA_70B = model("llama-2-70b")
_REQUEST_BYTES = cache_bytes(_LLAMA_70B, 4096)


def k2() -> Numbers:
    step = 4096
    return {"with_cache": 1, "without_cache": step}


def k3() -> Numbers:
    return {
        "score_ratio": cacheless_score_ratio(4096),
        "projection_ratio": cacheless_projection_ratio(4096),
    }


def k4() -> Numbers:
    return {
        "kv_bytes": _REQUEST_BYTES,
        "kv_gb": _REQUEST_BYTES / GB,
        "kv_gib": _REQUEST_BYTES / GIB,
    }


def k5() -> Numbers:
    whole = capacity(80 * GB, 35 * GB, _REQUEST_BYTES, utilization=1.0)
    vllm = capacity(80 * GIB, 35 * GB, _REQUEST_BYTES)
    return {"requests": whole.exact_requests, "vllm_requests": vllm.exact_requests}


def k8() -> Numbers:
    return {
        "over_max": measured.BATCHED_VLLM / measured.BATCHED_ORCA_MAX,
        "over_pow2": measured.BATCHED_VLLM / measured.BATCHED_ORCA_POW2,
        "over_oracle": measured.BATCHED_VLLM / measured.BATCHED_ORCA_ORACLE,
    }


def k9() -> Numbers:
    def per_token(kv_heads: int) -> float:
        return bytes_per_token(custom_model(1, 64, kv_heads, 128))

    return {"gqa": per_token(64) / per_token(8), "mqa": per_token(64) / per_token(1)}


def k10() -> Numbers:
    return {
        "llama3": model("llama-3-70b").num_kv_heads,
        "qwen2": model("qwen2-72b").num_kv_heads,
        "mistral": model("mistral-7b").num_kv_heads,
    }


def k11() -> Numbers:
    step = symmetric_step(3, 8)
    return {"step": step, "error": step / 2}


def k12() -> Numbers:
    one = per_head_vector(8, 128)
    return {
        "bits": one.bits_per_element,
        "saved": 1 - one.bits_per_element / 16,
        "engine_bits": per_head_vector(8, 128, ENGINE_SCALE_BITS).bits_per_element,
    }


def k14() -> Numbers:
    requests, prefix = 1000, 2000
    return {"saved": (requests - 1) / requests, "tokens": requests * prefix}


def k15() -> Numbers:
    budget = 0.1 + 0.1
    return {
        "published_ratio": 4096 / (128 + 256),
        "kept": budget * 4096,
        "ratio": 1 / budget,
    }


def k16() -> Numbers:
    peak = pcie_one_way_bytes_per_s(4)
    return {
        "gb_per_s": peak / GB,
        "ms": 1000 * transfer_s(_REQUEST_BYTES, peak),
        "real_ms": 1000 * transfer_s(_REQUEST_BYTES, 25 * GB),
        "wrong_ms": 1000 * transfer_s(10 * _REQUEST_BYTES, 32 * GB),
    }
