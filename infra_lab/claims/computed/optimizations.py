"""Section O: what each technique is worth by its own arithmetic."""

from __future__ import annotations

from infra_lab.calculators.compute import attention_flops, attention_pairs, product_flops
from infra_lab.calculators.flash_attention import standard_io_elements, theorem_2_elements
from infra_lab.calculators.formats import number_format
from infra_lab.calculators.hardware import device
from infra_lab.calculators.kv_cache import cache_bytes
from infra_lab.calculators.model_table import model
from infra_lab.calculators.parallel import (
    all_reduce_message_bytes,
    all_reduces_per_step,
    ring_all_reduce,
    transfer_s,
)
from infra_lab.calculators.speculation import draft_cost_for, expected_tokens, speedup
from infra_lab.calculators.units import GB, KIB, MB, TERA
from infra_lab.claims.claim import Numbers
from infra_lab.claims.computed import measured

_LLAMA_70B = model("llama-2-70b")
_ALPHA, _K = 0.8, 5
_TP8_FLOOR_MS = 1000 * 140 * GB / (2 * TERA) / 8
_KERNELS_OF_A_FUSED_LAYER, _LAUNCH_US = 10, 5


def o1() -> Numbers:
    return {"without": attention_pairs(4096), "with_cache": attention_pairs(1, 4095)}


def o3() -> Numbers:
    return measured.concurrency()


def o4() -> Numbers:
    return {"share": 4 * 4096**2 / standard_io_elements(4096, 128)}


def o5() -> Numbers:
    attention = attention_flops(_LLAMA_70B, attention_pairs(4096))
    return {"attention": attention / (attention + product_flops(70e9, 4096))}


def o6() -> Numbers:
    sram = device("a100").shared_memory_per_sm_bytes or 0
    one, two = (theorem_2_elements(n, 128, sram // 2) for n in (4096, 8192))
    return {"double": two / one, "needed_kib": 4096 * 128 * 2 / KIB, "sram_kib": sram / KIB}


def o9() -> Numbers:
    return {
        "symmetric": 16 / number_format("int4-g128").bits_per_element,
        "with_zeros": 16 / number_format("int4-g128-z4").bits_per_element,
    }


def o12() -> Numbers:
    return {
        "int8": measured.LLAMA_7B_INT8 / measured.LLAMA_7B_BF16,
        "int4": measured.LLAMA_7B_INT4 / measured.LLAMA_7B_BF16,
    }


def o13() -> Numbers:
    return {"steps": 1000 / expected_tokens(_ALPHA, _K)}


def o14() -> Numbers:
    return {
        "expression": 1 / (1 - _ALPHA**_K) * _K / (_K + 1),
        "tokens": expected_tokens(_ALPHA, _K),
        "c10": speedup(_ALPHA, _K, 0.1),
        "c05": speedup(_ALPHA, _K, 0.05),
        "cost": draft_cost_for(_ALPHA, _K, 2.5),
    }


def o16() -> Numbers:
    return {"step": all_reduces_per_step(_LLAMA_70B.num_layers)}


def o17() -> Numbers:
    a100, h100 = device("a100"), device("h100")
    return {
        "h100": (h100.nvlink_bytes_per_s or 0) / GB,
        "a100": (a100.nvlink_bytes_per_s or 0) / GB,
        "one_way": (a100.nvlink_one_way_bytes_per_s or 0) / GB,
    }


def o18() -> Numbers:
    count = all_reduces_per_step(_LLAMA_70B.num_layers)
    message = all_reduce_message_bytes(_LLAMA_70B.hidden_size, 1)
    wire = ring_all_reduce(message, 8, device("a100").nvlink_one_way_bytes_per_s or 0)
    low_ms, high_ms = (count * us / 1000 for us in (8, 20))
    return {
        "floor_ms": _TP8_FLOOR_MS,
        "implied": 1 - _TP8_FLOOR_MS / 12,
        "wire_us": 1e6 * count * wire.time_s,
        "low_ms": low_ms,
        "high_ms": high_ms,
        "low_share": low_ms / (_TP8_FLOOR_MS + low_ms),
        "high_share": high_ms / (_TP8_FLOOR_MS + high_ms),
        "needed_us": 1000 * _TP8_FLOOR_MS * 0.05 / 0.95 / count,
    }


def o19() -> Numbers:
    gain = measured.LLAMA_70B_MS[2] / measured.LLAMA_70B_MS[8]
    return {"gain": gain, "per_gpu": gain * 2 / 8}


def o20() -> Numbers:
    size = cache_bytes(_LLAMA_70B, 4096)
    return {
        "gb": size / GB,
        "fast_ms": 1000 * transfer_s(size, 50 * GB),
        "slow_ms": 1000 * transfer_s(size, 12.5 * GB),
    }


def o21() -> Numbers:
    def size(num_tokens: int) -> float:
        return all_reduce_message_bytes(_LLAMA_70B.hidden_size, num_tokens)

    return {"one_kib": size(1) / KIB, "batch_mb": size(32) / MB, "prefill_mb": size(4096) / MB}


def o23() -> Numbers:
    layers = _LLAMA_70B.num_layers
    fused = layers * _KERNELS_OF_A_FUSED_LAYER
    return {
        "before_ms": 240 * _LAUNCH_US / 1000,
        "after_ms": 80 * _LAUNCH_US / 1000,
        "per_layer": 240 / layers,
        "fused": fused,
        "parallel": fused + all_reduces_per_step(layers),
    }


def o25() -> Numbers:
    return {"in_flight": 2000 * 0.03, "floor_ms": 1000 * 35 * GB / (2 * 2 * TERA)}
