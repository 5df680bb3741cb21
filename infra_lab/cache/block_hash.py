"""The identity of a full KV block: what its tokens are and everything that came before them.

Answers "why must a prefix-cache key chain, and what belongs into it?". Keys and values at a
position depend on every earlier token, so a block's hash covers its parent's hash as well as
its own token ids, and extra keys (a tenant's salt, an adapter) each under its own domain. A
hash only finds candidates: a hit is taken after the tokens themselves were compared.
"""

from __future__ import annotations

import hashlib
import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

HashFunction = Callable[[bytes], bytes]
ExtraKeys = tuple[tuple[str, str], ...]


def sha256(data: bytes) -> bytes:
    return hashlib.sha256(data).digest()


@dataclass(frozen=True, slots=True, eq=False)
class BlockKey:
    """The whole identity of one full block: `parent` is the key of the block before it.

    Compare with `same_content`; two keys of equal content may be two objects.
    """

    block_hash: bytes
    token_ids: tuple[int, ...]
    extra_keys: ExtraKeys
    parent: BlockKey | None = field(default=None, repr=False)


def hash_block(
    parent_hash: bytes,
    token_ids: Sequence[int],
    extra_keys: ExtraKeys = (),
    hash_function: HashFunction = sha256,
) -> bytes:
    """H(parent hash, token ids, extra keys), over an encoding that no two inputs share.

    Counts and lengths come first and token ids are 8 bytes each, so neither 65 and 321, nor
    ("salt", "x") and ("adapter", "x"), nor ("a", "bc") and ("ab", "c") can meet.
    """
    header = struct.pack("<3Q", len(parent_hash), len(token_ids), len(extra_keys))
    parts = [header, parent_hash, struct.pack(f"<{len(token_ids)}q", *token_ids)]
    for pair in extra_keys:
        for text in pair:
            encoded = text.encode()
            parts += (struct.pack("<Q", len(encoded)), encoded)
    return hash_function(b"".join(parts))


def same_content(left: BlockKey | None, right: BlockKey | None) -> bool:
    """Whether two keys name the same tokens after the same prefix under the same extra keys.

    Walks towards the root until both chains meet in one object. The pool hands the key of an
    equal block on to its duplicates, so chains of equal content nearly always meet at once.
    """
    while left is not right:
        if left is None or right is None:
            return False
        if left.token_ids != right.token_ids or left.extra_keys != right.extra_keys:
            return False
        left, right = left.parent, right.parent
    return True


class PrefixChain:
    """The keys of one request's full blocks, each hashed once in the request's life.

    Tokens of a request are only ever appended, so the chain outlives preemptions.
    """

    __slots__ = ("_block_size", "_extra_keys", "_hash_function", "_keys")

    def __init__(
        self, block_size: int, extra_keys: ExtraKeys = (), hash_function: HashFunction = sha256
    ) -> None:
        self._block_size = block_size
        self._extra_keys = extra_keys
        self._hash_function = hash_function
        self._keys: list[BlockKey] = []

    def __len__(self) -> int:
        return len(self._keys)

    def key(self, index: int, token_ids: Sequence[int]) -> BlockKey:
        """The key of block `index`, hashing what was not hashed before.

        `token_ids` are the request's, from its first, and must fill block `index`.
        """
        while len(self._keys) <= index:
            self._append(token_ids)
        return self._keys[index]

    def adopt(self, index: int, key: BlockKey) -> None:
        """Put an equal key in the place of our own, so that later comparisons are by identity."""
        self._keys[index] = key

    def copy(self) -> PrefixChain:
        """A chain of its own for a request with the same tokens so far."""
        chain = PrefixChain(self._block_size, self._extra_keys, self._hash_function)
        chain._keys = self._keys.copy()
        return chain

    def _append(self, token_ids: Sequence[int]) -> None:
        start = len(self._keys) * self._block_size
        tokens = tuple(token_ids[start : start + self._block_size])
        parent = self._keys[-1] if self._keys else None
        parent_hash = parent.block_hash if parent else b""
        block_hash = hash_block(parent_hash, tokens, self._extra_keys, self._hash_function)
        self._keys.append(BlockKey(block_hash, tokens, self._extra_keys, parent))
