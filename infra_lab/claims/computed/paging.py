"""Section P: reservations, blocks and tables."""

from __future__ import annotations

from infra_lab.calculators.kv_cache import (
    block_bytes,
    bytes_per_token,
    cache_bytes,
)
from infra_lab.calculators.model_table import model
from infra_lab.calculators.paging import (
    block_table_bytes,
    contiguous_utilization,
    last_block_waste,
    mean_last_block_waste,
    tokens_fill_blocks,
)
from infra_lab.calculators.units import MIB
from infra_lab.claims.claim import Numbers
from infra_lab.claims.computed import measured
from infra_lab.config import DEFAULT_BLOCK_SIZE

_LLAMA_70B = model("llama-2-70b")
_BLOCK = DEFAULT_BLOCK_SIZE
_MOST_EMPTY = last_block_waste(1, _BLOCK)


def p1() -> Numbers:
    return {"used": contiguous_utilization([100, 500], 2048)}


def p2() -> Numbers:
    return {
        "short": 1 - contiguous_utilization([500], 4096),
        "long": 1 - contiguous_utilization([2000], 4096),
    }


def p3() -> Numbers:
    return measured.wasted()


def p4() -> Numbers:
    mean = mean_last_block_waste(_BLOCK)
    return {
        "slots": _MOST_EMPTY,
        "mib": _MOST_EMPTY * bytes_per_token(_LLAMA_70B) / MIB,
        "mean": mean,
        "at_500": mean / 500,
    }


def p6() -> Numbers:
    """Savings as ratios: 1 / (1 - saved)."""
    return {
        f"width_{width}": 1 / (1 - share) for width, share in measured.BEAM_SAVING_ALPACA.items()
    }


def p9() -> Numbers:
    table = block_table_bytes(4096, _BLOCK)
    return {"table_bytes": table, "share": table / cache_bytes(_LLAMA_70B, 4096)}


def p10() -> Numbers:
    whole = block_bytes(_LLAMA_70B, _BLOCK)
    return {"layer_bytes": whole / _LLAMA_70B.num_layers, "mib": whole / MIB}


def p11() -> Numbers:
    return {"slots": _MOST_EMPTY}


def p17() -> Numbers:
    size = len(b"You are a helpful assistant. User: ")
    return {
        "text_bytes": size,
        "blocks": tokens_fill_blocks(size, _BLOCK),
        "needed": 3 * _BLOCK,
    }


def p18() -> Numbers:
    return measured.concurrency()
