"""The prefix cache as the tree that its hash chain spans, from the engine's own block pool."""

from __future__ import annotations

from typing import Any

from infra_lab.cache.block_hash import BlockKey, ExtraKeys
from infra_lab.cache.kv_cache_manager import KVCacheManager

BLOCK_SIZE = 4
USABLE_BLOCKS = 7
SYSTEM = "You are a terse bot . Be brief"
TEXTS = {
    "A": f"{SYSTEM} What is a KV cache ?",
    "B": f"{SYSTEM} What is a GPU ?",
    "D": "Write a poem of four lines about a very small cache that forgets",
}
PROMPTS = {name: text.split() for name, text in TEXTS.items()}


class Cache:
    """A manager that speaks words, and pictures of what it can find."""

    def __init__(self) -> None:
        self.manager = KVCacheManager(USABLE_BLOCKS + 1, BLOCK_SIZE)
        self.words: list[str] = []
        self.frames: list[dict[str, Any]] = []

    def run(self, name: str, words: list[str], extra_keys: ExtraKeys = ()) -> dict[str, int]:
        """A prompt from its look-up to its end; tokens found, and blocks evicted for it."""
        tokens = [self._token(word) for word in words]
        chain = self.manager.new_chain(extra_keys)
        found = self.manager.find_cached_prefix(chain, tokens)
        before = self.manager.num_evictions
        num_new = len(tokens) - found.num_tokens
        assert self.manager.allocate_slots(name, found.num_tokens, num_new, found) is not None
        self.manager.cache_full_blocks(name, chain, tokens, len(tokens))
        self.manager.free(name)
        self.manager.check_integrity()
        return {"hit": found.num_tokens, "evicted": self.manager.num_evictions - before}

    def show(self, en: str, zh: str, words: list[str], hit: int) -> None:
        self.frames.append(
            {
                "text": {"en": en, "zh": zh},
                "nodes": self._nodes(),
                "prompt": [
                    {
                        "words": words[start : start + BLOCK_SIZE],
                        "hit": start + BLOCK_SIZE <= hit,
                        "full": start + BLOCK_SIZE <= len(words),
                    }
                    for start in range(0, len(words), BLOCK_SIZE)
                ],
            }
        )

    def _token(self, word: str) -> int:
        if word not in self.words:
            self.words.append(word)
        return self.words.index(word)

    def _nodes(self) -> list[dict[str, Any]]:
        """Every findable block, parents first; a parent that was evicted is named and not there."""
        keys = [(block.key, block.block_id) for block in self.manager.pool.blocks if block.key]
        nodes = [
            {
                "hash": _short(key),
                "parent": _short(key.parent) if key.parent else None,
                "words": [self.words[token] for token in key.token_ids],
                "block": block_id,
                "salted": bool(key.extra_keys),
            }
            for key, block_id in keys
        ]
        return sorted(nodes, key=lambda node: int(node["block"]))


def _short(key: BlockKey) -> str:
    return key.block_hash.hex()[:6]


def figure() -> dict[str, Any]:
    cache = Cache()
    first = cache.run("A", PROMPTS["A"])
    cache.show(
        f"Prompt A finds nothing. Its {len(PROMPTS['A'])} tokens fill three blocks, each hashed "
        "with its parent's hash; the last, half full, is not findable.",
        f"prompt A 没有命中。{len(PROMPTS['A'])} 个 token 填满三块，每块的哈希都包含父块的哈希；"
        "最后半块不可查找。",
        PROMPTS["A"],
        first["hit"],
    )
    second = cache.run("B", PROMPTS["B"])
    cache.show(
        f"B shares the system prompt: {second['hit']} tokens are found. Its third block differs "
        "in one word, so it hangs beside A's.",
        f"B 共享系统提示：命中 {second['hit']} 个 token。第三块差一个词，挂在 A 的旁边。",
        PROMPTS["B"],
        second["hit"],
    )
    again = cache.run("A", PROMPTS["A"])
    cache.show(
        f"A again: {again['hit']} tokens found, as many as are in full blocks. At least the last "
        "token is always computed: its logits are wanted.",
        f"再来一次 A：命中 {again['hit']} 个 token，即全部整块。"
        "最后一个 token 总要重算，因为需要它的 logits。",
        PROMPTS["A"],
        again["hit"],
    )
    salted = cache.run("C", PROMPTS["A"], (("salt", "tenant-2"),))
    cache.show(
        f"The same words with another tenant's salt: {salted['hit']} tokens found. The salt is in "
        "every hash, so tenants cannot probe each other's prompts. "
        f"Blocks evicted for it: {salted['evicted']}, the least recently used first.",
        f"同样的词，换一个租户的 salt：命中 {salted['hit']}。"
        "salt 参与每个哈希，租户之间无法互相试探。"
        f"为此淘汰了 {salted['evicted']} 块，最久未用的先走。",
        PROMPTS["A"],
        salted["hit"],
    )
    last = cache.run("D", PROMPTS["D"])
    cache.show(
        f"A long unrelated prompt evicts {last['evicted']} more. A chain loses its tail before its "
        "head: a head without its tail is still useful, a tail without its head never is.",
        f"一个无关的长 prompt 又淘汰 {last['evicted']} 块。一条链先失去尾部：没有尾部的头仍然有用，"
        "没有头的尾部永远找不到。",
        PROMPTS["D"],
        last["hit"],
    )
    return {"kind": "prefix-radix", "frames": cache.frames}
