"""A stack of free blocks, a reference count for each block, a block table for each sequence.

`append`, `num_free_blocks`: O(1). `allocate`, `fork`, `free`, `block_table`: O(blocks of the
sequence). Memory: O(num_blocks) and the tables.
"""

from dataclasses import dataclass


class OutOfBlocksError(Exception):
    """Raised where a call needs more free blocks than there are; such a call changes nothing."""


@dataclass
class Sequence:
    table: list[int]
    num_tokens: int


class BlockAllocator:
    """Gives the blocks 0 to num_blocks - 1, of block_size tokens each, to sequences."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError(f"no pool of {num_blocks} blocks of {block_size} tokens")
        self._block_size = block_size
        self._free = list(range(num_blocks))
        self._references = [0] * num_blocks
        self._sequences: dict[str, Sequence] = {}

    def allocate(self, seq_id: str, num_tokens: int) -> list[int]:
        """Give a new sequence blocks for its first num_tokens tokens; returns its block table."""
        self._check_unused(seq_id)
        if num_tokens < 0:
            raise ValueError(f"{num_tokens} tokens")
        needed = -(-num_tokens // self._block_size)  # rounded up
        if needed > len(self._free):  # before anything is taken: all or nothing
            raise OutOfBlocksError
        table = [self._take() for _ in range(needed)]
        self._sequences[seq_id] = Sequence(table, num_tokens)
        return list(table)

    def append(self, seq_id: str) -> tuple[int, int, int | None]:
        """Make room for one more token of the sequence; returns (block, offset, copied_from)."""
        sequence = self._sequences[seq_id]
        offset = sequence.num_tokens % self._block_size
        copied_from = None
        if offset == 0:  # every block is full: shared or not, none is written
            sequence.table.append(self._take())
        elif self._references[sequence.table[-1]] > 1:
            block = self._take()
            copied_from = sequence.table[-1]
            self._references[copied_from] -= 1  # others hold it still: it does not become free
            sequence.table[-1] = block
        sequence.num_tokens += 1
        return sequence.table[-1], offset, copied_from

    def fork(self, parent_id: str, child_id: str) -> None:
        """Make a new sequence with the parent's tokens, in the same blocks."""
        parent = self._sequences[parent_id]
        self._check_unused(child_id)
        for block in parent.table:
            self._references[block] += 1
        self._sequences[child_id] = Sequence(list(parent.table), parent.num_tokens)

    def free(self, seq_id: str) -> None:
        """End a sequence; a block that no other sequence holds becomes free."""
        for block in self._sequences.pop(seq_id).table:
            self._references[block] -= 1
            if self._references[block] == 0:
                self._free.append(block)

    def block_table(self, seq_id: str) -> list[int]:
        """The sequence's blocks, in the order of its tokens, as a list of the caller's own."""
        return list(self._sequences[seq_id].table)

    def num_free_blocks(self) -> int:
        """The number of blocks that no sequence holds."""
        return len(self._free)

    def _take(self) -> int:
        if not self._free:
            raise OutOfBlocksError
        block = self._free.pop()
        self._references[block] = 1
        return block

    def _check_unused(self, seq_id: str) -> None:
        if seq_id in self._sequences:
            raise ValueError(f"sequence {seq_id!r} is there already")
