"""The pool: reference counts, eviction, duplicates, and an integrity check that sees faults."""

from __future__ import annotations

import pytest

from infra_lab.cache.block_hash import PrefixChain
from infra_lab.cache.block_pool import BlockPool, CacheUsage
from infra_lab.cache.free_block_queue import CacheIntegrityError
from infra_lab.errors import UsageError

KEY = PrefixChain(2).key(0, [1, 2])


def twin_key():
    return PrefixChain(2).key(0, [1, 2])


def test_eleven_blocks_are_ten_usable_ones_numbered_from_one() -> None:
    pool = BlockPool(11)
    assert pool.free_block_ids() == list(range(1, 11))
    assert pool.num_usable_blocks == 10


def test_a_pool_of_the_null_block_alone_is_refused() -> None:
    with pytest.raises(UsageError, match="at least 2 blocks"):
        BlockPool(1)


def test_more_blocks_than_are_free_are_not_given_out() -> None:
    with pytest.raises(CacheIntegrityError, match="4 blocks were asked for but only 3 are free"):
        BlockPool(4).allocate(4)


def test_a_block_is_free_when_its_last_holder_lets_go() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(1)
    pool.touch(blocks)
    pool.free(blocks)
    assert pool.num_free_blocks == 1
    pool.free(blocks)
    assert pool.num_free_blocks == 2


def test_freeing_twice_is_an_error() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(1)
    pool.free(blocks)
    with pytest.raises(CacheIntegrityError, match="block 1 was freed twice"):
        pool.free(blocks)


def test_a_freed_block_keeps_its_content_until_it_is_given_out() -> None:
    pool = BlockPool(3)
    blocks = pool.allocate(1)
    pool.register(blocks[0], KEY)
    pool.free(blocks)
    assert pool.usage == CacheUsage(free=1, cached=1, used=0)
    assert pool.find(twin_key()) is blocks[0]
    pool.allocate(2)
    assert pool.find(KEY) is None
    assert pool.num_evictions == 1


def test_two_blocks_may_share_a_hash_and_one_outlives_the_other() -> None:
    pool = BlockPool(3)
    first, second = pool.allocate(2)
    pool.register(first, KEY)
    assert pool.register(second, twin_key()) is KEY, "equal content is filed under one key"
    pool.free([first])
    pool.allocate(1)
    assert pool.find(KEY) is second
    pool.free([second])
    assert pool.find(KEY) is second


def test_a_block_nobody_holds_cannot_be_filed() -> None:
    pool = BlockPool(3)
    with pytest.raises(CacheIntegrityError, match="block 1 cannot be filed"):
        pool.register(pool.blocks[1], KEY)


def test_the_cache_is_not_reset_while_a_block_is_held() -> None:
    pool = BlockPool(4)
    blocks = pool.allocate(2)
    pool.register(blocks[0], KEY)
    pool.free(blocks[:1])
    assert not pool.reset_prefix_cache()
    assert pool.find(KEY) is blocks[0]
    pool.free(blocks[1:])
    assert pool.reset_prefix_cache()
    assert pool.find(KEY) is None
    assert pool.usage == CacheUsage(free=3, cached=0, used=0)
    pool.check_integrity({})


def test_the_integrity_check_names_a_leaked_block() -> None:
    pool = BlockPool(4)
    pool.allocate(2)
    with pytest.raises(CacheIntegrityError, match=r"block 2 has reference count 1 but 0 tables"):
        pool.check_integrity({"a": [1]})


def test_the_integrity_check_names_a_block_held_after_it_was_freed() -> None:
    pool = BlockPool(4)
    with pytest.raises(CacheIntegrityError, match=r"block 3 has reference count 0 but 1 tables"):
        pool.check_integrity({"a": [3]})


def test_the_integrity_check_names_a_block_outside_both_table_and_queue() -> None:
    pool = BlockPool(4)
    pool.allocate(1)[0].ref_count = 0
    with pytest.raises(CacheIntegrityError, match=r"block 1 .* in the free queue 0 times"):
        pool.check_integrity({})


def test_the_integrity_check_sees_a_key_that_is_not_indexed() -> None:
    pool = BlockPool(4)
    pool.blocks[2].key = KEY
    with pytest.raises(CacheIntegrityError, match="block 2 has a key but is not in the hash"):
        pool.check_integrity({})


def test_the_integrity_check_sees_the_null_block_in_a_table() -> None:
    with pytest.raises(CacheIntegrityError, match="null block"):
        BlockPool(4).check_integrity({"a": [0]})
