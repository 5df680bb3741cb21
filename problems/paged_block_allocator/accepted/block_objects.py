"""Block objects with their own counts, and a heap that gives the lowest free id."""

import heapq
from typing import NamedTuple


class OutOfBlocksError(Exception):
    def __init__(self, message: str = "out of blocks") -> None:
        super().__init__(message)


class Slot(NamedTuple):
    block: int
    offset: int
    copied_from: int | None


class Block:
    def __init__(self, index: int) -> None:
        self.index = index
        self.owners = 0

    def __lt__(self, other: "Block") -> bool:
        return self.index < other.index


class BlockAllocator:
    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks <= 0 or block_size <= 0:
            raise ValueError
        self.size = block_size
        self.heap = [Block(i) for i in range(num_blocks)]
        self.sequences: dict[str, list[Block]] = {}
        self.used: dict[str, int] = {}  # slots used in the last block; size if there is none

    def allocate(self, seq_id: str, num_tokens: int) -> list[int]:
        if num_tokens < 0:
            raise ValueError(num_tokens)
        if seq_id in self.sequences:
            raise ValueError(seq_id)
        full, rest = divmod(num_tokens, self.size)
        count = full + (rest > 0)
        if count > len(self.heap):
            raise OutOfBlocksError
        self.sequences[seq_id] = [self.pop() for _ in range(count)]
        self.used[seq_id] = rest or self.size
        return self.block_table(seq_id)

    def append(self, seq_id: str) -> Slot:
        blocks = self.sequences[seq_id]
        if self.used[seq_id] == self.size:
            blocks.append(self.pop())
            self.used[seq_id] = 1
            return Slot(blocks[-1].index, 0, None)
        source = None
        last = blocks[-1]
        if last.owners > 1:
            fresh = self.pop()
            last.owners -= 1
            source = last.index
            blocks[-1] = fresh
        self.used[seq_id] += 1
        return Slot(blocks[-1].index, self.used[seq_id] - 1, source)

    def fork(self, parent_id: str, child_id: str) -> None:
        if child_id in self.sequences:
            raise ValueError(child_id)
        blocks = self.sequences[parent_id]
        self.sequences[child_id] = blocks[:]
        self.used[child_id] = self.used[parent_id]
        for block in blocks:
            block.owners += 1

    def free(self, seq_id: str) -> None:
        for block in self.sequences.pop(seq_id):
            block.owners -= 1
            if block.owners == 0:
                heapq.heappush(self.heap, block)
        self.used.pop(seq_id)

    def block_table(self, seq_id: str) -> list[int]:
        return [block.index for block in self.sequences[seq_id]]

    def num_free_blocks(self) -> int:
        return len(self.heap)

    def pop(self) -> Block:
        if not self.heap:
            raise OutOfBlocksError
        block = heapq.heappop(self.heap)
        block.owners = 1
        return block
