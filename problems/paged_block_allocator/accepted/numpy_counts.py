"""Reference counts in a NumPy array, a ring buffer of free ids, and immutable tables."""

import numpy as np


class OutOfBlocksError(RuntimeError):
    pass


class BlockAllocator:
    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError("a pool needs blocks, and blocks need slots")
        self.block_size = block_size
        self.ring = np.arange(num_blocks)
        self.head = 0
        self.num_free = num_blocks
        self.counts = np.zeros(num_blocks, dtype=np.int32)
        self.tables: dict[str, tuple[int, ...]] = {}
        self.num_tokens: dict[str, int] = {}

    def allocate(self, seq_id: str, num_tokens: int) -> list[int]:
        if num_tokens < 0 or seq_id in self.tables:
            raise ValueError("negative length or id in use")
        blocks = self._take(-(-num_tokens // self.block_size))
        self.tables[seq_id], self.num_tokens[seq_id] = tuple(blocks), num_tokens
        return blocks

    def append(self, seq_id: str) -> tuple[int, int, int | None]:
        n = self.num_tokens[seq_id]
        offset = n % self.block_size
        source = None
        if offset == 0:
            self.tables[seq_id] += tuple(self._take(1))
        elif self.counts[self.tables[seq_id][-1]] >= 2:
            *head, source = self.tables[seq_id]
            self.tables[seq_id] = (*head, *self._take(1))
            self.counts[source] -= 1
        self.num_tokens[seq_id] = n + 1
        return self.tables[seq_id][-1], offset, source

    def fork(self, parent_id: str, child_id: str) -> None:
        table = self.tables[parent_id]
        if child_id in self.tables:
            raise ValueError("id in use")
        self.counts[list(table)] += 1
        self.tables[child_id] = table
        self.num_tokens[child_id] = self.num_tokens[parent_id]

    def free(self, seq_id: str) -> None:
        table = self.tables.pop(seq_id)
        del self.num_tokens[seq_id]
        for block in table:
            self.counts[block] -= 1
            if self.counts[block] == 0:
                self.ring[(self.head + self.num_free) % len(self.ring)] = block
                self.num_free += 1

    def block_table(self, seq_id: str) -> list[int]:
        return list(self.tables[seq_id])

    def num_free_blocks(self) -> int:
        return self.num_free

    def _take(self, n: int) -> list[int]:
        if n > self.num_free:
            raise OutOfBlocksError(f"{n} blocks wanted, {self.num_free} free")
        at = (self.head + np.arange(n)) % len(self.ring)
        blocks = self.ring[at]
        self.head = (self.head + n) % len(self.ring)
        self.num_free -= n
        self.counts[blocks] = 1
        return list(blocks)
