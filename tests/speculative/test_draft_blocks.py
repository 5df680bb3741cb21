"""The contents of a draft's blocks against a record of every slot."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from infra_lab.speculative.draft_blocks import DraftBlocks

histories = st.lists(
    st.tuples(
        st.lists(st.integers(0, 1), min_size=1, max_size=12),
        st.permutations(range(1, 8)),
        st.integers(0, 12),
    ),
    min_size=1,
    max_size=12,
)


@given(histories, st.sampled_from([1, 2, 3, 5]))
def test_what_counts_as_valid_was_written_there_behind_the_same_tokens(
    history: list[tuple[list[int], list[int], int]], block_size: int
) -> None:
    """Sequences take blocks at random, as after any preemption, fork or swap. A slot's truth is
    the whole prefix that was computed when it was written."""
    blocks = DraftBlocks(block_size)
    slots: dict[int, tuple[int, ...]] = {}
    for tokens, order, computed in history:
        table = order[: -(-len(tokens) // block_size)]
        reach = min(len(tokens), len(table) * block_size)

        def check(tokens: list[int] = tokens, table: list[int] = table, reach: int = reach) -> int:
            count = blocks.num_valid(tokens, table)
            assert count <= reach
            for position in range(count):
                slot = table[position // block_size] * block_size + position % block_size
                assert slots[slot] == tuple(tokens[: position + 1])
            return count

        valid = check()
        end = max(valid, min(computed, reach))
        for position in range(valid, end):
            slot = table[position // block_size] * block_size + position % block_size
            slots[slot] = tuple(tokens[: position + 1])
        blocks.note(tokens[:end], table)
        # More than was written now, where an old block fits behind it.
        assert check() >= end


def test_a_rejected_token_ends_what_is_valid() -> None:
    blocks = DraftBlocks(4)
    blocks.note([1, 2, 3, 4, 5, 9], [7, 8])
    assert blocks.num_valid([1, 2, 3, 4, 5, 6, 7], [7, 8]) == 5


def test_a_prefix_computed_for_another_request_is_valid_at_once() -> None:
    blocks = DraftBlocks(2)
    blocks.note([1, 2, 3, 4], [5, 6])
    assert blocks.num_valid([1, 2, 3, 4, 8], [5, 6, 9]) == 4
    assert blocks.num_valid([1, 2, 3, 4, 8], [5, 9, 6]) == 2


def test_a_block_taken_by_others_meanwhile_is_not_valid() -> None:
    blocks = DraftBlocks(2)
    blocks.note([1, 2, 3, 4], [5, 6])
    blocks.note([7, 7], [5])
    assert blocks.num_valid([1, 2, 3, 4], [5, 6]) == 0
