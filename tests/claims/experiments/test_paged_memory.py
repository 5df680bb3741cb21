"""The buddy heap, reservations by hand, and what blocks of a request hold."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from infra_lab.claims.experiments.contiguous import (
    BuddyHeap,
    next_power_of_two,
    reserve_exactly,
    reserve_longest,
    reserve_power_of_two,
    serve_contiguously,
)
from infra_lab.claims.experiments.paged_memory import CAPACITY, filled_share, serve_in_pages


def test_the_capacity_is_the_papers_table_of_slots() -> None:
    assert CAPACITY == 15_728  # 12 GiB over 800 KiB a token of OPT-13B, whole blocks


def test_a_region_is_split_to_the_next_power_of_two_and_merged_again() -> None:
    heap = BuddyHeap(16)
    first, second = heap.allocate(3), heap.allocate(8)
    assert (first, second) == (0, 8)
    assert heap.size_at(0) == 4
    assert heap.allocate(5) is None  # 4 slots are free, and 8 are needed
    assert heap.free_slots == 4
    heap.free(0)
    assert heap.allocate(7) == 0
    heap.free(0)
    heap.free(8)
    assert heap.allocate(16) == 0


def test_a_capacity_that_is_no_power_of_two_is_the_sum_of_some() -> None:
    heap = BuddyHeap(12)
    assert heap.allocate(12) is None
    assert [heap.allocate(8), heap.allocate(4), heap.allocate(1)] == [0, 8, None]


@given(
    capacity=st.integers(1, 200),
    sizes=st.lists(st.integers(1, 40), max_size=30),
    frees=st.lists(st.integers(0, 29), max_size=30),
)
def test_regions_never_overlap_and_all_of_them_come_back(
    capacity: int, sizes: list[int], frees: list[int]
) -> None:
    heap, held = BuddyHeap(capacity), list[int]()
    for index, size in enumerate(sizes):
        if (start := heap.allocate(size)) is not None:
            held.append(start)
        if held and index < len(frees) and frees[index] % 3 == 0:
            heap.free(held.pop(frees[index] % len(held)))
        spans = sorted((start, start + heap.size_at(start)) for start in held)
        assert all(end <= start for (_, end), (start, _) in itertools.pairwise(spans))
        assert heap.free_slots == capacity - sum(end - start for start, end in spans)
    for start in held:
        heap.free(start)
    again = BuddyHeap(capacity)
    assert [heap.allocate(1) for _ in range(capacity)] == [
        again.allocate(1) for _ in range(capacity)
    ]


@given(number=st.integers(1, 10**6))
def test_the_next_power_of_two_is_the_least_that_is_enough(number: int) -> None:
    power = next_power_of_two(number)
    assert power >= number > power / 2
    assert power & (power - 1) == 0


def test_reservations_are_those_of_the_paper() -> None:
    assert reserve_longest(2048)(100, 25) == 2048
    assert reserve_power_of_two(100, 25) == 132
    assert reserve_exactly(100, 25) == 125


def test_memory_use_of_two_requests_can_be_told_by_hand() -> None:
    # 8 slots, 8 reserved: the second waits 3 steps, in which the first holds 2, 3 and 4 tokens.
    use = serve_contiguously([(2, 3), (1, 1)], 8, reserve_longest(8))
    assert use.batch == 1
    assert use.used == 9 / 24
    assert use.reserved == (2 + 1 + 0) / 24
    assert use.internal == 3 * 4 / 24
    assert use.free == 0


def test_blocks_of_a_growing_request_by_hand() -> None:
    # 3, 4 and 5 tokens in blocks of 4: one, one and two blocks.
    assert filled_share([(3, 3)], 4) == 12 / 16
    assert filled_share([(3, 3)], 1) == 1


@settings(max_examples=8)
@given(block_size=st.sampled_from([1, 4, 16]), count=st.integers(40, 60))
def test_the_block_pool_never_has_a_whole_block_too_many(block_size: int, count: int) -> None:
    lengths = [(400 + 7 * index % 90, 30) for index in range(count)]
    use, steps, _ = serve_in_pages(lengths, block_size)
    assert abs(use.used + use.internal + use.free - 1) < 1e-9
    for step in steps:
        empty = step.blocks_used * block_size - step.held_tokens
        assert 0 <= empty <= (block_size - 1) * step.num_requests
