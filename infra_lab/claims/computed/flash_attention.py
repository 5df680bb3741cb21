"""Section F: attention's matrices, FLOPs and traffic, one head of 128 at 4K tokens."""

from __future__ import annotations

from infra_lab.calculators.compute import decode_attention_intensity
from infra_lab.calculators.flash_attention import (
    attention_head_flops,
    first_version_io_elements,
    score_matrices_bytes,
    standard_io_elements,
    theorem_2_gain,
    tiled_io_elements,
)
from infra_lab.calculators.hardware import device
from infra_lab.calculators.model_table import model
from infra_lab.calculators.roofline import roofline_time
from infra_lab.calculators.units import GB, GIB, GIGA, KIB, MB, MIB, TERA
from infra_lab.claims.claim import Numbers
from infra_lab.claims.computed import measured

_N, _D = 4096, 128
_FP16 = 2
_SRAM_ELEMENTS = 192 * KIB // _FP16


def f1() -> Numbers:
    return {
        "one_mib": score_matrices_bytes(_N, num_matrices=1) / MIB,
        "heads_32_gib": score_matrices_bytes(_N, 32) / GIB,
        "heads_64_gib": score_matrices_bytes(_N, 64) / GIB,
    }


def f2() -> Numbers:
    size = device("a100").shared_memory_per_sm_bytes or 0
    return {"kib": size / KIB, "sm_bytes": size}


def f3() -> Numbers:
    both = attention_head_flops(_N, _D) / GIGA
    return {
        "one_gflop": both / 2,
        "both_gflop": both,
        "causal_gflop": attention_head_flops(_N, _D, causal=True) / GIGA,
    }


def f4() -> Numbers:
    moved = _FP16 * standard_io_elements(_N, _D)
    return {"mb": moved / MB, "mib": moved / MIB}


def f5() -> Numbers:
    flops, moved = attention_head_flops(_N, _D), _FP16 * standard_io_elements(_N, _D)
    found = roofline_time(flops, moved, 312 * TERA, 2 * TERA)
    return {
        "io_us": 1e6 * found.memory_s,
        "compute_us": 1e6 * found.compute_s,
        "intensity": flops / moved,
    }


def f8() -> Numbers:
    usable = device("a100").shared_memory_per_sm_bytes or 0
    return {
        "missing": _D**2,
        "gain_128": theorem_2_gain(128, _SRAM_ELEMENTS),
        "gain_64": theorem_2_gain(64, _SRAM_ELEMENTS),
        "gain_usable": theorem_2_gain(128, usable // _FP16),
        "tiled_mb": _FP16 * tiled_io_elements(_N, _D, 128) / MB,
        "standard_mb": _FP16 * standard_io_elements(_N, _D) / MB,
    }


def f9() -> Numbers:
    return {
        "stats_kib": 2 * 4 * _N / KIB,
        "matrices_mib": score_matrices_bytes(_N) / MIB,
    }


def f11() -> Numbers:
    return {
        "gb_16k": score_matrices_bytes(16 * KIB, 32) / GB,
        "gb_32k": score_matrices_bytes(32 * KIB, 32) / GB,
    }


def f12() -> Numbers:
    return {"more": measured.FLASH_ATTENTION_GFLOP / measured.ATTENTION_GFLOP - 1}


def f13() -> Numbers:
    return {
        "rounded": 312 / 2,
        "exact": device("a100").ridge_flops_per_byte("fp16"),
        "h100": device("h100").ridge_flops_per_byte("fp16"),
    }


def f14() -> Numbers:
    return {
        "gqa": decode_attention_intensity(model("llama-2-70b")),
        "mha": decode_attention_intensity(model("llama-2-7b")),
    }


def f16() -> Numbers:
    return {
        "first_mb": _FP16 * first_version_io_elements(_N, _D, 128) / MB,
        "second_mb": _FP16 * tiled_io_elements(_N, _D, 128) / MB,
    }
