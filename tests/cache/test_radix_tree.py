"""The tree holds exactly what the cache finds, each block once."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from infra_lab.cache.kv_cache_manager import KVCacheManager
from infra_lab.cache.radix_tree import RadixNode, radix_tree
from tests.cache.test_kv_cache_manager import start


def paths(node: RadixNode, before: tuple[int, ...] = ()) -> list[tuple[object, ...]]:
    here = (*before, *node.token_ids)
    return [(node.extra_keys, *here), *(p for child in node.children for p in paths(child, here))]


def test_prompts_part_where_their_blocks_differ() -> None:
    manager = KVCacheManager(20, 4)
    start(manager, "a", [1, 2, 3, 4, 5, 6, 7, 8, 9])
    start(manager, "b", [1, 2, 3, 4, 5, 6, 7, 7, 9, 9, 9, 9])
    start(manager, "c", [2, 2, 3, 4])
    tree = radix_tree(manager.pool)
    first, second = tree.roots
    assert (first.token_ids, first.block_ids, first.num_holders) == ([1, 2, 3, 4], [1], 2)
    assert [child.token_ids for child in first.children] == [
        [5, 6, 7, 8],
        [5, 6, 7, 7, 9, 9, 9, 9],
    ]
    assert second.token_ids == [2, 2, 3, 4]
    assert (tree.num_blocks, tree.num_unreachable) == (5, 0)


def test_a_block_that_two_requests_computed_is_one_node() -> None:
    manager = KVCacheManager(20, 4)
    for name in "ab":
        manager.allocate_slots(name, 0, 4)
    for name in "ab":
        manager.cache_full_blocks(name, manager.new_chain(), [1, 2, 3, 4], 4)
    (root,) = radix_tree(manager.pool).roots
    assert (root.block_ids, root.num_holders) == ([1], 2)


def test_what_lost_its_beginning_is_counted_and_comes_back_with_it() -> None:
    manager = KVCacheManager(4, 2)
    start(manager, "a", [1, 2, 3, 4])
    manager.free("a")
    block = manager.pool.blocks[1]
    manager.pool._forget(block, block.key)
    manager.pool._num_idle_cached -= 1
    tree = radix_tree(manager.pool)
    assert (tree.roots, tree.num_unreachable) == ([], 1)
    start(manager, "b", [1, 2])
    (root,) = radix_tree(manager.pool).roots
    assert root.token_ids == [1, 2]
    assert [child.token_ids for child in root.children] == [[3, 4]]


@given(
    st.lists(
        st.tuples(
            st.lists(st.integers(0, 1), min_size=1, max_size=9),
            st.sampled_from([(), (("salt", "x"),)]),
        ),
        max_size=8,
    ),
    st.integers(8, 40),
)
def test_a_path_is_what_a_request_would_find(
    requests: list[tuple[list[int], tuple[tuple[str, str], ...]]], num_blocks: int
) -> None:
    manager = KVCacheManager(num_blocks, 2)
    for number, (tokens, extra_keys) in enumerate(requests):
        start(manager, str(number), tokens, extra_keys)
        manager.free(str(number))
    tree = radix_tree(manager.pool)
    held = len({id(block.key) for block in manager.pool.blocks if block.key is not None})
    assert tree.num_blocks + tree.num_unreachable == held
    for extra_keys, *tokens in (path for root in tree.roots for path in paths(root)):
        prefix = manager.find_cached_prefix(manager.new_chain(extra_keys), [*tokens, 9])
        assert prefix.num_tokens == len(tokens)
