"""Section B: what bounds prefill and decode of a 7B and a 70B on an A100."""

from __future__ import annotations

from infra_lab.calculators.capacity import fewest_gpus
from infra_lab.calculators.compute import (
    attention_flops,
    attention_pairs,
    equal_length,
    product_flops,
)
from infra_lab.calculators.hardware import device
from infra_lab.calculators.kv_cache import bytes_per_token, cache_bytes
from infra_lab.calculators.model_table import model
from infra_lab.calculators.models import Model
from infra_lab.calculators.parameters import active_linear_parameters, head_parameters
from infra_lab.calculators.roofline import Setting, tpot_floor
from infra_lab.calculators.units import GB, GIB, GIGA, MB, MIB, TERA
from infra_lab.claims.claim import Numbers
from infra_lab.claims.computed import measured

_LLAMA_70B = model("llama-2-70b")
_P70 = 70e9  # as the posts round it
_PEAK, _BANDWIDTH = 312 * TERA, 2 * TERA  # an A100, as the posts round it
_FP16 = 2


def b1() -> Numbers:
    multiplied = active_linear_parameters(_LLAMA_70B) + head_parameters(_LLAMA_70B)
    return {
        "rounded": product_flops(_P70, 1) / GIGA,
        "multiplied": multiplied / GIGA,
        "exact": product_flops(multiplied, 1) / GIGA,
        "attention": attention_flops(_LLAMA_70B, 4096) / GIGA,
    }


def b2() -> Numbers:
    flops, read = product_flops(_P70, 1), _FP16 * _P70
    return {
        "alone": flops / read,
        "with_kv": flops / (read + cache_bytes(_LLAMA_70B, 4096)),
    }


def b3() -> Numbers:
    used = 1 / (_PEAK / _BANDWIDTH)
    return {"used": used, "idle": 1 - used}


def b4() -> Numbers:
    return {
        "floor_ms": 1000 * _FP16 * 7e9 / _BANDWIDTH,
        "measured_ms": 1000 / measured.LLAMA_7B_BF16,
    }


def b5() -> Numbers:
    step_ms = 1000 * _FP16 * _P70 / _BANDWIDTH
    return {
        "floor_ms": step_ms,
        "gpus": fewest_gpus(80 * GB, _FP16 * _P70, 1, utilization=1.0),
        "two_ms": step_ms / 2,
    }


def _table_row(shape: Model) -> Numbers:
    """The columns of the post's table: a token, 4K tokens, 32 requests of 4K."""
    everything = cache_bytes(shape, 4096, 32)
    return {
        "token_mib": bytes_per_token(shape) / MIB,
        "request_gib": cache_bytes(shape, 4096) / GIB,
        "all_gib": everything / GIB,
        "all_gb": everything / GB,
    }


def b6() -> Numbers:
    row = _table_row(model("llama-2-7b"))
    return {**row, "share": row["all_gib"] / 80}


def b7() -> Numbers:
    row = _table_row(_LLAMA_70B)
    mha = bytes_per_token(model("qwen1.5-72b"))  # 80 layers, 64 KV heads of 128 as well
    return {**row, "share": row["all_gb"] / 80, "mha_mib": mha / MIB}


def b8() -> Numbers:
    qwen2 = model("qwen2-72b")
    everything = cache_bytes(qwen2, 4096, 32) / GB
    return {
        "token_mb": bytes_per_token(qwen2) / MB,
        "request_gb": cache_bytes(qwen2, 4096) / GB,
        "all_gb": everything,
        "share": everything / 80,
        "mha_mib": bytes_per_token(model("qwen1.5-72b")) / MIB,
    }


def b9() -> Numbers:
    return {"ratio": _LLAMA_70B.num_query_heads / _LLAMA_70B.num_kv_heads}


def b10() -> Numbers:
    setting = Setting(device("a100"))
    short, long = (tpot_floor(_LLAMA_70B, 1, n, setting).time_s for n in (4096, 32768))
    return {"ratio": long / short}


def b12() -> Numbers:
    return {
        "causal": attention_flops(_LLAMA_70B, attention_pairs(4096)) / TERA,
        "full": attention_flops(_LLAMA_70B, attention_pairs(4096, causal=False)) / TERA,
    }


def b13() -> Numbers:
    products = product_flops(_P70, 4096) / TERA
    attention = b12()["causal"]
    return {"products": products, "attention": attention, "both": products + attention}


def b14() -> Numbers:
    peak_s = b13()["both"] * TERA / _PEAK
    return {"peak_s": peak_s, "real_s": peak_s / 0.6}


def b15() -> Numbers:
    attention = attention_flops(_LLAMA_70B, attention_pairs(32768))
    return {
        "share": attention / (attention + product_flops(_P70, 32768)),
        "equal": equal_length(_LLAMA_70B, _P70),
        "equal_full": equal_length(_LLAMA_70B, _P70, causal=False),
    }


def b16() -> Numbers:
    return {"floor_ms": 1000 * _P70 / 2 / (2 * _BANDWIDTH)}


def b17() -> Numbers:
    parts = b13()
    reached = 0.6 * _PEAK
    return {
        "attention": parts["attention"] / parts["both"],
        "free_s": parts["products"] * TERA / reached,
        "gpus": parts["both"] * TERA / reached,
    }


def b18() -> Numbers:
    return {"measured": measured.LLAMA_70B_INT4_SPECULATIVE / measured.LLAMA_70B_INT4}


def b20() -> Numbers:
    return measured.concurrency()
