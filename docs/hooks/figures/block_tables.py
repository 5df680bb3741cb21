"""Block tables that fill, fork, copy on write and are given back: a real KVCacheManager at work."""

from __future__ import annotations

from typing import Any

from infra_lab.cache.block_hash import PrefixChain
from infra_lab.cache.kv_cache_manager import KVCacheManager

BLOCK_SIZE = 4
USABLE_BLOCKS = 8


class Recorder:
    """Runs calls on a manager and keeps a picture of pool and tables after each."""

    def __init__(self) -> None:
        self.manager = KVCacheManager(USABLE_BLOCKS + 1, BLOCK_SIZE)
        self.tokens: dict[str, list[int]] = {}
        self.chains: dict[str, PrefixChain] = {}
        self.frames: list[dict[str, Any]] = []

    def begin(self, name: str, tokens: list[int]) -> int:
        """A prompt, as far as it is not cached; how many of its tokens were."""
        chain = self.chains[name] = self.manager.new_chain()
        found = self.manager.find_cached_prefix(chain, tokens)
        added = self.manager.allocate_slots(
            name, found.num_tokens, len(tokens) - found.num_tokens, found
        )
        assert added is not None
        self.tokens[name] = list(tokens)
        self.manager.cache_full_blocks(name, chain, tokens, len(tokens))
        return found.num_tokens

    def grow(self, name: str, token: int) -> tuple[int, int] | None:
        """One more token; the copy that it took, as (source, target), if it took one."""
        done = len(self.tokens[name])
        assert self.manager.allocate_slots(name, done, 1) is not None
        copies = self.manager.take_block_copies()
        self.tokens[name].append(token)
        self.manager.cache_full_blocks(name, self.chains[name], self.tokens[name], done + 1)
        return (copies[0].source, copies[0].target) if copies else None

    def fork(self, parent: str, child: str) -> None:
        self.manager.fork(parent, child)
        self.tokens[child] = list(self.tokens[parent])
        self.chains[child] = self.chains[parent].copy()

    def free(self, name: str) -> None:
        self.manager.free(name)
        del self.tokens[name], self.chains[name]

    def show(self, en: str, zh: str, copy: tuple[int, int] | None = None) -> None:
        self.manager.check_integrity()
        self.frames.append(
            {
                "text": {"en": en, "zh": zh},
                "blocks": [self._block(block_id) for block_id in range(1, USABLE_BLOCKS + 1)],
                "tables": [
                    {"name": name, "tokens": len(own), "blocks": self.manager.block_ids(name)}
                    for name, own in self.tokens.items()
                ],
                "copy": copy,
            }
        )

    def _block(self, block_id: int) -> dict[str, Any]:
        block = self.manager.pool.blocks[block_id]
        filled = BLOCK_SIZE if block.key is not None else 0
        for name, own in self.tokens.items():
            for index, held in enumerate(self.manager.block_ids(name)):
                if held == block_id:
                    filled = max(filled, min(BLOCK_SIZE, len(own) - index * BLOCK_SIZE))
        return {"id": block_id, "refs": block.ref_count, "filled": filled}


def figure() -> dict[str, Any]:
    run = Recorder()
    prompt = list(range(100, 106))
    run.show(
        "The pool: eight free blocks of four tokens. Nothing is reserved for anybody.",
        "池里有 8 个空闲 block，每块 4 个 token。没有为任何请求预留。",
    )
    run.begin("A", prompt)
    run.show(
        "A arrives with 6 tokens: two blocks, the second half full. At most one block per request "
        "is partly empty.",
        "A 带着 6 个 token 到达：两个 block，第二块只用了一半。每个请求最多有一个未满的 block。",
    )
    run.grow("A", 1)
    run.grow("A", 2)
    run.show(
        "A decodes twice: the last block fills, no allocation.",
        "A 解码两步：填满最后一块，没有新的分配。",
    )
    run.grow("A", 3)
    run.show(
        "The ninth token needs a third block. It may lie anywhere: the table says where.",
        "第 9 个 token 需要第三块。它可以在任何位置，由块表记录。",
    )
    run.fork("A", "B")
    run.show(
        "B forks A (a second sample of the same prompt): no copy, only reference counts of 2.",
        "B 从 A 分叉（同一 prompt 的第二个采样）：不复制，只把引用计数加到 2。",
    )
    copy = run.grow("B", 7)
    assert copy is not None
    run.show(
        f"B writes into the shared, partly filled block: block {copy[0]} is copied to {copy[1]} "
        "first (copy-on-write). Full blocks stay shared: they are never written again.",
        f"B 要写入共享的未满块：先把 block {copy[0]} 复制到 {copy[1]}（写时复制）。"
        "写满的块继续共享，因为不会再被写。",
        copy,
    )
    run.grow("A", 4)
    run.show(
        "A writes into its own last block, which nobody shares any more: no copy.",
        "A 写自己的最后一块，已无人共享：不复制。",
    )
    run.free("A")
    run.show(
        "A finishes. Blocks that B still holds keep a reference; A's own last block is free.",
        "A 结束。B 仍持有的块保留一个引用；A 独有的最后一块被释放。",
    )
    run.free("B")
    run.show(
        "B finishes too. Full blocks stay findable by their hash until somebody needs the room.",
        "B 也结束。写满的块仍可按哈希找到，直到有人需要空间。",
    )
    hit = run.begin("C", [*prompt, 1, 2, 9, 9])
    run.show(
        f"C begins with the same tokens: {hit} of its 10 come from the cache, in the same blocks.",
        f"C 以相同的 token 开头：10 个里有 {hit} 个直接命中缓存，用的就是原来的块。",
    )
    return {"kind": "block-tables", "block_size": BLOCK_SIZE, "frames": run.frames}
