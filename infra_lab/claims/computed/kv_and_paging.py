"""Section R: the combined question on caching and paging."""

from __future__ import annotations

from infra_lab.calculators.compute import cacheless_projection_ratio
from infra_lab.calculators.kv_cache import bytes_per_token, cache_bytes, num_blocks
from infra_lab.calculators.model_table import model
from infra_lab.calculators.paging import contiguous_utilization, last_block_waste
from infra_lab.calculators.prefix import memory_saved_share
from infra_lab.calculators.units import GB, GIB, MIB
from infra_lab.claims.claim import Numbers
from infra_lab.claims.computed import measured

_LLAMA_70B = model("llama-2-70b")


def r1() -> Numbers:
    return {"ratio": 4096}


def r2() -> Numbers:
    return {"ratio": cacheless_projection_ratio(4096)}


def r4() -> Numbers:
    size = cache_bytes(_LLAMA_70B, 4096)
    return {"gb": size / GB, "gib": size / GIB}


def r5() -> Numbers:
    size = cache_bytes(_LLAMA_70B, 4096, 64)
    return {"rounded_gb": 1.34 * 64, "gb": size / GB, "gib": size / GIB}


def r6() -> Numbers:
    return {
        "short": 1 - contiguous_utilization([256], 4096),
        "long": 1 - contiguous_utilization([1024], 4096),
    }


def r7() -> Numbers:
    return measured.wasted()


def r9() -> Numbers:
    return {"two": memory_saved_share(1, 2)}


def r11() -> Numbers:
    return {"blocks": num_blocks(17, 16)}


def r12() -> Numbers:
    slots = last_block_waste(1, 16)
    return {"slots": slots, "mib": 64 * slots * bytes_per_token(_LLAMA_70B) / MIB}
