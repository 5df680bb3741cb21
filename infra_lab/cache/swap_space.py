"""A second pool of KV blocks, in host memory: for preempted requests, and for idle conversations.

Answers "swap or recompute?" and "where does a conversation's cache go while its user thinks?". A
swapped request keeps its blocks here, the partly filled one too, and goes on where it stopped.
Blocks that nobody holds stay findable by the content keys of the primary pool, until the least
recently used make room. It knows block ids only: what must be copied stands in the step's output,
and the worker copies it, out before in, before anything is written.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from infra_lab.cache.block_hash import PrefixChain
from infra_lab.cache.block_pool import BlockPool, CacheUsage
from infra_lab.cache.block_table import BlockTable
from infra_lab.cache.free_block_queue import CacheIntegrityError, KVCacheBlock
from infra_lab.cache.kv_cache_manager import CachedPrefix, KVCacheManager
from infra_lab.step import BlockCopy

COPIES_UNDER_WAY = "(copies under way)"


@dataclass(frozen=True, slots=True)
class SwapWork:
    """What swapping one request would move, and what it would save.

    `blocks_out` lack a copy here, `blocks_in` are held by nobody else in the primary pool, and
    `num_tokens` are in these: what recomputing would have to compute.
    """

    blocks_out: int
    blocks_in: int
    num_tokens: int


class SwapSpace:
    """Block tables of swapped requests over one pool of host blocks.

    Args:
        num_blocks: blocks of the host tensors, the unused block 0 included, as in the primary pool.
        kv_cache: the primary pool's accounts.
    """

    def __init__(self, num_blocks: int, kv_cache: KVCacheManager) -> None:
        self.pool = BlockPool(num_blocks)
        self._kv_cache = kv_cache
        self._tables: dict[str, BlockTable] = {}
        self._outs: dict[int, int] = {}  # host block id -> primary block id
        self._ins: list[BlockCopy] = []
        self._being_read: list[KVCacheBlock] = []

    @property
    def usage(self) -> CacheUsage:
        return self.pool.usage

    def begin_step(self) -> None:
        """The copies of the step before are done: what they read may be given out again."""
        self.pool.free(self._being_read)
        self._being_read = []

    def work_of(self, request_id: str, num_computed_tokens: int) -> SwapWork:
        """What swapping this running request out, and in again, would move."""
        blocks = self._computed_blocks(request_id, num_computed_tokens)
        num_shared = sum(block.ref_count > 1 and block.key is not None for block in blocks)
        return SwapWork(
            blocks_out=sum(self._find(block) is None for block in blocks),
            blocks_in=len(blocks) - num_shared,
            num_tokens=num_computed_tokens - num_shared * self._kv_cache.block_size,
        )

    def swap_out(self, request_id: str, num_computed_tokens: int) -> bool:
        """Keep the computed blocks of a running request, whose own are then to be freed.

        False, with nothing changed, if there are too few blocks here.
        """
        blocks = self._computed_blocks(request_id, num_computed_tokens)
        kept = [self._find(block) for block in blocks]
        found = [block for block in kept if block is not None]
        num_needed = len(blocks) - len(found)
        if num_needed > self.pool.num_free_blocks - sum(b.ref_count == 0 for b in found):
            return False
        self.pool.touch(found)
        new = iter(self.pool.allocate(num_needed))
        table = self._tables[request_id] = BlockTable()
        for block, twin in zip(blocks, kept, strict=True):
            table.append([twin or self._copy_out(next(new), block)])
        return True

    def prefix_of(self, request_id: str, num_computed_tokens: int) -> CachedPrefix:
        """A swapped request's blocks: those at the beginning that the primary pool still has, and
        the others here."""
        host_blocks = self._tables[request_id].blocks
        found = []
        for host_block in host_blocks:
            block = None if host_block.key is None else self._kv_cache.pool.find(host_block.key)
            if block is None:
                break
            found.append(block)
        rest = tuple(host_blocks[len(found) :])
        return CachedPrefix(tuple(found), num_computed_tokens, rest)

    def extend_prefix(
        self, prefix: CachedPrefix, chain: PrefixChain, token_ids: Sequence[int]
    ) -> CachedPrefix:
        """A prefix found in the primary pool, with the full blocks that go on from it here; all
        tokens but one at most."""
        if not self._kv_cache.enable_prefix_caching:
            return prefix
        block_size, found = self._kv_cache.block_size, []
        for index in range(len(prefix.blocks), (len(token_ids) - 1) // block_size):
            block = self.pool.find(chain.key(index, token_ids))
            if block is None:
                break
            found.append(block)
        num_tokens = (len(prefix.blocks) + len(found)) * block_size
        return replace(prefix, num_tokens=num_tokens, host_blocks=tuple(found)) if found else prefix

    def bring_in(self, request_id: str, prefix: CachedPrefix) -> None:
        """Have the host blocks of a prefix copied to the places that `allocate_slots` has just
        given the request behind the prefix's other blocks; ends its being swapped."""
        table, first = self._kv_cache.table(request_id), len(prefix.blocks)
        targets = table.blocks[first : first + len(prefix.host_blocks)]
        for host_block, target in zip(prefix.host_blocks, targets, strict=True):
            self._ins.append(BlockCopy(host_block.block_id, target.block_id))
            if host_block.key is not None:
                self._kv_cache.pool.register(target, host_block.key)
                table.num_registered += 1
        self.pool.touch(prefix.host_blocks)
        self._being_read += reversed(prefix.host_blocks)
        self.drop(request_id)

    def drop(self, request_id: str) -> None:
        """Give back what a swapped request holds; nothing if it is not one."""
        table = self._tables.pop(request_id, None)
        if table is not None:
            self.pool.free(reversed(table.blocks))

    def offload(self, chain: PrefixChain, token_ids: Sequence[int]) -> int:
        """Move the cached full blocks of these tokens here; returns how many tokens are then
        found here or in blocks that a request still uses.

        The longest prefix of which every block is cached, and as much of it as this pool has room
        for. Blocks that no request uses leave the primary pool.
        """
        kept: list[KVCacheBlock] = []
        moved: list[KVCacheBlock] = []
        for index in range(len(token_ids) // self._kv_cache.block_size):
            key = chain.key(index, token_ids)
            block, host_block = self._kv_cache.pool.find(key), self.pool.find(key)
            if host_block is not None:
                self.pool.touch([host_block])
            elif block is not None and self.pool.num_free_blocks:
                host_block = self._copy_out(self.pool.allocate(1)[0], block)
            else:
                break
            kept.append(host_block)
            if block is not None:
                moved.append(block)
        self.pool.free(reversed(kept))
        for block in reversed(moved):
            self._kv_cache.pool.discard(block)
        return len(kept) * self._kv_cache.block_size

    def take_copies(self) -> tuple[list[BlockCopy], list[BlockCopy]]:
        """What the next step must copy out of the primary pool, and then into it, once."""
        outs = [BlockCopy(source, target) for target, source in self._outs.items()]
        ins, self._ins = self._ins, []
        self._outs.clear()
        return outs, ins

    def lose(self, block_ids: Collection[int]) -> list[str]:
        """Copies to these blocks failed: forget their content; returns the swapped requests that
        lost a block, which hold nothing any more."""
        for block_id in block_ids:
            self.pool.forget(self.pool.blocks[block_id])
        lost = [
            name
            for name, table in self._tables.items()
            if not set(block_ids).isdisjoint(table.block_ids)
        ]
        for name in lost:
            self.drop(name)
        return lost

    def reset(self) -> bool:
        """Forget all offloaded content; False, and nothing done, while a swapped request holds
        any. Not to be called while a step is under way."""
        if self._tables:
            return False
        self.begin_step()
        return self.pool.reset_prefix_cache()

    def check_integrity(self, swapped_ids: set[str]) -> None:
        """Raise CacheIntegrityError unless exactly these requests hold blocks here, and the pool's
        accounts are right."""
        if set(self._tables) != swapped_ids:
            raise CacheIntegrityError(
                f"blocks in the swap space are held by {sorted(self._tables)} but swapped are "
                f"{sorted(swapped_ids)}"
            )
        tables = {name: table.block_ids for name, table in self._tables.items()}
        being_read = [block.block_id for block in self._being_read]
        self.pool.check_integrity({**tables, COPIES_UNDER_WAY: being_read})

    def _computed_blocks(self, request_id: str, num_computed_tokens: int) -> list[KVCacheBlock]:
        blocks = self._kv_cache.table(request_id).blocks
        return blocks[: self._kv_cache.num_blocks_for(num_computed_tokens)]

    def _find(self, block: KVCacheBlock) -> KVCacheBlock | None:
        return None if block.key is None else self.pool.find(block.key)

    def _copy_out(self, host_block: KVCacheBlock, block: KVCacheBlock) -> KVCacheBlock:
        # A block whose own copy-on-write is still to come is read where that will read.
        self._outs[host_block.block_id] = self._kv_cache.source_of(block.block_id)
        if block.key is not None:
            self.pool.register(host_block, block.key)
        return host_block
