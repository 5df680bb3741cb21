"""One array of num_blocks integers holds both the free list and the reference counts.

A block is either free or counted, never both, so one cell serves: of a free block it is the next
free block, of a block in use it is minus its reference count. This is how memory allocators keep
free lists inside the memory they manage; it needs no allocation after the start. O(1) for
`append`, O(blocks of the sequence) for the rest.
"""


class OutOfBlocksError(Exception):
    """Raised where a call needs more free blocks than there are; such a call changes nothing."""


class BlockAllocator:
    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1:
            raise ValueError("num_blocks must be positive")
        if block_size < 1:
            raise ValueError("block_size must be positive")
        self._size = block_size
        self._cells = list(range(1, num_blocks + 1))  # the last one points past the end
        self._first_free = 0
        self._num_free = num_blocks
        self._tables: dict[str, tuple[list[int], int]] = {}  # table, number of tokens

    def allocate(self, seq_id: str, num_tokens: int) -> list[int]:
        if num_tokens < 0 or seq_id in self._tables:
            raise ValueError(f"cannot allocate {num_tokens} tokens for {seq_id!r}")
        needed = 1 + (num_tokens - 1) // self._size
        if needed > self._num_free:
            raise OutOfBlocksError
        table = []
        while len(table) < needed:
            table.append(self._pop())
        self._tables[seq_id] = (table, num_tokens)
        return table[:]

    def append(self, seq_id: str) -> tuple[int, int, int | None]:
        table, length = self._tables[seq_id]
        offset = length % self._size
        in_place = offset > 0 and self._cells[table[-1]] == -1
        copied_from = table[-1] if offset > 0 and not in_place else None
        if not in_place:
            block = self._pop()
            if copied_from is not None:
                table.pop()
                self._cells[copied_from] += 1
            table.append(block)
        self._tables[seq_id] = (table, length + 1)
        return table[-1], offset, copied_from

    def fork(self, parent_id: str, child_id: str) -> None:
        table, length = self._tables[parent_id]
        if child_id in self._tables:
            raise ValueError(f"{child_id!r} exists")
        for block in table:
            self._cells[block] -= 1
        self._tables[child_id] = (table[:], length)

    def free(self, seq_id: str) -> None:
        table, _ = self._tables.pop(seq_id)
        for block in table:
            self._cells[block] += 1
            if self._cells[block] == 0:
                self._push(block)

    def block_table(self, seq_id: str) -> list[int]:
        return self._tables[seq_id][0][:]

    def num_free_blocks(self) -> int:
        return self._num_free

    def _pop(self) -> int:
        if self._num_free == 0:
            raise OutOfBlocksError
        block = self._first_free
        self._first_free = self._cells[block]
        self._cells[block] = -1
        self._num_free -= 1
        return block

    def _push(self, block: int) -> None:
        self._cells[block] = self._first_free
        self._first_free = block
        self._num_free += 1
