"""All KV blocks of an engine: who holds them, which are free, which can be found by content.

Answers "how does prefix caching share memory, and what happens when memory runs out?". A
block that nobody holds keeps its content and its key in the free queue until it is given out
for something else: the cache costs no memory of its own and eviction is nothing but reuse.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from infra_lab.cache.block_hash import BlockKey, same_content
from infra_lab.cache.free_block_queue import CacheIntegrityError, FreeBlockQueue, KVCacheBlock
from infra_lab.errors import UsageError

NULL_BLOCK_ID = 0


@dataclass(frozen=True, slots=True)
class CacheUsage:
    """Blocks by state: `free` hold nothing of use, `cached` are held by nobody but can be
    found by their content, `used` are held by requests. They sum to the usable pool."""

    free: int
    cached: int
    used: int


class BlockPool:
    """Blocks 1 .. num_blocks - 1; block 0 is the null block, never given out.

    Padding in a block table may point at the null block, so that no real content is touched.
    """

    def __init__(self, num_blocks: int) -> None:
        if num_blocks < 2:
            raise UsageError(
                f"a KV pool needs at least 2 blocks (one is the reserved null block), "
                f"not {num_blocks}"
            )
        self.null_block = KVCacheBlock(NULL_BLOCK_ID)
        self.blocks = [self.null_block, *(KVCacheBlock(i) for i in range(1, num_blocks))]
        self.num_evictions = 0
        self._free_queue = FreeBlockQueue(self.blocks[1:])
        self._by_hash: dict[bytes, dict[int, KVCacheBlock]] = {}
        self._num_idle_cached = 0

    @property
    def num_usable_blocks(self) -> int:
        return len(self.blocks) - 1

    @property
    def num_free_blocks(self) -> int:
        """Blocks that can be given out, those still holding findable content included."""
        return len(self._free_queue)

    @property
    def usage(self) -> CacheUsage:
        idle = len(self._free_queue)
        return CacheUsage(
            free=idle - self._num_idle_cached,
            cached=self._num_idle_cached,
            used=self.num_usable_blocks - idle,
        )

    def free_block_ids(self) -> list[int]:
        """Ids in the order in which they will be given out."""
        return [block.block_id for block in self._free_queue]

    def allocate(self, count: int) -> list[KVCacheBlock]:
        """Give out the `count` least recently used blocks, forgetting their old content."""
        if count > len(self._free_queue):
            raise CacheIntegrityError(
                f"{count} blocks were asked for but only {len(self._free_queue)} are free"
            )
        return [self._take_next() for _ in range(count)]

    def touch(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Add one holder to each block; a block that waited in the free queue leaves it."""
        for block in blocks:
            if block.ref_count == 0:
                self._free_queue.remove(block)
                self._num_idle_cached -= block.key is not None
            block.ref_count += 1

    def free(self, blocks: Iterable[KVCacheBlock]) -> None:
        """Take one holder from each block, in the given order: pass a table's tail first, so
        that its beginning, which more requests may share, is reused last."""
        for block in blocks:
            if block.ref_count == 0:
                raise CacheIntegrityError(f"block {block.block_id} was freed twice")
            block.ref_count -= 1
            if block.ref_count == 0:
                self._free_queue.append(block)
                self._num_idle_cached += block.key is not None

    def find(self, key: BlockKey) -> KVCacheBlock | None:
        """A block whose content is that of `key`: found by hash, taken only on equal tokens."""
        for block in self._by_hash.get(key.block_hash, {}).values():
            if same_content(block.key, key):
                return block
        return None

    def register(self, block: KVCacheBlock, key: BlockKey) -> BlockKey:
        """Make a held, fully computed block findable; returns the key it is filed under.

        Another block of the same content may exist (two requests computed it in one step):
        both stay, each useful after the other's eviction, and they share one key object.
        """
        if block.ref_count == 0 or block.key is not None:
            raise CacheIntegrityError(
                f"block {block.block_id} cannot be filed: it must be held and not filed yet"
            )
        twin = self.find(key)
        block.key = twin.key if twin is not None and twin.key is not None else key
        self._by_hash.setdefault(block.key.block_hash, {})[block.block_id] = block
        return block.key

    def forget(self, block: KVCacheBlock) -> None:
        """Let a block's content be found no more; who holds it keeps it."""
        if block.key is not None:
            self._num_idle_cached -= block.ref_count == 0
            self._forget(block, block.key)

    def discard(self, block: KVCacheBlock) -> None:
        """Forget the content of a block that nobody holds, and give it out before all others;
        nothing if it is held."""
        if block.ref_count == 0:
            self.forget(block)
            self._free_queue.remove(block)
            self._free_queue.appendleft(block)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached content; False, and nothing done, while any block is held."""
        if len(self._free_queue) != self.num_usable_blocks:
            return False
        for block in self.blocks:
            block.key = None
        self._by_hash.clear()
        self._num_idle_cached = 0
        return True

    def check_integrity(self, tables: Mapping[str, Sequence[int]]) -> None:
        """Raise CacheIntegrityError naming the first fault; `tables` maps holders to block ids."""
        holders = Counter(block_id for table in tables.values() for block_id in table)
        queued = Counter(self.free_block_ids())
        if NULL_BLOCK_ID in holders or NULL_BLOCK_ID in queued:
            raise CacheIntegrityError("the null block was given out or freed")
        for block in self.blocks[1:]:
            self._check_block(block, holders[block.block_id], queued[block.block_id])
        usage = self.usage
        idle_cached = sum(b.ref_count == 0 and b.key is not None for b in self.blocks)
        if usage.cached != idle_cached or min(usage.free, usage.cached, usage.used) < 0:
            raise CacheIntegrityError(f"{usage} is wrong: {idle_cached} idle blocks are cached")
        filed = sum(len(bucket) for bucket in self._by_hash.values())
        if filed != sum(block.key is not None for block in self.blocks):
            raise CacheIntegrityError("the hash index and the blocks' keys disagree")

    def _check_block(self, block: KVCacheBlock, num_holders: int, times_queued: int) -> None:
        name = f"block {block.block_id}"
        if block.ref_count != num_holders:
            raise CacheIntegrityError(
                f"{name} has reference count {block.ref_count} but {num_holders} tables hold it"
            )
        if times_queued != (block.ref_count == 0):
            raise CacheIntegrityError(
                f"{name} has reference count {block.ref_count} and is in the free queue "
                f"{times_queued} times"
            )
        if block.key is None:
            return
        if self._by_hash.get(block.key.block_hash, {}).get(block.block_id) is not block:
            raise CacheIntegrityError(f"{name} has a key but is not in the hash index")

    def _take_next(self) -> KVCacheBlock:
        block = self._free_queue.popleft()
        if block.key is not None:
            self._forget(block, block.key)
            self._num_idle_cached -= 1
            self.num_evictions += 1
        block.ref_count = 1
        return block

    def _forget(self, block: KVCacheBlock, key: BlockKey) -> None:
        bucket = self._by_hash[key.block_hash]
        del bucket[block.block_id]
        if not bucket:
            del self._by_hash[key.block_hash]
        block.key = None
