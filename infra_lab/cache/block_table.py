"""Where one request's tokens lie: token i is in block `block_ids[i // block_size]`.

Answers "what is a block table?": the page table of paged attention, one entry per block of
tokens. It grows at the end; an entry changes only when a block that others share is to be written
(copy-on-write).
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

    def fork(self) -> BlockTable:
        """A table of the same blocks; who holds them is the caller's business."""
        return BlockTable(self.blocks.copy(), self.block_ids.copy(), self.num_registered)

    def replace(self, index: int, block: KVCacheBlock) -> None:
        """Put another block in the place of block `index`."""
        self.blocks[index] = block
        self.block_ids[index] = block.block_id

    def append(self, blocks: Iterable[KVCacheBlock]) -> list[int]:
        """Add blocks at the end and return their ids."""
        added = list(blocks)
        ids = [block.block_id for block in added]
        self.blocks += added
        self.block_ids += ids
        return ids
