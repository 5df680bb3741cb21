"""Free KV blocks in the order in which they will be given out: least recently used first.

Answers "why a linked list and not a deque?". A prefix hit takes a block out of the middle of
the queue, which must cost O(1); the links live in the blocks themselves, so nothing is
allocated per operation.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from infra_lab.cache.block_hash import BlockKey
from infra_lab.errors import InfraLabError


class CacheIntegrityError(InfraLabError):
    """The block accounting contradicts itself: a leak, a double free or a wrong owner."""


@dataclass(slots=True, eq=False)
class KVCacheBlock:
    """One block of the pool.

    Attributes:
        ref_count: block tables that hold it; at 0 it stands in the free queue.
        key: what its full content is, if that may be found by others; kept while the block
            waits in the free queue, until the block is given out for new content.
    """

    block_id: int
    ref_count: int = 0
    key: BlockKey | None = None
    previous_free: KVCacheBlock | None = field(default=None, repr=False)
    next_free: KVCacheBlock | None = field(default=None, repr=False)


class FreeBlockQueue:
    """A doubly linked list between two sentinels; every operation on one block is O(1)."""

    def __init__(self, blocks: Iterable[KVCacheBlock] = ()) -> None:
        self._head = KVCacheBlock(block_id=-1)
        self._tail = KVCacheBlock(block_id=-1)
        self._head.next_free, self._tail.previous_free = self._tail, self._head
        self._length = 0
        for block in blocks:
            self.append(block)

    def __len__(self) -> int:
        return self._length

    def __iter__(self) -> Iterator[KVCacheBlock]:
        block = self._head.next_free
        while block is not None and block is not self._tail:
            yield block
            block = block.next_free

    def append(self, block: KVCacheBlock) -> None:
        """Put a block at the end: it will be reused last."""
        self._insert(block, before=self._tail)

    def appendleft(self, block: KVCacheBlock) -> None:
        """Put a block at the beginning: it will be reused first."""
        if self._head.next_free is None:
            raise CacheIntegrityError("the free queue lost its beginning")
        self._insert(block, before=self._head.next_free)

    def remove(self, block: KVCacheBlock) -> None:
        """Take a block out, wherever it stands."""
        previous, following = block.previous_free, block.next_free
        if previous is None or following is None:
            raise CacheIntegrityError(f"block {block.block_id} is not in the free queue")
        previous.next_free, following.previous_free = following, previous
        block.previous_free = block.next_free = None
        self._length -= 1

    def _insert(self, block: KVCacheBlock, before: KVCacheBlock) -> None:
        if block.next_free is not None:
            raise CacheIntegrityError(f"block {block.block_id} was freed twice")
        previous = before.previous_free
        if previous is None:
            raise CacheIntegrityError("the free queue lost its end")
        previous.next_free, before.previous_free = block, block
        block.previous_free, block.next_free = previous, before
        self._length += 1

    def popleft(self) -> KVCacheBlock:
        """Take the block that was not used for the longest time."""
        first = self._head.next_free
        if first is None or first is self._tail:
            raise CacheIntegrityError("a block was taken from an empty free queue")
        self.remove(first)
        return first
