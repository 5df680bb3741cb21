"""Block order, prefix hits, eviction and failed allocations, as vLLM V1 has them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.cache.block_hash import sha256
from infra_lab.cache.free_block_queue import CacheIntegrityError
from infra_lab.cache.kv_cache_manager import CachedPrefix, KVCacheManager
from infra_lab.errors import UsageError
from infra_lab.step import BlockCopy

BLOCK = 16


def start(
    manager: KVCacheManager, request_id: str, tokens: list[int], extra_keys=()
) -> tuple[CachedPrefix, list[int] | None]:
    """Let a request compute all its tokens in one step: what it found and what it was given."""
    chain = manager.new_chain(extra_keys)
    prefix = manager.find_cached_prefix(chain, tokens)
    num_new = len(tokens) - prefix.num_tokens
    new_ids = manager.allocate_slots(request_id, prefix.num_tokens, num_new, prefix)
    if new_ids is not None:
        manager.cache_full_blocks(request_id, chain, tokens, len(tokens))
    manager.check_integrity()
    return prefix, new_ids


def ref_counts(manager: KVCacheManager) -> list[int]:
    return [block.ref_count for block in manager.pool.blocks[1:]]


def test_prefix_blocks_are_shared_and_reused_tail_first() -> None:
    manager = KVCacheManager(11, BLOCK)
    common = list(range(48))

    _, new_ids = start(manager, "a", common + [100] * 7)
    assert new_ids == [1, 2, 3, 4]
    assert [block.key is not None for block in manager.pool.blocks[1:5]] == [True] * 3 + [False]

    prefix, new_ids = start(manager, "b", common + [200] * 5)
    assert prefix.block_ids == [1, 2, 3]
    assert prefix.num_tokens == 48
    assert new_ids == [5]
    assert manager.block_ids("b") == [1, 2, 3, 5]
    assert ref_counts(manager)[:5] == [2, 2, 2, 1, 1]
    assert manager.pool.num_free_blocks == 5

    manager.free("a")
    manager.free("b")
    assert manager.pool.free_block_ids() == [6, 7, 8, 9, 10, 4, 5, 3, 2, 1]

    prefix, new_ids = start(manager, "c", common + [300] * 5)
    assert prefix.block_ids == [1, 2, 3]
    assert new_ids == [6]
    manager.free("c")
    _, new_ids = start(manager, "d", list(range(1000, 1160)))
    assert new_ids == [7, 8, 9, 10, 4, 5, 6, 3, 2, 1]


def test_blocks_are_evicted_least_recently_used_and_tail_first() -> None:
    manager = KVCacheManager(11, BLOCK)
    start(manager, "a", list(range(87)))
    start(manager, "b", list(range(87, 135)))
    manager.free("a")
    manager.free("b")
    assert manager.pool.free_block_ids() == [10, 6, 5, 4, 3, 2, 1, 9, 8, 7]
    prefix, new_ids = start(manager, "c", list(range(35)))
    assert prefix.block_ids == [1, 2]
    assert new_ids == [10]
    assert manager.pool.num_free_blocks == 7


def test_a_failed_allocation_changes_nothing() -> None:
    manager = KVCacheManager(11, BLOCK)
    start(manager, "a", list(range(48)))
    start(manager, "b", list(range(48)) + list(range(500, 548)))
    before, queue = ref_counts(manager), manager.pool.free_block_ids()
    _, new_ids = start(manager, "c", list(range(48)) + list(range(600, 600 + 16 * 5)))
    assert new_ids is None
    assert ref_counts(manager) == before
    assert manager.pool.free_block_ids() == queue
    assert manager.block_ids("c") == []
    manager.free("a")
    manager.free("b")
    assert manager.usage.used == 0


def test_idle_blocks_of_the_prefix_are_not_counted_as_free_for_the_rest() -> None:
    manager = KVCacheManager(5, BLOCK)
    start(manager, "a", list(range(48)))
    manager.free("a")
    assert manager.pool.num_free_blocks == 4
    prefix, new_ids = start(manager, "b", list(range(48)) + [0] * 32)
    assert prefix.block_ids == [1, 2, 3]
    assert new_ids is None, "4 are free but 3 of them are the prefix itself: 1 is left, 2 needed"
    assert not manager.can_fit(80, prefix)
    assert manager.can_fit(64, prefix)


def test_the_whole_of_a_sequence_is_never_taken_from_the_cache() -> None:
    manager = KVCacheManager(11, BLOCK)
    tokens = list(range(32))
    start(manager, "a", tokens)
    prefix, new_ids = start(manager, "b", tokens)
    assert prefix.num_tokens == 16
    assert new_ids == [3]


def test_two_requests_of_one_step_may_hold_the_same_content() -> None:
    manager = KVCacheManager(6, BLOCK)
    tokens = list(range(20))
    chains = {name: manager.new_chain() for name in "ab"}
    for name in "ab":
        manager.allocate_slots(name, 0, 20)
    for name in "ab":
        manager.cache_full_blocks(name, chains[name], tokens, 20)
    manager.check_integrity()
    manager.free("a")
    manager.allocate_slots("c", 0, 16 * 3)  # takes 5, and then the blocks of "a"
    assert manager.find_cached_prefix(manager.new_chain(), tokens).block_ids == [3]


def test_a_salt_keeps_cached_prefixes_apart() -> None:
    manager = KVCacheManager(11, BLOCK)
    tokens = list(range(33))
    start(manager, "a", tokens, (("salt", "x"),))
    for foreign in ((), (("salt", "y"),), (("adapter", "x"),)):
        assert manager.find_cached_prefix(manager.new_chain(foreign), tokens).num_tokens == 0
    same = manager.new_chain((("salt", "x"),))
    assert manager.find_cached_prefix(same, tokens).num_tokens == 32


def test_lookahead_tokens_get_slots_too() -> None:
    manager = KVCacheManager(11, 4)
    assert manager.allocate_slots("a", 0, 3, num_lookahead_tokens=2) == [1, 2]
    assert manager.allocate_slots("a", 3, 2, num_lookahead_tokens=2) == []
    assert manager.allocate_slots("a", 5, 2, num_lookahead_tokens=2) == [3]


def test_colliding_hashes_never_share_blocks_of_different_tokens() -> None:
    manager = KVCacheManager(11, 2, hash_function=lambda _: b"same")
    start(manager, "a", [1, 2, 9, 9, 0])
    assert start(manager, "b", [3, 4, 9, 9, 0])[0].num_tokens == 0
    assert start(manager, "c", [1, 2, 9, 9, 5])[0].block_ids == [1, 2]
    assert start(manager, "d", [3, 4, 7, 7, 5])[0].block_ids == manager.block_ids("b")[:1]


def test_only_final_tokens_are_cached() -> None:
    manager = KVCacheManager(11, 4)
    chain = manager.new_chain()
    manager.allocate_slots("a", 0, 9)
    manager.cache_full_blocks("a", chain, [1, 2, 3, 4, 5, 6, 7], 7)
    assert manager.find_cached_prefix(manager.new_chain(), list(range(1, 20))).num_tokens == 4


def test_without_prefix_caching_nothing_is_found() -> None:
    manager = KVCacheManager(11, BLOCK, enable_prefix_caching=False)
    start(manager, "a", list(range(40)))
    assert start(manager, "b", list(range(40)))[0].num_tokens == 0
    manager.free("a")
    assert manager.usage.cached == 0


def test_the_cache_is_reset_only_when_no_request_holds_blocks() -> None:
    manager = KVCacheManager(11, BLOCK)
    start(manager, "a", list(range(55)))
    assert not manager.reset_prefix_cache()
    manager.free("a")
    assert manager.reset_prefix_cache()
    assert start(manager, "b", list(range(55)))[0].num_tokens == 0


def test_freeing_a_request_that_holds_nothing_does_nothing() -> None:
    manager = KVCacheManager(11, BLOCK)
    manager.free("unknown")
    start(manager, "a", list(range(55)))
    manager.free("a")
    manager.free("a")
    manager.check_integrity()


def test_a_block_table_handed_out_does_not_change_later() -> None:
    manager = KVCacheManager(11, BLOCK)
    manager.allocate_slots("a", 0, 16)
    table = manager.block_ids("a")
    manager.allocate_slots("a", 16, 1)
    assert table == [1]
    assert manager.block_ids("a") == [1, 2]


def test_a_prefix_is_refused_for_a_request_that_holds_blocks() -> None:
    manager = KVCacheManager(11, BLOCK)
    start(manager, "a", list(range(55)))
    prefix = manager.find_cached_prefix(manager.new_chain(), list(range(55)))
    with pytest.raises(CacheIntegrityError, match="cannot begin with a prefix"):
        manager.allocate_slots("a", 48, 7, prefix)


def test_a_fork_shares_every_block_and_the_first_to_write_gets_a_copy() -> None:
    manager = KVCacheManager(11, BLOCK)
    start(manager, "a", list(range(40)))
    manager.fork("a", "b")
    manager.fork("a", "c")
    manager.check_integrity()
    assert manager.block_ids("b") == manager.block_ids("c") == [1, 2, 3]
    assert ref_counts(manager)[:4] == [3, 3, 3, 0]
    assert manager.num_blocks_held("abc") == (3, 9)

    assert manager.allocate_slots("b", 40, 1) == []
    assert manager.allocate_slots("c", 40, 1) == []
    assert manager.allocate_slots("a", 40, 1) == []
    manager.check_integrity()
    assert manager.block_ids("b") == [1, 2, 4]
    assert manager.block_ids("c") == [1, 2, 5]
    assert manager.block_ids("a") == [1, 2, 3], "the last holder writes where the content lies"
    assert manager.take_block_copies() == [BlockCopy(3, 4), BlockCopy(3, 5)]
    assert manager.take_block_copies() == []
    assert manager.num_blocks_held("abc") == (5, 9)


def test_where_the_last_block_is_full_nothing_is_copied() -> None:
    manager = KVCacheManager(11, BLOCK)
    start(manager, "a", list(range(32)))
    manager.fork("a", "b")
    assert manager.allocate_slots("a", 32, 1) == [3]
    assert manager.allocate_slots("b", 32, 1) == [4]
    assert manager.take_block_copies() == []


def test_a_fork_that_rewrites_slots_copies_all_its_blocks_first() -> None:
    """A request with a KV budget puts its newest token in any slot."""
    manager = KVCacheManager(11, BLOCK)
    start(manager, "a", list(range(40)))
    manager.fork("a", "b")
    assert manager.allocate_slots("b", 40, 0, rewrites_slots=True) == []
    assert manager.block_ids("b") == [4, 5, 6]
    assert manager.take_block_copies() == [BlockCopy(1, 4), BlockCopy(2, 5), BlockCopy(3, 6)]
    assert manager.allocate_slots("a", 40, 0, rewrites_slots=True) == []
    assert manager.take_block_copies() == [], "nobody shares its blocks any more"
    manager.check_integrity()


def test_a_shared_block_behind_all_content_is_replaced_and_not_copied() -> None:
    """Blocks of a draft that was rejected hold nothing worth copying."""
    manager = KVCacheManager(11, BLOCK)
    manager.allocate_slots("a", 0, 20, num_lookahead_tokens=20)
    manager.fork("a", "b")
    assert manager.allocate_slots("b", 16, 20) == []
    assert manager.block_ids("b") == [1, 4, 5]
    assert manager.take_block_copies() == []
    manager.check_integrity()


def test_a_copy_that_finds_no_block_changes_nothing() -> None:
    manager = KVCacheManager(4, BLOCK)
    start(manager, "a", list(range(40)))
    manager.fork("a", "b")
    assert manager.allocate_slots("b", 40, 1) is None
    assert manager.block_ids("b") == [1, 2, 3]
    assert manager.take_block_copies() == []
    manager.free("a")
    assert manager.allocate_slots("b", 40, 1) == []
    assert manager.block_ids("b") == [1, 2, 3]


def test_a_block_given_up_and_taken_again_in_one_step_gets_its_last_source_only() -> None:
    manager = KVCacheManager(6, BLOCK)
    start(manager, "a", list(range(8)))
    start(manager, "x", list(range(100, 108)))
    for parent, child in (("a", "b"), ("x", "y")):
        manager.fork(parent, child)
    manager.allocate_slots("b", 8, 1)
    assert manager.block_ids("b") == [3]
    manager.free("b")
    start(manager, "rest", list(range(200, 232)))
    manager.allocate_slots("y", 8, 1)
    assert manager.block_ids("y") == [3]
    assert manager.take_block_copies() == [BlockCopy(2, 3)]


def test_a_fork_cannot_begin_twice() -> None:
    manager = KVCacheManager(11, BLOCK)
    start(manager, "a", list(range(8)))
    manager.fork("a", "b")
    with pytest.raises(CacheIntegrityError, match="'b' holds blocks and cannot become a fork"):
        manager.fork("a", "b")


def test_a_block_size_below_one_is_refused() -> None:
    with pytest.raises(UsageError, match="block_size must be at least 1, not 0"):
        KVCacheManager(11, 0)


short_prompts = st.lists(st.integers(0, 1), min_size=1, max_size=9)
salts = st.sampled_from([(), (("salt", "x"),)])


@given(
    st.lists(st.tuples(short_prompts, salts, st.booleans()), max_size=6),
    st.sampled_from([sha256, lambda _: b"same"]),
)
def test_a_hit_is_the_longest_block_prefix_ever_computed(requests, hash_function) -> None:
    manager = KVCacheManager(60, 2, hash_function=hash_function)
    computed: set[tuple[object, ...]] = set()
    for number, (tokens, salt, freed) in enumerate(requests):
        lengths = range(2, len(tokens), 2)
        expected = 0
        while expected + 2 in lengths and (salt, *tokens[: expected + 2]) in computed:
            expected += 2
        prefix, _ = start(manager, str(number), tokens, salt)
        assert prefix.num_tokens == expected
        computed |= {(salt, *tokens[:n]) for n in range(2, len(tokens) + 1, 2)}
        if freed:
            manager.free(str(number))


def test_what_victims_would_give_back_is_counted_once_and_without_what_others_share() -> None:
    manager = KVCacheManager(9, 4)
    common = list(range(8))
    start(manager, "a", [*common, 1, 2])
    start(manager, "b", [*common, 3, 4])
    # Blocks 1 and 2 are shared; 3 and 4 are their own; four more are free.
    assert [manager.can_fit(tokens) for tokens in (16, 17)] == [True, False]
    assert [manager.can_fit(tokens, after_freeing=["a"]) for tokens in (20, 21)] == [True, False]
    both = ["a", "b"]
    assert [manager.can_fit(tokens, after_freeing=both) for tokens in (32, 33)] == [True, False]
    # A prefix that only the victims hold is about to be taken from what they give back.
    prefix = manager.find_cached_prefix(manager.new_chain(), [*common, 9])
    assert prefix.block_ids == [1, 2]
    fits = [manager.can_fit(tokens, prefix, both) for tokens in (32, 33)]
    assert fits == [True, False]
    assert [manager.can_fit(tokens, prefix, ["a"]) for tokens in (28, 29)] == [True, False]
