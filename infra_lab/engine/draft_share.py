"""Puts draft tokens into a step, out of what its known tokens have left over.

Answers "what may speculation cost the other requests?". Nothing they need: a draft gets budget
and blocks only after every running request has its known tokens and every waiting one that can
run is in, it is cut to what is left, and nobody is preempted for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from infra_lab.cache.kv_cache_manager import KVCacheManager
from infra_lab.config import EngineConfig
from infra_lab.engine.request import Request
from infra_lab.engine.step_builder import StepBuilder


def add_drafts(
    step: StepBuilder, running: Sequence[Request], kv_cache: KVCacheManager, config: EngineConfig
) -> None:
    """Extend the shares of `running` that reach their last known token by their drafts; of none
    where the memory was too little even for known tokens."""
    if step.preempted_ids:
        return
    for request in running:
        if len(request.draft) == 0 or step.budget == 0:
            continue
        item = step.scheduled(request.request_id)
        if item is None or not item.samples:
            continue
        num_known = len(item.token_ids)
        room = step.budget
        if config.long_prefill_token_threshold and config.enable_chunked_prefill:
            room = min(room, config.long_prefill_token_threshold - num_known)
        draft = request.draft.first(room)
        if len(draft) == 0:
            continue
        start = item.num_computed_tokens
        if kv_cache.allocate_slots(request.request_id, start, num_known + len(draft)) is None:
            continue
        step.extend(
            replace(
                item,
                token_ids=[*item.token_ids, *draft.token_ids],
                block_ids=kv_cache.block_ids(request.request_id),
                draft=draft,
            )
        )
