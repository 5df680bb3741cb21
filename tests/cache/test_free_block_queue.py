"""The free queue against a plain list."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.cache.free_block_queue import CacheIntegrityError, FreeBlockQueue, KVCacheBlock

NUM_BLOCKS = 6
operations = st.lists(
    st.one_of(st.just("popleft"), st.tuples(st.just("toggle"), st.integers(0, NUM_BLOCKS - 1)))
)


@given(operations)
def test_the_queue_behaves_like_a_list_with_removal_from_the_middle(todo) -> None:
    blocks = [KVCacheBlock(i) for i in range(NUM_BLOCKS)]
    queue, model = FreeBlockQueue(blocks), list(range(NUM_BLOCKS))
    for operation in todo:
        if operation == "popleft":
            if model:
                assert queue.popleft().block_id == model.pop(0)
        elif operation[1] in model:
            queue.remove(blocks[operation[1]])
            model.remove(operation[1])
        else:
            queue.append(blocks[operation[1]])
            model.append(operation[1])
        assert [block.block_id for block in queue] == model
        assert len(queue) == len(model)


def test_a_block_cannot_be_queued_twice() -> None:
    block = KVCacheBlock(3)
    queue = FreeBlockQueue([block])
    with pytest.raises(CacheIntegrityError, match="block 3 was freed twice"):
        queue.append(block)


def test_a_block_outside_the_queue_cannot_be_removed() -> None:
    with pytest.raises(CacheIntegrityError, match="block 3 is not in the free queue"):
        FreeBlockQueue().remove(KVCacheBlock(3))


def test_an_empty_queue_gives_nothing() -> None:
    with pytest.raises(CacheIntegrityError, match="empty"):
        FreeBlockQueue().popleft()
