"""Gives KV blocks to requests as their tokens are scheduled and takes them back.

Answers "how does a paged engine allocate memory?": no reservation for the longest possible
output, at most one partly empty block per request, and full blocks shared by content. A fork
shares all blocks, the partly filled one too, until one of its holders writes into it and gets a
copy (copy-on-write). It knows block ids only; the tensors belong to the worker.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from infra_lab.cache.block_hash import ExtraKeys, HashFunction, PrefixChain, sha256
from infra_lab.cache.block_pool import BlockPool, CacheUsage
from infra_lab.cache.block_table import BlockTable
from infra_lab.cache.free_block_queue import CacheIntegrityError, KVCacheBlock
from infra_lab.errors import UsageError
from infra_lab.step import BlockCopy


@dataclass(frozen=True, slots=True)
class CachedPrefix:
    """Leading blocks whose content is in the cache already, not yet held for the finder.

    `host_blocks` go on from `blocks`, in the swap space; `num_tokens` are in both.
    """

    blocks: tuple[KVCacheBlock, ...] = ()
    num_tokens: int = 0
    host_blocks: tuple[KVCacheBlock, ...] = ()

    @property
    def block_ids(self) -> list[int]:
        return [block.block_id for block in self.blocks]


NO_PREFIX = CachedPrefix()


class KVCacheManager:
    """Block tables of all requests over one pool.

    Args:
        num_blocks: blocks of the KV tensors, the reserved null block 0 included: a pool of
            `n` usable blocks is `num_blocks=n + 1`.
        block_size: tokens in one block.
        enable_prefix_caching: whether full blocks are kept and found by their content.
        hash_function: replaceable so that tests can force collisions.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        enable_prefix_caching: bool = True,
        hash_function: HashFunction = sha256,
    ) -> None:
        if block_size < 1:
            raise UsageError(f"block_size must be at least 1, not {block_size}")
        self.block_size = block_size
        self.enable_prefix_caching = enable_prefix_caching
        self.pool = BlockPool(num_blocks)
        self._hash_function = hash_function
        self._tables: dict[str, BlockTable] = {}
        self._copies: dict[int, int] = {}  # target block id -> source

    @property
    def num_usable_blocks(self) -> int:
        return self.pool.num_usable_blocks

    @property
    def capacity_tokens(self) -> int:
        """Tokens that one request alone could keep in the pool."""
        return self.num_usable_blocks * self.block_size

    @property
    def usage(self) -> CacheUsage:
        return self.pool.usage

    @property
    def num_evictions(self) -> int:
        """Cached blocks whose content was given up for new content, since construction."""
        return self.pool.num_evictions

    def num_blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)

    def new_chain(self, extra_keys: ExtraKeys = ()) -> PrefixChain:
        """The hash chain of one request, to be passed back with that request's tokens."""
        return PrefixChain(self.block_size, extra_keys, self._hash_function)

    def find_cached_prefix(self, chain: PrefixChain, token_ids: Sequence[int]) -> CachedPrefix:
        """The longest run of leading full blocks in the cache, at most all tokens but one:
        the last token must be computed again, for its logits are what is sampled from.

        Takes nothing: pass the result to `allocate_slots` before anything else is allocated.
        """
        if not self.enable_prefix_caching:
            return NO_PREFIX
        found: list[KVCacheBlock] = []
        for index in range((len(token_ids) - 1) // self.block_size):
            block = self.pool.find(chain.key(index, token_ids))
            if block is None or block.key is None:
                break
            chain.adopt(index, block.key)
            found.append(block)
        return CachedPrefix(tuple(found), len(found) * self.block_size)

    def can_fit(
        self,
        num_tokens: int,
        cached_prefix: CachedPrefix = NO_PREFIX,
        after_freeing: Iterable[str] = (),
    ) -> bool:
        """Whether a request that holds nothing yet could get blocks for `num_tokens` now, or once
        the requests named in `after_freeing` have given back theirs."""
        needed = self.num_blocks_for(num_tokens) - len(cached_prefix.blocks)
        given_back = Counter(b for name in after_freeing for b in self.block_ids(name))
        blocks = self.pool.blocks
        freed = sum(blocks[b].ref_count == count for b, count in given_back.items())
        # Blocks of the prefix that are then free are about to be taken.
        idle_prefix = sum(b.ref_count == given_back[b.block_id] for b in cached_prefix.blocks)
        return needed <= self.pool.num_free_blocks + freed - idle_prefix

    def allocate_slots(
        self,
        request_id: str,
        num_computed_tokens: int,
        num_new_tokens: int,
        cached_prefix: CachedPrefix = NO_PREFIX,
        num_lookahead_tokens: int = 0,
        rewrites_slots: bool = False,
    ) -> list[int] | None:
        """Make room for `num_new_tokens` after `num_computed_tokens` (a cached prefix counted
        in), and for `num_lookahead_tokens` that may be drafted after them.

        A block in reach of these tokens that another request holds too is replaced by a block of
        the request's own; `take_block_copies` says what must be copied into it. With
        `rewrites_slots` earlier tokens' slots are written too, and all blocks are in reach.

        Returns the ids of the blocks added behind the cached prefix (often none), or None,
        with nothing changed, if the pool has too few.
        """
        num_slots = num_computed_tokens + num_new_tokens + num_lookahead_tokens
        table = self._tables.get(request_id)
        num_held = len(table.blocks) if table else 0
        if num_held and cached_prefix.blocks:
            raise CacheIntegrityError(
                f"request {request_id!r} holds {num_held} blocks and cannot begin with a prefix"
            )
        num_needed = self.num_blocks_for(num_slots) - num_held - len(cached_prefix.blocks)
        num_needed = max(num_needed, 0)
        first_slot = 0 if rewrites_slots else num_computed_tokens
        shared = self._shared(table, first_slot, num_slots) if table else []
        if table is not None and not num_needed and not shared:
            return []
        if num_needed + len(shared) > self._num_available(cached_prefix):
            return None
        if table is None:
            table = self._tables[request_id] = BlockTable()
        self._make_own(table, shared, num_computed_tokens)
        if cached_prefix.blocks:
            self.pool.touch(cached_prefix.blocks)
            table.append(cached_prefix.blocks)
            table.num_registered = len(cached_prefix.blocks)
        return table.append(self.pool.allocate(num_needed))

    def fork(self, parent_id: str, child_id: str) -> None:
        """Let a request that holds nothing share all blocks of another."""
        if child_id in self._tables:
            raise CacheIntegrityError(f"request {child_id!r} holds blocks and cannot become a fork")
        table = self._tables[parent_id].fork()
        self.pool.touch(table.blocks)
        self._tables[child_id] = table

    def reassign(self, parents: Mapping[str, str]) -> None:
        """Let requests hold what others hold now (child: parent), all at once, and give back what
        they held. A child whose parent holds nothing holds nothing then."""
        tables = {
            child: self._tables[parent].fork()
            for child, parent in parents.items()
            if parent in self._tables
        }
        for table in tables.values():
            self.pool.touch(table.blocks)
        for child in parents:
            self.free(child)
        self._tables |= tables

    def take_block_copies(self) -> list[BlockCopy]:
        """What the next step must copy before it writes anything, once.

        All sources are to be read before any target is written.
        """
        copies = [BlockCopy(source, target) for target, source in self._copies.items()]
        self._copies.clear()
        return copies

    def num_blocks_held(self, request_ids: Iterable[str]) -> tuple[int, int]:
        """Blocks that these requests hold together, and what they would without sharing."""
        tables = [self._tables[name].block_ids for name in request_ids if name in self._tables]
        return len(set().union(*tables)), sum(map(len, tables))

    def cache_full_blocks(
        self, request_id: str, chain: PrefixChain, token_ids: Sequence[int], num_final_tokens: int
    ) -> None:
        """Make findable every full block among the first `num_final_tokens`.

        Call it after the step that computed them, counting only tokens that will stay: a
        drafted token that was rejected must never be found by another request.
        """
        table = self._tables[request_id]
        num_full = num_final_tokens // self.block_size
        if num_full <= table.num_registered or not self.enable_prefix_caching:
            return
        for index in range(table.num_registered, num_full):
            key = self.pool.register(table.blocks[index], chain.key(index, token_ids))
            chain.adopt(index, key)
        table.num_registered = num_full

    def free(self, request_id: str) -> None:
        """Give back all blocks of a request, its tail first; nothing if it holds none."""
        table = self._tables.pop(request_id, None)
        if table is not None:
            self.pool.free(reversed(table.blocks))

    def block_ids(self, request_id: str) -> list[int]:
        """A copy of the request's block table; empty if it holds no blocks."""
        table = self._tables.get(request_id)
        return table.block_ids.copy() if table else []

    def table(self, request_id: str) -> BlockTable:
        """The block table of a request that holds blocks; not a copy."""
        return self._tables[request_id]

    def source_of(self, block_id: int) -> int:
        """Where a block's content lies until the copies of this step are done."""
        return self._copies.get(block_id, block_id)

    def holders(self) -> set[str]:
        """Ids of the requests that have a block table."""
        return set(self._tables)

    def reset_prefix_cache(self) -> bool:
        """Forget all cached content; False, and nothing done, while a request holds blocks."""
        return self.pool.reset_prefix_cache()

    def check_integrity(self) -> None:
        """Raise CacheIntegrityError if blocks leaked, are held wrongly or are filed wrongly."""
        self.pool.check_integrity({name: table.block_ids for name, table in self._tables.items()})

    def _shared(self, table: BlockTable, begin: int, end: int) -> list[int]:
        """Indices of the blocks with a slot in begin .. end - 1 that others hold too."""
        within = range(begin // self.block_size, min(self.num_blocks_for(end), len(table.blocks)))
        return [index for index in within if table.blocks[index].ref_count > 1]

    def _make_own(self, table: BlockTable, indices: Sequence[int], num_computed: int) -> None:
        for index, block in zip(indices, self.pool.allocate(len(indices)), strict=True):
            old = table.blocks[index]
            if index * self.block_size < num_computed:
                # A target that was given up meanwhile and taken again gets its last source.
                self._copies[block.block_id] = old.block_id
            table.replace(index, block)
            self.pool.free([old])

    def _num_available(self, cached_prefix: CachedPrefix) -> int:
        # Blocks of the prefix that wait in the free queue are about to be taken from it.
        idle_prefix = sum(block.ref_count == 0 for block in cached_prefix.blocks)
        return self.pool.num_free_blocks - idle_prefix
