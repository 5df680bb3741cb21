"""Blocks that were never used come first, so that nothing is built up front."""

from collections import defaultdict


class OutOfBlocksError(Exception):
    pass


class BlockAllocator:
    def __init__(self, num_blocks, block_size):
        for size in (num_blocks, block_size):
            if size < 1:
                raise ValueError(f"{size} is not positive")
        self._num_blocks = num_blocks
        self._block_size = block_size
        self._next_new = 0
        self._returned = set()
        self._counts = defaultdict(int)
        self._seqs = {}

    def num_free_blocks(self):
        return self._num_blocks - self._next_new + len(self._returned)

    def _get(self):
        if self._next_new < self._num_blocks:
            block = self._next_new
            self._next_new += 1
        elif self._returned:
            block = self._returned.pop()
        else:
            raise OutOfBlocksError
        self._counts[block] += 1
        return block

    def _put(self, block):
        self._counts[block] -= 1
        if not self._counts[block]:
            del self._counts[block]
            self._returned.add(block)

    def allocate(self, seq_id, num_tokens):
        if seq_id in self._seqs or num_tokens < 0:
            raise ValueError
        table = []
        try:
            while len(table) * self._block_size < num_tokens:
                table.append(self._get())
        except OutOfBlocksError:
            for block in table:
                self._put(block)
            raise
        self._seqs[seq_id] = {"table": table, "length": num_tokens}
        return [*table]

    def append(self, seq_id):
        seq = self._seqs[seq_id]
        offset = seq["length"] - (len(seq["table"]) - 1) * self._block_size
        if not seq["table"] or offset == self._block_size:
            seq["table"] += [self._get()]
            seq["length"] += 1
            return seq["table"][-1], 0, None
        last = seq["table"][-1]
        if self._counts[last] == 1:
            seq["length"] += 1
            return last, offset, None
        seq["table"][-1] = self._get()
        self._put(last)
        seq["length"] += 1
        return seq["table"][-1], offset, last

    def fork(self, parent_id, child_id):
        if parent_id not in self._seqs:
            raise KeyError(parent_id)
        if child_id in self._seqs:
            raise ValueError(child_id)
        parent = self._seqs[parent_id]
        for block in parent["table"]:
            self._counts[block] += 1
        self._seqs[child_id] = {"table": parent["table"].copy(), "length": parent["length"]}

    def free(self, seq_id):
        seq = self._seqs.pop(seq_id)
        for block in reversed(seq["table"]):
            self._put(block)

    def block_table(self, seq_id):
        return [*self._seqs[seq_id]["table"]]
