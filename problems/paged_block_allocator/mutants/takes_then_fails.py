# killed_by: test_all_or_nothing — the blocks taken before the pool ran out are lost


class OutOfBlocksError(Exception):
    pass


class BlockAllocator:
    def __init__(self, num_blocks: int, block_size: int) -> None:
        if num_blocks < 1 or block_size < 1:
            raise ValueError("sizes must be positive")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.free_blocks = list(range(num_blocks))
        self.ref_count = {}
        self.tables = {}
        self.lengths = {}

    def allocate(self, seq_id: str, num_tokens: int) -> list[int]:
        if seq_id in self.tables:
            raise ValueError(f"{seq_id} exists")
        if num_tokens < 0:
            raise ValueError("negative number of tokens")
        needed = (num_tokens + self.block_size - 1) // self.block_size
        table = []
        for _ in range(needed):
            table.append(self._take())
        self.tables[seq_id] = table
        self.lengths[seq_id] = num_tokens
        return list(table)

    def append(self, seq_id: str) -> tuple[int, int, int | None]:
        table = self.tables[seq_id]
        offset = self.lengths[seq_id] % self.block_size
        copied_from = None
        if offset == 0:
            table.append(self._take())
        elif self.ref_count[table[-1]] > 1:
            old = table[-1]
            table[-1] = self._take()
            self.ref_count[old] -= 1
            copied_from = old
        self.lengths[seq_id] += 1
        return table[-1], offset, copied_from

    def fork(self, parent_id: str, child_id: str) -> None:
        if parent_id not in self.tables:
            raise KeyError(parent_id)
        if child_id in self.tables:
            raise ValueError(f"{child_id} exists")
        for block in self.tables[parent_id]:
            self.ref_count[block] += 1
        self.tables[child_id] = list(self.tables[parent_id])
        self.lengths[child_id] = self.lengths[parent_id]

    def free(self, seq_id: str) -> None:
        table = self.tables.pop(seq_id)
        del self.lengths[seq_id]
        for block in table:
            self.ref_count[block] -= 1
            if self.ref_count[block] == 0:
                self.free_blocks.append(block)

    def block_table(self, seq_id: str) -> list[int]:
        return list(self.tables[seq_id])

    def num_free_blocks(self) -> int:
        return len(self.free_blocks)

    def _take(self) -> int:
        if not self.free_blocks:
            raise OutOfBlocksError()
        block = self.free_blocks.pop()
        self.ref_count[block] = 1
        return block
