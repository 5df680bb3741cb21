"""Which block of the KV cache holds what, between two steps: what the chat page draws."""

from __future__ import annotations

from typing import Any

from infra_lab.engine.engine_core import EngineCore

FREE, CACHED, USED = ".", "c", "u"


def block_map(core: EngineCore) -> dict[str, Any]:
    """`blocks` has a character for each block, from block 1 on: held by a request, free but found
    by its content, or free; `running` names each sample in the batch with its blocks, in the order
    of its tokens. To be called on the engine's thread."""
    scheduler = core.scheduler
    kv_cache = scheduler.kv_cache
    holders = kv_cache.holders()
    states = (
        USED if block.ref_count else FREE if block.key is None else CACHED
        for block in kv_cache.pool.blocks[1:]
    )
    return {
        "object": "cache.blocks",
        "block_size": kv_cache.block_size,
        "blocks": "".join(states),
        "running": [
            {
                "id": request.request_id,
                "num_tokens": request.num_tokens,
                "num_computed_tokens": request.num_computed_tokens,
                "block_ids": kv_cache.block_ids(request.request_id),
            }
            for request in scheduler.running
            if request.request_id in holders
        ],
    }
