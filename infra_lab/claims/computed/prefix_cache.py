"""Section X: hits in whole blocks, and what they are worth."""

from __future__ import annotations

from infra_lab.calculators.compute import product_flops
from infra_lab.calculators.prefix import (
    computed_tokens,
    hit_tokens,
    memory_saved_share,
    saved_share,
)
from infra_lab.calculators.units import TERA
from infra_lab.claims.claim import Numbers
from infra_lab.config import DEFAULT_BLOCK_SIZE

_REACHED_FLOPS_PER_S = 0.6 * 312 * TERA  # 60 % of an A100


def _milliseconds(num_parameters: float, num_tokens: int) -> float:
    return 1000 * product_flops(num_parameters, num_tokens) / _REACHED_FLOPS_PER_S


def x1() -> Numbers:
    return {"decimal": 1000 * 2000, "binary": 1000 * 2048}


def x2() -> Numbers:
    return {
        f"{kind}{billions}_ms": _milliseconds(billions * 1e9, tokens)
        for kind, tokens in (("p", 2100), ("s", 100))
        for billions in (7, 13, 70)
    }


def x3() -> Numbers:
    return {"share": 100 / 2100, "ratio": 2100 / 100}


def x4() -> Numbers:
    return {"saved": memory_saved_share(0.5, 8)}


def x5() -> Numbers:
    def billions(seconds: float) -> float:
        return seconds * _REACHED_FLOPS_PER_S / product_flops(1e9, 2100)

    return {"billions": billions(0.5), "other": billions(0.2)}


def x7() -> Numbers:
    mean_suffix = (100 + 150 + 80) / 3
    return {
        "three": saved_share(2000, [100, 150, 80]),
        "many": 2000 / (2000 + mean_suffix),
    }


def x10() -> Numbers:
    hit = hit_tokens(1500, 2000)
    return {
        "blocks": hit / DEFAULT_BLOCK_SIZE,
        "hit": hit,
        "computed": computed_tokens(1500, 2000),
        "full_hit": computed_tokens(1488, 1488),
    }


def x14() -> Numbers:
    return {
        "two": memory_saved_share(0.8, 2),
        "many": memory_saved_share(0.8, 100),
        "small": memory_saved_share(0.4, 100),
    }
