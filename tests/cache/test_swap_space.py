"""The second pool's accounts: what is copied where, what is shared, what is refused."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from infra_lab.cache.block_pool import CacheUsage
from infra_lab.cache.free_block_queue import CacheIntegrityError
from infra_lab.cache.kv_cache_manager import KVCacheManager
from infra_lab.cache.swap_space import SwapSpace, SwapWork
from infra_lab.step import BlockCopy

BLOCK = 4


class Pools:
    """Both pools, and requests whose tokens count as computed at once."""

    def __init__(self, num_blocks: int = 10, num_host_blocks: int = 6, caching: bool = True):
        self.kv_cache = KVCacheManager(num_blocks + 1, BLOCK, caching)
        self.space = SwapSpace(num_host_blocks + 1, self.kv_cache)
        self.tokens: dict[str, list[int]] = {}

    def run(self, name: str, tokens: Sequence[int]) -> list[int]:
        chain = self.kv_cache.new_chain()
        prefix = self.kv_cache.find_cached_prefix(chain, tokens)
        prefix = self.space.extend_prefix(prefix, chain, tokens)
        num_new = len(tokens) - prefix.num_tokens
        self.kv_cache.allocate_slots(name, prefix.num_tokens, num_new, prefix)
        self.space.bring_in(name, prefix)
        self.kv_cache.cache_full_blocks(name, chain, tokens, len(tokens))
        self.tokens[name] = list(tokens)
        return self.kv_cache.block_ids(name)

    def swap_out(self, name: str) -> bool:
        done = self.space.swap_out(name, len(self.tokens[name]))
        if done:
            self.kv_cache.free(name)
        return done

    def swap_in(self, name: str) -> list[int]:
        num_tokens = len(self.tokens[name])
        prefix = self.space.prefix_of(name, num_tokens)
        assert self.kv_cache.can_fit(num_tokens, prefix)
        self.kv_cache.allocate_slots(name, num_tokens, 1, prefix)
        self.space.bring_in(name, prefix)
        return self.kv_cache.block_ids(name)

    def offload(self, tokens: Sequence[int]) -> int:
        return self.space.offload(self.kv_cache.new_chain(), tokens)


def copies(*pairs: tuple[int, int]) -> list[BlockCopy]:
    return [BlockCopy(source, target) for source, target in pairs]


def test_a_request_goes_out_whole_and_its_last_partial_block_with_it() -> None:
    pools = Pools()
    assert pools.run("a", range(10)) == [1, 2, 3]
    assert pools.swap_out("a")
    assert pools.space.take_copies() == (copies((1, 1), (2, 2), (3, 3)), [])
    assert pools.space.usage == CacheUsage(free=3, cached=0, used=3)
    assert pools.kv_cache.usage == CacheUsage(free=8, cached=2, used=0)
    pools.space.check_integrity({"a"})


def test_only_computed_blocks_go_out() -> None:
    pools = Pools()
    pools.run("a", range(4))
    pools.kv_cache.allocate_slots("a", 4, 3)
    assert pools.swap_out("a")
    assert pools.space.take_copies()[0] == copies((1, 1))


def test_what_the_primary_pool_still_has_is_not_copied_back() -> None:
    pools = Pools()
    pools.run("a", range(10))
    pools.swap_out("a")
    pools.space.take_copies()
    # 1 and 2 were not given out for anything else; the partial block has no key to be found by.
    blocks = pools.swap_in("a")
    assert blocks[:2] == [1, 2]
    assert pools.space.take_copies() == ([], copies((3, blocks[2])))
    pools.space.check_integrity(set())
    assert pools.space.usage.used == 1, "what is being read is not given out before the next step"
    pools.space.begin_step()
    assert pools.space.usage == CacheUsage(free=4, cached=2, used=0)


def test_all_comes_back_where_the_primary_pool_forgot_it() -> None:
    pools = Pools(num_blocks=3)
    pools.run("a", range(10))
    pools.swap_out("a")
    pools.space.take_copies()
    pools.run("b", range(50, 62))
    pools.kv_cache.free("b")
    blocks = pools.swap_in("a")
    assert pools.space.take_copies()[1] == copies((1, blocks[0]), (2, blocks[1]), (3, blocks[2]))
    # They can be found by their content again, as the copies come before anything is computed.
    assert pools.kv_cache.find_cached_prefix(pools.kv_cache.new_chain(), range(9)).num_tokens == 8
    pools.kv_cache.check_integrity()


def test_two_that_share_a_prefix_share_it_there_too() -> None:
    pools = Pools()
    pools.run("a", range(10))
    pools.run("b", [*range(8), 70, 71])
    assert pools.space.work_of("b", 10) == SwapWork(blocks_out=3, blocks_in=1, num_tokens=2)
    pools.swap_out("a")
    assert pools.space.work_of("b", 10) == SwapWork(blocks_out=1, blocks_in=3, num_tokens=10)
    pools.swap_out("b")
    assert pools.space.usage.used == 4
    pools.space.drop("a")
    assert pools.space.usage.used == 3
    pools.space.check_integrity({"b"})


def test_without_a_prefix_cache_every_block_is_copied_there_and_back() -> None:
    pools = Pools(caching=False)
    pools.run("a", range(8))
    pools.swap_out("a")
    pools.swap_in("a")
    outs, ins = pools.space.take_copies()
    assert (len(outs), len(ins)) == (2, 2)
    assert pools.offload(range(8)) == 0


def test_without_room_nothing_changes() -> None:
    pools = Pools(num_host_blocks=3)
    pools.run("a", range(8))
    pools.run("b", range(50, 58))
    assert pools.swap_out("a")
    assert not pools.swap_out("b")
    assert pools.space.usage == CacheUsage(free=1, cached=0, used=2)
    assert len(pools.space.take_copies()[0]) == 2
    pools.space.check_integrity({"a"})


def test_a_block_about_to_be_copied_on_write_is_read_where_its_content_is() -> None:
    pools = Pools()
    pools.run("a", range(6))
    pools.kv_cache.fork("a", "b")
    pools.kv_cache.allocate_slots("b", 6, 1)
    assert pools.kv_cache.block_ids("b") == [1, 3], "its own copy of block 2, still to be made"
    pools.tokens["b"] = list(range(6))
    assert pools.swap_out("b")
    assert pools.space.take_copies()[0] == copies((1, 1), (2, 2))


def test_an_offloaded_conversation_leaves_the_primary_pool_and_is_found_by_its_content() -> None:
    pools = Pools()
    pools.run("a", range(10))
    pools.kv_cache.free("a")
    assert pools.offload(range(10)) == 8
    assert pools.kv_cache.usage == CacheUsage(free=10, cached=0, used=0)
    assert pools.kv_cache.pool.free_block_ids()[:2] == [1, 2], "they are given out first"
    assert pools.space.take_copies()[0] == copies((1, 1), (2, 2))
    assert pools.space.usage == CacheUsage(free=4, cached=2, used=0)
    # A later turn of the same conversation, and one of another tenant.
    blocks = pools.run("b", range(15))
    assert pools.space.take_copies()[1] == copies((1, blocks[0]), (2, blocks[1]))
    salted = pools.kv_cache.new_chain((("salt", "x"),))
    assert pools.space.offload(salted, range(10)) == 0
    pools.kv_cache.check_integrity()
    pools.space.check_integrity(set())


def test_offloaded_blocks_in_use_stay_and_those_already_there_are_not_copied_again() -> None:
    pools = Pools()
    pools.run("a", range(8))
    assert pools.offload(range(8)) == 8
    assert pools.kv_cache.usage.used == 2
    assert len(pools.space.take_copies()[0]) == 2
    assert pools.offload(range(8)) == 8
    assert pools.space.take_copies() == ([], [])


def test_the_least_recently_used_conversation_makes_room_and_its_end_goes_first() -> None:
    pools = Pools(num_blocks=12, num_host_blocks=5)
    for first in (0, 100, 200):
        tokens = range(first, first + 8)
        pools.run("a", tokens)
        pools.kv_cache.free("a")
        assert pools.offload(tokens) == 8
    chain = pools.kv_cache.new_chain()
    found = pools.space.extend_prefix(
        pools.kv_cache.find_cached_prefix(chain, range(9)), chain, range(9)
    )
    assert found.num_tokens == 4, "its first block is left"


def test_of_a_conversation_larger_than_the_space_the_beginning_is_kept() -> None:
    pools = Pools(num_host_blocks=2)
    pools.run("a", range(16))
    pools.kv_cache.free("a")
    assert pools.offload(range(16)) == 8


def test_swapped_requests_are_never_evicted_for_an_idle_conversation() -> None:
    pools = Pools(num_host_blocks=3)
    pools.run("a", range(10))
    pools.swap_out("a")
    pools.run("b", range(50, 58))
    pools.kv_cache.free("b")
    assert pools.offload(range(50, 58)) == 0
    assert not pools.space.reset()
    pools.space.check_integrity({"a"})


def test_a_lost_copy_is_found_no_more_and_who_holds_it_is_named() -> None:
    pools = Pools()
    pools.run("a", range(8))
    pools.swap_out("a")
    pools.run("b", range(50, 58))
    pools.swap_out("b")
    assert pools.space.lose({2}) == ["a"]
    pools.space.check_integrity({"b"})
    assert pools.space.usage == CacheUsage(free=3, cached=1, used=2)
    assert pools.space.reset() is False


def test_a_holder_that_is_not_swapped_is_noticed() -> None:
    pools = Pools()
    pools.run("a", range(8))
    pools.swap_out("a")
    with pytest.raises(CacheIntegrityError, match="swapped are"):
        pools.space.check_integrity(set())
