"""Each block knows the set of its owners; there are no reference counts to keep right.

A block is free if its set is empty, and shared if it has more than one owner. The same costs as
with counts, O(1) for `append` and O(blocks of the sequence) for the rest, but one entry in a set
for each (sequence, block) in place of one number a block. It can say who holds a block, which
eviction and debugging want to know. Free blocks are taken first in, first out.
"""

from collections import deque


class OutOfBlocksError(Exception):
    """Raised where a call needs more free blocks than there are; such a call changes nothing."""


class BlockAllocator:
    def __init__(self, num_blocks: int, block_size: int) -> None:
        if min(num_blocks, block_size) < 1:
            raise ValueError("num_blocks and block_size must be positive")
        self.block_size = block_size
        self.owners: list[set[str]] = [set() for _ in range(num_blocks)]
        self.free_blocks = deque(range(num_blocks))
        self.tables: dict[str, list[int]] = {}
        self.lengths: dict[str, int] = {}

    def allocate(self, seq_id: str, num_tokens: int) -> list[int]:
        if seq_id in self.tables:
            raise ValueError(f"{seq_id!r} is in use")
        if num_tokens < 0:
            raise ValueError(f"num_tokens is {num_tokens}")
        needed = (num_tokens + self.block_size - 1) // self.block_size
        if needed > len(self.free_blocks):
            raise OutOfBlocksError(f"{needed} wanted, {len(self.free_blocks)} free")
        table = [self.free_blocks.popleft() for _ in range(needed)]
        self._register(seq_id, table, num_tokens)
        return table.copy()

    def append(self, seq_id: str) -> tuple[int, int, int | None]:
        table = self.tables[seq_id]
        filled, offset = divmod(self.lengths[seq_id], self.block_size)
        copied_from: int | None = None
        begins_block = offset == 0
        if not begins_block and len(self.owners[table[filled]]) > 1:
            copied_from = table[filled]
        if begins_block or copied_from is not None:
            if not self.free_blocks:
                raise OutOfBlocksError("no block is free")
            block = self.free_blocks.popleft()
            self.owners[block].add(seq_id)
            if copied_from is not None:
                self.owners[copied_from].remove(seq_id)
            table[filled:] = [block]  # replaces the last entry, or adds one
        self.lengths[seq_id] += 1
        return table[filled], offset, copied_from

    def fork(self, parent_id: str, child_id: str) -> None:
        table = self.tables[parent_id]
        if child_id in self.tables:
            raise ValueError(f"{child_id!r} is in use")
        self._register(child_id, table.copy(), self.lengths[parent_id])

    def free(self, seq_id: str) -> None:
        table = self.tables.pop(seq_id)
        del self.lengths[seq_id]
        for block in table:
            self.owners[block].remove(seq_id)
            if not self.owners[block]:
                self.free_blocks.append(block)

    def block_table(self, seq_id: str) -> list[int]:
        return self.tables[seq_id].copy()

    def num_free_blocks(self) -> int:
        return len(self.free_blocks)

    def _register(self, seq_id: str, table: list[int], length: int) -> None:
        self.tables[seq_id] = table
        self.lengths[seq_id] = length
        for block in table:
            self.owners[block].add(seq_id)
