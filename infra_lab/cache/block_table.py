"""Where one request's tokens lie: token i is in block `block_ids[i // block_size]`.

Answers "what is a block table?": the page table of paged attention, one entry per block of
tokens, growing at the end only.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from infra_lab.cache.free_block_queue import KVCacheBlock


@dataclass(slots=True)
class BlockTable:
    """The blocks one request holds, in the order of its tokens.

    `num_registered` leading blocks are already findable in the prefix cache.
    """

    blocks: list[KVCacheBlock] = field(default_factory=list)
    block_ids: list[int] = field(default_factory=list)
    num_registered: int = 0

    def append(self, blocks: Iterable[KVCacheBlock]) -> list[int]:
        """Add blocks at the end and return their ids."""
        added = list(blocks)
        ids = [block.block_id for block in added]
        self.blocks += added
        self.block_ids += ids
        return ids
