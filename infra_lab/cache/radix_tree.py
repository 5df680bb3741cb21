"""The prefix cache seen as a radix tree: which beginnings it holds, and where they part.

Answers "RadixAttention or hashed blocks, what is the difference?": none in what is found, but for
the grain. A chain of block hashes is a path in a tree whose edges are blocks; here the tree is read
off the chains (SGLang keeps the tree itself, whose edges may end inside a block).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from infra_lab.cache.block_hash import BlockKey, ExtraKeys
from infra_lab.cache.block_pool import BlockPool

UNREACHABLE = -1


@dataclass(slots=True)
class RadixNode:
    """A run of blocks that always follow one another.

    Attributes:
        token_ids: of these blocks, without those above.
        block_ids: one for each block; where two requests computed the same one, the lower.
        num_holders: tables that hold the node's first block now; 0 is cached for later.
        extra_keys: what separates it from the same tokens elsewhere, such as a salt.
    """

    token_ids: list[int]
    block_ids: list[int]
    num_holders: int
    extra_keys: ExtraKeys = ()
    children: list[RadixNode] = field(default_factory=list)

    def walk(self) -> Iterator[RadixNode]:
        """This node and all below it, parents first."""
        yield self
        for child in self.children:
            yield from child.walk()


@dataclass(frozen=True, slots=True)
class RadixTree:
    """roots: beginnings, in order of their first block's id. num_unreachable: blocks whose
    beginning has been evicted, which no request can find any more."""

    roots: list[RadixNode]
    num_unreachable: int

    @property
    def num_blocks(self) -> int:
        return sum(len(node.block_ids) for root in self.roots for node in root.walk())


def radix_tree(pool: BlockPool) -> RadixTree:
    """The tree of everything that the pool can find now."""
    blocks: dict[int, tuple[BlockKey, int, int]] = {}  # by the key's identity
    for block in pool.blocks:
        if block.key is not None:
            key, block_id, holders = blocks.get(id(block.key), (block.key, block.block_id, 0))
            blocks[id(block.key)] = key, block_id, holders + block.ref_count
    children: dict[int | None, list[tuple[BlockKey, int, int]]] = {}
    for key, block_id, holders in blocks.values():
        parent = None
        if key.parent is not None:
            # Evicted and computed again, a parent has a key of its own with the same content.
            found = pool.find(key.parent)
            parent = UNREACHABLE if found is None else id(found.key)
        children.setdefault(parent, []).append((key, block_id, holders))
    roots = [_grow(*found, children) for found in children.get(None, [])]
    tree = RadixTree(roots, 0)
    return RadixTree(roots, len(blocks) - tree.num_blocks)


def _grow(
    key: BlockKey,
    block_id: int,
    holders: int,
    children: dict[int | None, list[tuple[BlockKey, int, int]]],
) -> RadixNode:
    node = RadixNode(list(key.token_ids), [block_id], holders, key.extra_keys)
    below = children.get(id(key), [])
    while len(below) == 1 and below[0][2] == holders:
        key, block_id, _ = below[0]
        node.token_ids += key.token_ids
        node.block_ids.append(block_id)
        below = children.get(id(key), [])
    node.children = [_grow(*found, children) for found in below]
    return node
