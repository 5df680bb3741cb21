"""Section A: the list of ways to go faster, with its formulae put right."""

from __future__ import annotations

from dataclasses import replace

from infra_lab.calculators.compute import attention_pairs
from infra_lab.calculators.hardware import device
from infra_lab.calculators.kv_cache import bytes_per_token, cache_bytes
from infra_lab.calculators.model_table import model
from infra_lab.calculators.parallel import all_reduces_per_step
from infra_lab.calculators.parameters import num_parameters
from infra_lab.calculators.speculation import expected_tokens, speedup
from infra_lab.calculators.units import GB
from infra_lab.claims.claim import Numbers
from infra_lab.claims.computed import measured

_LLAMA_70B = model("llama-2-70b")
_K = 5


def a1() -> Numbers:
    v3 = model("deepseek-v3")
    return {
        "gqa": bytes_per_token(_LLAMA_70B),
        "mla": bytes_per_token(v3),
        "mha": bytes_per_token(replace(v3, latent=None)),
    }


def a2() -> Numbers:
    return {
        "gb": cache_bytes(_LLAMA_70B, 1024) / GB,
        "mha_gb": cache_bytes(model("qwen1.5-72b"), 1024) / GB,
    }


def a7() -> Numbers:
    requests = measured.concurrency()
    return {**measured.wasted(), "few": requests["least"], "many": requests["most"]}


def a8() -> Numbers:
    return {
        "formula": 1 / (1 - 0.9) * _K / (_K + 1),
        "cap": expected_tokens(1, _K),
        **{f"a{tenths}": speedup(tenths / 10, _K, 0.1) for tenths in (3, 7, 8, 9)},
    }


def a9() -> Numbers:
    """Costs by the bytes that a run reads, 7B and 0.5B against Llama-2-70B."""
    target = num_parameters(_LLAMA_70B)
    cost = num_parameters(model("llama-2-7b")) / target
    return {
        "cost": cost,
        "large": speedup(0.8, _K, cost),
        "small": speedup(0.8, _K, 0.5e9 / target),
    }


def a10() -> Numbers:
    return {"missing": 128**2}


def a14() -> Numbers:
    return {
        "inference": all_reduces_per_step(1),
        "training": all_reduces_per_step(1, backward=True),
        "step": all_reduces_per_step(_LLAMA_70B.num_layers),
    }


def a15() -> Numbers:
    return {
        "h100": (device("h100").nvlink_bytes_per_s or 0) / GB,
        "a100": (device("a100").nvlink_bytes_per_s or 0) / GB,
    }


def a16() -> Numbers:
    step_ms = measured.LLAMA_70B_MS
    return {"ideal": 70 / step_ms[8], "extrapolated": 2 * step_ms[2] / step_ms[8]}


def a18() -> Numbers:
    return {"ratio": attention_pairs(4096) / attention_pairs(1, 4095)}


def a19() -> Numbers:
    return {"low": expected_tokens(0.5, _K), "high": expected_tokens(0.9, _K)}
