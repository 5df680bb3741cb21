"""Grades paged_block_allocator against a memory: every token is written where the allocator says,
copied where it says, and must be read back through the block table.

Which free block is given is the allocator's choice, so nothing here expects a certain one.
"""

from __future__ import annotations

import numbers
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.practice.kit import Call, Instance, Solution, states


class Memory:
    """An allocator under test, and the memory that its user would keep.

    Attributes:
        tokens: of each sequence, as written; each token is a number of its own.
        tables: of each sequence, as last seen.
        slots: (block, offset) -> the token there.
    """

    def __init__(self, solution: Solution, num_blocks: int, block_size: int) -> None:
        self.allocator: Instance = solution.new("BlockAllocator", num_blocks, block_size)
        self.solution = solution
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.tokens: dict[str, list[int]] = {}
        self.tables: dict[str, list[int]] = {}
        self.slots: dict[tuple[int, int], int] = {}
        self.written = 0

    # ---- the operations: each does what a user would, and checks what it is told ----

    def allocate(self, seq_id: str, num_tokens: int) -> Call:
        call = self.allocator.call("allocate", seq_id, num_tokens)
        needed = -(-num_tokens // self.block_size)
        if seq_id in self.tokens:
            return call.raises(ValueError)
        if needed > self.num_free:
            return self.is_out_of_blocks(call)
        table = self.table_of(call)
        if len(table) != needed:
            call.fail(f"a table of {needed} blocks for {num_tokens} tokens")
        in_use = self.blocks_in_use
        for block in table:
            if block in in_use or table.count(block) > 1:
                call.fail(f"blocks that are free, but {block} is in use", paste_table(table))
        self.tokens[seq_id] = []
        self.tables[seq_id] = list(table)
        for index in range(num_tokens):
            self.write(seq_id, table[index // self.block_size], index % self.block_size)
        return call

    def append(self, seq_id: str) -> Call:
        call = self.allocator.call("append", seq_id)
        if seq_id not in self.tokens:
            return call.raises(KeyError)
        table = self.tables[seq_id]
        offset = len(self.tokens[seq_id]) % self.block_size
        is_shared = bool(table) and self.owners[table[-1]] > 1
        needs_block = offset == 0 or is_shared
        if needs_block and self.num_free == 0:
            return self.is_out_of_blocks(call)
        block, copied_from = self.slot_of(call, offset)
        if needs_block and block in self.blocks_in_use:
            why = "begins a block" if offset == 0 else "would write into a shared block"
            call.fail(f"a free block, as this token {why}")
        if not needs_block and block != table[-1]:
            call.fail(f"block {table[-1]}, which has room and no other owner")
        wanted = table[-1] if offset and is_shared else None
        if copied_from != wanted:
            call.fail(f"copied_from to be {wanted}", note=self.why_copied(offset, is_shared))
        if copied_from is not None:
            for slot in range(self.block_size):
                if (copied_from, slot) in self.slots:
                    self.slots[block, slot] = self.slots[copied_from, slot]
            table[-1] = block
        elif offset == 0:
            table.append(block)
        self.write(seq_id, block, offset)
        return call

    def fork(self, parent_id: str, child_id: str) -> Call:
        call = self.allocator.call("fork", parent_id, child_id)
        if parent_id not in self.tokens and child_id in self.tokens:
            return call.raises(KeyError, ValueError)
        if parent_id not in self.tokens:
            return call.raises(KeyError)
        if child_id in self.tokens:
            return call.raises(ValueError)
        _ = call.value
        self.tokens[child_id] = list(self.tokens[parent_id])
        self.tables[child_id] = list(self.tables[parent_id])
        return call

    def free(self, seq_id: str) -> Call:
        call = self.allocator.call("free", seq_id)
        if seq_id not in self.tokens:
            return call.raises(KeyError)
        _ = call.value
        before = self.blocks_in_use
        del self.tokens[seq_id], self.tables[seq_id]
        for block in before - self.blocks_in_use:
            for slot in range(self.block_size):
                self.slots.pop((block, slot), None)
        return call

    def check(self) -> None:
        """Every table, token and count, after whatever was called."""
        for seq_id, tokens in self.tokens.items():
            call = self.look("block_table", seq_id)
            table = self.table_of(call)
            if table != self.tables[seq_id]:
                call.fail(paste_table(self.tables[seq_id]))
            read = [
                self.slots.get((table[index // self.block_size], index % self.block_size))
                for index in range(len(tokens))
            ]
            if read != tokens:
                at = next(i for i, token in enumerate(tokens) if read[i] != token)
                call.fail(
                    f"token {at} of {seq_id!r} to be as it was written",
                    note="another sequence wrote over it, or it was not copied",
                )
        self.look("num_free_blocks").equals(
            self.num_free, note=f"the tables hold {paste_table(sorted(self.blocks_in_use))}"
        )

    # ---- what the model knows ----

    @property
    def owners(self) -> Counter[int]:
        return Counter(block for table in self.tables.values() for block in table)

    @property
    def blocks_in_use(self) -> set[int]:
        return set(self.owners)

    @property
    def num_free(self) -> int:
        return self.num_blocks - len(self.blocks_in_use)

    def write(self, seq_id: str, block: int, offset: int) -> None:
        self.written += 1
        self.slots[block, offset] = self.written
        self.tokens[seq_id].append(self.written)

    def look(self, name: str, *args: Any) -> Call:
        """A call that only reads: later failures do not show it."""
        call = self.allocator.call(name, *args)
        self.allocator.history.pop()
        return call

    def is_out_of_blocks(self, call: Call) -> Call:
        kind = self.solution.function("OutOfBlocksError")
        if not (isinstance(kind, type) and issubclass(kind, Exception)):
            call.fail("OutOfBlocksError to be an exception class", "OutOfBlocksError that is none")
        return call.raises(kind)

    def table_of(self, call: Call) -> list[int]:
        table: list[int] = call.of_type(list, "a list of block ids")
        for block in table:
            if not self.is_index(block):
                call.fail(f"block ids from 0 to {self.num_blocks - 1}")
        return table

    def slot_of(self, call: Call, offset: int) -> tuple[int, int | None]:
        got = call.of_type(tuple, "a tuple (block, offset, copied_from)")
        if len(got) != 3:
            call.fail("a tuple of three: (block, offset, copied_from)")
        block, got_offset, copied_from = got
        if not self.is_index(block):
            call.fail(f"a block id from 0 to {self.num_blocks - 1}")
        if not self.is_index(got_offset, self.block_size) or got_offset != offset:
            call.fail(f"offset {offset}")
        if copied_from is not None and not self.is_index(copied_from):
            call.fail("copied_from to be a block id or None")
        return block, copied_from

    def is_index(self, value: Any, end: int | None = None) -> bool:
        is_int = isinstance(value, numbers.Integral) and not isinstance(value, bool)
        return is_int and 0 <= value < (self.num_blocks if end is None else end)

    @staticmethod
    def why_copied(offset: int, is_shared: bool) -> str:
        if offset == 0:
            return "the last block is full and will not be written: nothing is copied"
        return "another sequence holds this block" if is_shared else "no other sequence holds it"


def paste_table(table: list[int]) -> str:
    return f"[{', '.join(map(str, table))}]"


# ---- one thing at a time ----


@states("a new pool is all free", "新建的池里所有 block 都空闲")
@pytest.mark.parametrize("num_blocks", [1, 5])
def test_new_pool(solution: Solution, num_blocks: int) -> None:
    Memory(solution, num_blocks, 4).check()


@states(
    "a sequence gets as many blocks as its tokens fill, the last in part",
    "按 token 数向上取整分配 block",
)
@pytest.mark.parametrize("num_tokens", [0, 1, 3, 4, 5, 8, 9])
def test_allocate(solution: Solution, num_tokens: int) -> None:
    memory = Memory(solution, 3, 4)
    memory.allocate("a", num_tokens)
    memory.check()


@states("a pool can be used up to its last block", "池可以用到最后一个 block")
def test_fill_the_pool(solution: Solution) -> None:
    memory = Memory(solution, 3, 2)
    memory.allocate("a", 4)
    memory.allocate("b", 2)
    memory.check()
    memory.allocate("c", 1)
    memory.allocate("c", 0)
    memory.check()


@states("an allocation that does not fit takes nothing", "放不下的分配不占用任何 block")
def test_all_or_nothing(solution: Solution) -> None:
    memory = Memory(solution, 3, 2)
    memory.allocate("a", 2)
    memory.allocate("b", 5)
    memory.check()
    memory.allocate("b", 4)
    memory.check()


@states("tokens are appended slot by slot, block by block", "token 逐个 slot、逐个 block 地追加")
def test_append(solution: Solution) -> None:
    memory = Memory(solution, 3, 3)
    memory.allocate("a", 1)
    for _ in range(8):
        memory.append("a")
        memory.check()
    memory.append("a")
    memory.check()


@states(
    "an empty sequence gets its first block with its first token",
    "空序列在第一个 token 到来时才拿到 block",
)
def test_append_to_nothing(solution: Solution) -> None:
    memory = Memory(solution, 1, 2)
    memory.allocate("a", 0)
    memory.check()
    memory.append("a")
    memory.check()


@states("freed blocks can be given again, and none is lost", "释放的 block 能再次分配，一个都不丢")
def test_free_and_reuse(solution: Solution) -> None:
    memory = Memory(solution, 3, 2)
    for _ in range(3):
        memory.allocate("a", 5)
        memory.append("a")
        memory.append("a")
        memory.free("a")
        memory.check()


@states("a fork takes no block", "fork 不占用新的 block")
def test_fork(solution: Solution) -> None:
    memory = Memory(solution, 2, 2)
    memory.allocate("a", 3)
    memory.fork("a", "b")
    memory.check()


@states(
    "a shared block that is filled in part is copied before it is written",
    "写共享的未满 block 之前先复制",
)
@pytest.mark.parametrize("writer", ["parent", "child"])
def test_copy_on_write(solution: Solution, writer: str) -> None:
    memory = Memory(solution, 4, 4)
    memory.allocate("parent", 6)
    memory.fork("parent", "child")
    memory.append(writer)
    memory.check()


@states("the last owner of a block writes in place", "block 只剩一个持有者时直接原地写")
@pytest.mark.parametrize("left_by", ["append", "free"])
def test_last_owner(solution: Solution, left_by: str) -> None:
    memory = Memory(solution, 4, 4)
    memory.allocate("a", 2)
    memory.fork("a", "b")
    memory.append("a") if left_by == "append" else memory.free("a")
    memory.append("b")
    memory.check()


@states("a shared block that is full is never copied", "已写满的共享 block 从不复制")
def test_full_shared_block(solution: Solution) -> None:
    memory = Memory(solution, 4, 2)
    memory.allocate("a", 2)
    memory.fork("a", "b")
    memory.append("b")
    memory.append("a")
    memory.append("a")
    memory.check()


@states("three owners copy twice", "三个持有者总共只复制两次")
def test_three_owners(solution: Solution) -> None:
    memory = Memory(solution, 3, 2)
    memory.allocate("a", 1)
    memory.fork("a", "b")
    memory.fork("b", "c")
    for seq_id in ("b", "a", "c"):
        memory.append(seq_id)
        memory.check()


@states(
    "a block is free once its last owner is gone, not before",
    "最后一个持有者离开时 block 才变为空闲",
)
@pytest.mark.parametrize("order", ["abc", "cba", "bca"])
def test_last_owner_frees(solution: Solution, order: str) -> None:
    memory = Memory(solution, 3, 2)
    memory.allocate("a", 3)
    memory.fork("a", "b")
    memory.fork("a", "c")
    for seq_id in order:
        memory.free(seq_id)
        memory.check()


@states(
    "an append that needs a block and finds none changes nothing",
    "拿不到 block 的 append 不改变任何状态",
)
@pytest.mark.parametrize("num_tokens", [1, 3])
def test_append_out_of_blocks(solution: Solution, num_tokens: int) -> None:
    memory = Memory(solution, 2, 3)
    memory.allocate("a", num_tokens)
    memory.fork("a", "b")
    memory.allocate("c", 3)
    memory.append("b")
    memory.check()
    memory.append("b")
    memory.free("c")
    memory.append("b")
    memory.append("a")
    memory.check()


@states(
    "unknown ids are refused with KeyError, ids in use with ValueError",
    "未知 id 抛 KeyError，已占用的 id 抛 ValueError",
)
def test_ids(solution: Solution) -> None:
    memory = Memory(solution, 4, 2)
    memory.append("a")
    memory.free("a")
    memory.fork("a", "b")
    memory.look("block_table", "a").raises(KeyError)
    memory.allocate("a", 3)
    memory.allocate("a", 1)
    memory.allocate("a", 100)
    memory.allocate("b", 1)
    memory.fork("a", "b")
    memory.fork("a", "a")
    memory.check()
    memory.free("a")
    memory.free("a")
    memory.append("a")
    memory.look("block_table", "a").raises(KeyError)
    memory.check()


@states("sizes that make no sense are refused with ValueError", "不合理的大小抛 ValueError")
def test_sizes(solution: Solution) -> None:
    for num_blocks, block_size in ((0, 4), (4, 0), (-1, 4), (4, -1)):
        refuses_pool(solution, num_blocks, block_size)
    memory = Memory(solution, 4, 2)
    memory.allocator.call("allocate", "a", -1).raises(ValueError)
    memory.check()
    memory.allocate("a", 1)
    memory.check()


def refuses_pool(solution: Solution, num_blocks: int, block_size: int) -> None:
    solution.call("BlockAllocator", num_blocks, block_size).raises(ValueError)


@states(
    "the lists that are returned are the caller's own", "返回的列表归调用方所有，修改它不影响分配器"
)
@pytest.mark.parametrize("name", ["allocate", "block_table"])
def test_returned_lists(solution: Solution, name: str) -> None:
    memory = Memory(solution, 3, 2)
    returned = memory.allocate("a", 3)
    if name == "block_table":
        returned = memory.allocator.call(name, "a")
    returned.of_type(list, "a list of block ids").clear()
    memory.allocator.history[-1] += ".clear()"
    memory.check()
    memory.append("a")
    memory.append("a")
    memory.check()


@states("two allocators share nothing", "两个分配器互不影响")
def test_two_allocators(solution: Solution) -> None:
    one, other = Memory(solution, 3, 2), Memory(solution, 5, 3)
    one.allocate("a", 3)
    other.check()
    other.allocate("a", 7)
    other.fork("a", "b")
    one.append("a")
    other.append("b")
    one.free("a")
    one.check()
    other.check()


# ---- the work ----


@states(
    "append and num_free_blocks do not walk over the pool, a table or the sequences",
    "append 与 num_free_blocks 不遍历整个池、block table 或所有序列",
)
def test_work_of_append(solution: Solution) -> None:
    num_blocks = 1500
    allocator = solution.new("BlockAllocator", num_blocks, 2)
    allocator.call("allocate", "long", 2 * 1000 - 1)
    for index in range(200):
        allocator.call("allocate", f"s{index}", 1)
    allocator.call("fork", "long", "fork")
    for name, args in (
        ("append", ("fork",)),  # copies
        ("append", ("fork",)),  # begins a block
        ("append", ("long",)),  # writes in place
        ("num_free_blocks", ()),
    ):
        with solution.counting_lines() as lines:
            call = allocator.call(name, *args)
        _ = call.value
        solution.within(f"lines executed by {name}", lines.count, 100, call)


@states(
    "the work of allocate, fork and free grows with that sequence's blocks only",
    "allocate、fork、free 的运算量只与该序列的 block 数成正比",
)
def test_work_of_sequences(solution: Solution) -> None:
    allocator = solution.new("BlockAllocator", 1500, 2)
    allocator.call("allocate", "long", 2 * 1000)
    for index in range(200):
        allocator.call("allocate", f"s{index}", 1)
    for name, args in (
        ("allocate", ("short", 6)),
        ("fork", ("short", "child")),
        ("free", ("short",)),
        ("block_table", ("child",)),
        ("free", ("child",)),
    ):
        with solution.counting_lines() as lines:
            call = allocator.call(name, *args)
        _ = call.value
        solution.within(f"lines executed by {name}", lines.count, 200, call)


# ---- anything at all ----

names = st.sampled_from("abc")
any_call = st.one_of(
    st.tuples(st.just("append"), names),
    st.tuples(st.just("allocate"), names, st.integers(0, 6)),
    st.tuples(st.just("fork"), names, names),
    st.tuples(st.just("free"), names),
    st.tuples(st.just("append"), names),
)
# Short lists alone seldom get far; a failing long one is still shown as a short one.
any_calls = st.lists(any_call, max_size=30) | st.lists(any_call, min_size=12, max_size=30)


@states(
    "whatever is called, every sequence reads back its own tokens and no block is lost",
    "任意调用序列下，每个序列都能读回自己的 token，且没有 block 丢失",
)
@given(num_blocks=st.integers(1, 6), block_size=st.integers(1, 3), calls=any_calls)
def test_any_calls(
    solution: Solution, num_blocks: int, block_size: int, calls: list[tuple[Any, ...]]
) -> None:
    memory = Memory(solution, num_blocks, block_size)
    for name, *args in calls:
        getattr(memory, name)(*args)
        memory.check()
    for seq_id in list(memory.tokens):
        memory.free(seq_id)
    memory.check()


# Numbers choose among the sequences that are there, so that most calls are good ones and forks
# are written by both sides.
calls_by_number = st.lists(
    st.tuples(st.sampled_from(["append", "append", "fork", "append", "free"]), st.integers(0, 3)),
    min_size=1,
    max_size=25,
)


@states(
    "forked sequences go their own ways, whoever writes first and whoever ends first",
    "fork 出的序列各走各的路，无论谁先写、谁先结束",
)
@given(
    num_blocks=st.integers(2, 8),
    block_size=st.integers(2, 4),
    num_tokens=st.integers(0, 8),
    calls=calls_by_number,
)
def test_forks(
    solution: Solution,
    num_blocks: int,
    block_size: int,
    num_tokens: int,
    calls: list[tuple[str, int]],
) -> None:
    memory = Memory(solution, num_blocks, block_size)
    memory.allocate("a", num_tokens)
    memory.fork("a", "b")
    for name, number in calls:
        there = list(memory.tokens) or ["a"]
        seq_id = there[number % len(there)]
        if name == "fork":
            memory.fork(seq_id, next((free for free in "abcd" if free not in there), "e"))
        else:
            getattr(memory, name)(seq_id)
        memory.check()
