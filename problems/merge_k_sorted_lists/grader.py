"""Grades merge_k_sorted_lists against a stable sort of all nodes, and by counted comparisons."""

from __future__ import annotations

import itertools
import math
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.practice.kit import (
    Call,
    Counted,
    Instance,
    Shown,
    Solution,
    Tally,
    follow_up,
    paste,
    states,
)

LONGEST_SHOWN = 8  # nodes of a list that a failure shows as nested constructors

# Equal values that can be told apart: 1 == 1.0 == True.
VALUES = st.sampled_from([0, 1, 1.0, True, 2, 3])
SORTED = st.lists(VALUES, max_size=5).map(sorted)


class ListNode:
    """For solutions that bring no ListNode, or one that makes nodes otherwise."""

    def __init__(self, val: Any, next: ListNode | None = None) -> None:  # noqa: A002
        self.val = val
        self.next = next


def node_class(solution: Solution) -> Any:
    own = getattr(solution.module, "ListNode", None)
    try:
        tail = own(1)
        head = own(0, tail)
        fits = (head.val, tail.val) == (0, 1) and head.next is tail and tail.next is None
    except Exception:
        fits = False
    return own if fits else ListNode


class Given(Shown):
    """Lists of nodes, or iterators. The grader keeps hold of them, so a call takes no copy."""

    def __deepcopy__(self, memo: object) -> Given:
        return self


class Lists:
    """The nodes that a call is given, in the order that the result must have."""

    def __init__(self, solution: Solution, lists: Sequence[Sequence[Any]]) -> None:
        make = node_class(solution)
        heads: list[Any] = []
        nodes: list[tuple[Any, Any]] = []  # a node and the value it had
        for values in lists:
            chain: list[Any] = []
            following = None
            for value in reversed(values):
                following = make(value, following)
                chain.append(following)
            heads.append(following)
            nodes += zip(reversed(chain), values, strict=True)
        self.wanted = sorted(nodes, key=lambda pair: plain(pair[1]))  # sorted() is stable
        self.argument = Given(heads, f"[{', '.join(map(code, lists))}]")


def plain(value: Any) -> Any:
    return value.value if isinstance(value, Counted) else value


def code(values: Sequence[Any]) -> str:
    """Python that builds one list."""
    if len(values) > LONGEST_SHOWN:
        # Not nested: Python's parser refuses brackets that are hundreds deep.
        items = repr(values) if isinstance(values, range) else paste(list(values))
        return f"functools.reduce(lambda rest, val: ListNode(val, rest), {items}[::-1], None)"
    text = ""
    for value in reversed(values):
        text = f"ListNode({value!r}, {text})" if text else f"ListNode({value!r})"
    return text or "None"


def arrows(values: Sequence[Any], ending: str = "None") -> str:
    texts = [paste(value) for value in values[: 3 * LONGEST_SHOWN]]
    if len(values) > len(texts):
        texts += [f"... ({len(values)} nodes)"]
    return " -> ".join([*texts, ending])


def follow(call: Call, most: int) -> Iterator[Any]:
    """The nodes of the result, no more than `most` of them."""
    node = call.value
    for _ in range(most):
        if node is None:
            return
        if not (hasattr(node, "val") and hasattr(node, "next")):
            call.fail("a ListNode or None")
        yield node
        node = node.next


def expect_merged(call: Call, lists: Lists) -> None:
    """The result is made of the given nodes in the order of a stable sort."""
    values = [value for _, value in lists.wanted]
    wanted = arrows(values)
    got = list(follow(call, len(values) + 1))
    got_values = [node.val for node in got]
    if len(got) > len(values) and len({id(node) for node in got}) < len(got):
        text = arrows(got_values, "...")
        call.fail(wanted, text, "the list never ends: a node comes again")
    if len(got) != len(values) or any(map(differ, got_values, values)):
        call.fail(wanted, arrows(got_values), note_on_ties(got_values, values))
    known = {id(node) for node, _ in lists.wanted}
    for place, (node, (expected, _)) in enumerate(zip(got, lists.wanted, strict=True)):
        if node is not expected:
            what = "another of the given nodes" if id(node) in known else "a new node"
            call.fail(
                f"{wanted}, made of the given nodes",
                f"these values, but place {place} holds {what}",
                "relink the nodes: copy none, and move no values",
            )


def differ(got: Any, wanted: Any) -> bool:
    return got is not wanted and not (type(got) is type(wanted) and plain(got) == plain(wanted))


def note_on_ties(got: Sequence[Any], wanted: Sequence[Any]) -> str:
    is_tie = len(got) == len(wanted) and all(
        plain(a) == plain(b) for a, b in zip(got, wanted, strict=True)
    )
    return "equal values must keep the order of their lists" if is_tie else ""


def check_own_nodes(solution: Solution) -> None:
    """The solution's ListNode keeps what it is given, or makes nodes in a way of its own."""
    make = getattr(solution.module, "ListNode", ListNode)
    try:
        tail = make(2)
        head = make(1, tail)
    except TypeError:
        return
    values = [getattr(node, "val", "no val") for node in (head, tail)]
    if values != [1, 2] or getattr(head, "next", None) is not tail:
        call = solution.call("ListNode", 1, Given(tail, "ListNode(2)"))
        call.fail("a node that keeps both", f"nodes of values {paste(values)}, linked or not")


def check(solution: Solution, lists: Sequence[Sequence[Any]]) -> Call:
    given_lists = Lists(solution, lists)
    call = solution.call("merge_k_lists", given_lists.argument)
    expect_merged(call, given_lists)
    return call


@contextmanager
def counting_depth() -> Iterator[Tally]:
    """The most Python calls that were open at once inside the block."""
    deepest = Tally()
    open_calls = 0

    def profile(frame: FrameType, event: str, argument: object) -> None:
        nonlocal open_calls
        if event == "call":
            open_calls += 1
            deepest.count = max(deepest.count, open_calls)
        elif event == "return":
            open_calls -= 1

    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        yield deepest
    finally:
        sys.setprofile(before)


def dealt(lists: int, each: int) -> list[range]:
    """Every list's values lie between those of all others."""
    return [range(start, lists * each, lists) for start in range(lists)]


def most_comparisons(count: int, lists: int) -> int:
    """A heap of tuples compares twice for each level, and some levels twice: 4 N (log2 k + 2)."""
    return 4 * count * (math.ceil(math.log2(lists)) + 2)


# ---- linked lists ----


@states("no lists, or only empty ones, give an empty list", "没有链表或全为空链表时，结果为空")
@pytest.mark.parametrize("lists", [[], [[]], [[], [], []]], ids=str)
def test_nothing(solution: Solution, lists: list[list[int]]) -> None:
    check(solution, lists)


@states("one list comes back as it is", "只有一个链表时原样返回")
@pytest.mark.parametrize("lists", [[[1]], [[1, 2, 2]], [[], [0, 1], []]], ids=str)
def test_one_list(solution: Solution, lists: list[list[int]]) -> None:
    check_own_nodes(solution)
    check(solution, lists)


@states("a few lists merge", "少量链表的合并")
@pytest.mark.parametrize(
    "lists",
    [
        [[1], [0]],
        [[1, 3], [2]],
        [[0], [1, 2, 3]],
        [[3, 4], [1, 2]],
        [[1, 4, 5], [1, 3, 4], [2, 6]],
        [[-1], [], [-2, 0], [5]],
    ],
    ids=str,
)
def test_few_lists(solution: Solution, lists: list[list[int]]) -> None:
    check(solution, lists)


@states("equal values keep the order of their lists", "值相等时保持各链表的先后次序")
@pytest.mark.parametrize(
    "lists",
    [
        [[1], [1.0]],
        [[1.0], [1]],
        [[1], [1.0], [True]],
        [[1, 1.0], [True, 2]],
        [[0, 1], [1.0], [0.0, True]],
    ],
    ids=str,
)
def test_ties(solution: Solution, lists: list[list[Any]]) -> None:
    check(solution, lists)


@states("any values with an order will do, infinity too", "任何可比较的值都可以，包括无穷大")
@pytest.mark.parametrize(
    "lists",
    [
        [["b", "d"], ["a", "c"], []],
        [[math.inf], [0, math.inf], [-math.inf, 5]],
        [[(1, "a")], [(0, "z"), (1, "b")]],
        [[2**70], [2**70 - 1, 2**70 + 1]],
    ],
    ids=str,
)
def test_any_values(solution: Solution, lists: list[list[Any]]) -> None:
    check(solution, lists)


@states("any lists merge like a stable sort", "任意链表的合并等同于稳定排序")
@given(lists=st.lists(SORTED, max_size=5))
def test_any_lists(solution: Solution, lists: list[list[Any]]) -> None:
    check(solution, lists)


@states("O(N log k) comparisons", "比较次数为 O(N log k)")
@pytest.mark.parametrize(("lists", "each"), [(256, 4), (64, 16), (2, 500)])
def test_comparisons(solution: Solution, lists: int, each: int) -> None:
    tally = Tally()
    counted = [[Counted(value, tally) for value in values] for values in dealt(lists, each)]
    given_lists = Lists(solution, counted)
    tally.count = 0
    call = solution.call("merge_k_lists", given_lists.argument)
    used = tally.count
    expect_merged(call, given_lists)
    count = lists * each
    what = f"comparisons for {count} nodes in {lists} lists"
    solution.within(what, used, most_comparisons(count, lists), call)


@states(
    "O(N log k) steps, O(k) memory, and no nested call for each node",
    "步数 O(N log k)、额外内存 O(k)，且不逐节点递归",
)
def test_cost(solution: Solution) -> None:
    given_lists = Lists(solution, dealt(64, 16))
    with solution.counting_lines() as lines:
        call = solution.call("merge_k_lists", given_lists.argument)
    solution.within("executed lines for 1,024 nodes in 64 lists", lines.count, 120 * 1024, call)
    given_lists = Lists(solution, dealt(3, 100))
    with counting_depth() as deepest:
        call = solution.call("merge_k_lists", given_lists.argument)
    solution.within("nested calls for 300 nodes in 3 lists", deepest.count, 60, call)
    given_lists = Lists(solution, dealt(4, 5000))
    with solution.peak_memory() as peak:
        call = solution.call("merge_k_lists", given_lists.argument)
    expect_merged(call, given_lists)
    what = "bytes of extra memory for 20,000 nodes in 4 lists"
    solution.within(what, peak.bytes, 64 << 10, call)


@states("long lists, and many lists, merge", "很长的链表、很多的链表都能合并")
@pytest.mark.parametrize(("lists", "each"), [(1, 50_000), (2, 25_000), (3000, 2), (5000, 0)])
def test_large(solution: Solution, lists: int, each: int) -> None:
    check(solution, dealt(lists, each))


# ---- follow-up: iterables ----


class Source:
    """An iterator over sorted values that counts what is read of it. It may be endless."""

    def __init__(self, values: Iterable[Any], text: str = "") -> None:
        self.values = iter(values)
        self.reads = 0
        self.text = text

    def __iter__(self) -> Source:
        return self

    def __next__(self) -> Any:
        self.reads += 1
        return next(self.values)


def merged(solution: Solution, *arguments: Any) -> Instance:
    """What merge_iterables returns, the calls of which are shown one a line."""
    call = solution.call("merge_iterables", *arguments)
    if not (hasattr(call.value, "__next__") and hasattr(call.value, "__iter__")):
        call.fail("an iterator", f"{paste(call.value)}, a {type(call.value).__name__}")
    return Instance(solution, "merged", call.value, [f"merged = {call.text}"])


def sources(lists: Sequence[Sequence[Any]]) -> tuple[list[Source], list[Given]]:
    made = [Source(values) for values in lists]
    shown = [
        Given(source, f"iter({paste(list(values))})")
        for source, values in zip(made, lists, strict=True)
    ]
    return made, shown


def expect_values(result: Instance, wanted: Sequence[Any]) -> None:
    """These values one after the other, and then the end."""
    for value in wanted:
        call = result.call("__next__")
        if differ(call.value, value):
            note = "equal values must keep the order of their iterables"
            call.fail(paste(value), note=note if plain(call.value) == plain(value) else "")
    result.call("__next__").raises(StopIteration)


@follow_up("merge_iterables")
@states("follow-up: iterables of any kind merge", "进阶：可合并任意种类的可迭代对象")
@pytest.mark.parametrize(
    "iterables",
    [
        (),
        ([],),
        ([1, 2],),
        ([0, 0, 3], (0, 2)),
        (range(0, 6, 2), [], (1, 1), range(3)),
        ("ace", "bd"),
        ([math.inf], [0, math.inf]),
    ],
    ids=str,
)
def test_iterables(solution: Solution, iterables: tuple[Any, ...]) -> None:
    expect_values(merged(solution, *iterables), sorted(itertools.chain(*iterables)))


@follow_up("merge_iterables")
@states("follow-up: nothing is read before it must be", "进阶：不到必要时不读取任何元素")
@pytest.mark.parametrize(
    "lists", [[[1, 2, 3]], [[1, 4], [2, 3]], [[5], [1, 2], []], [[0, 0], [0.0]]], ids=str
)
def test_laziness(solution: Solution, lists: list[list[Any]]) -> None:
    check_laziness(solution, lists)


def check_laziness(solution: Solution, lists: Sequence[Sequence[Any]]) -> None:
    made, shown = sources(lists)
    result = merged(solution, *shown)
    if any(source.reads for source in made):
        call = solution.call("merge_iterables", *sources(lists)[1])
        call.fail("no element read before the first is asked for", "a read during the call")
    tagged = [(value, place) for place, values in enumerate(lists) for value in values]
    tagged.sort(key=lambda pair: pair[0])
    wanted_reads = [1] * len(made)
    for value, place in tagged:
        call = result.call("__next__")
        if differ(call.value, value):
            call.fail(paste(value))
        reads = [source.reads for source in made]
        # Fewer reads cannot be: without the first of each, nothing is known to be the least. An
        # iterable that has ended may be asked again, which reads nothing.
        if any(
            read > wanted and wanted <= len(values)
            for read, wanted, values in zip(reads, wanted_reads, lists, strict=True)
        ):
            call.fail(
                f"at most {wanted_reads} reads of the iterables so far",
                f"{reads} reads",
                "the next element of an iterable is read only when another value is asked for",
            )
        wanted_reads[place] += 1
    result.call("__next__").raises(StopIteration)


@follow_up("merge_iterables")
@states(
    "follow-up: endless iterables are read only as far as asked", "进阶：无穷的可迭代对象也能合并"
)
def test_endless(solution: Solution) -> None:
    made = [Source(itertools.count(start, 2)) for start in range(2)]
    texts = [f"itertools.count({start}, 2)" for start in range(2)]
    result = merged(solution, *map(Given, made, texts))
    for value in range(20):
        result.call("__next__").equals(value)


@follow_up("merge_iterables")
@states(
    "follow-up: equal values keep the order of their iterables",
    "进阶：值相等时保持各可迭代对象的先后次序",
)
@pytest.mark.parametrize("lists", [[[1], [1.0]], [[1.0], [1], [True]], [[1, 1.0], [True]]], ids=str)
def test_ties_of_iterables(solution: Solution, lists: list[list[Any]]) -> None:
    expect_values(merged(solution, *lists), sorted(itertools.chain(*lists)))


@follow_up("merge_iterables")
@states(
    "follow-up: any iterables merge like a stable sort, lazily",
    "进阶：任意输入的合并等同于稳定排序，且惰性",
)
@given(lists=st.lists(SORTED, max_size=4))
def test_any_iterables(solution: Solution, lists: list[list[Any]]) -> None:
    check_laziness(solution, lists)


@follow_up("merge_iterables")
@states(
    "follow-up: O(log k) comparisons and O(k) memory", "进阶：每个元素 O(log k) 次比较，内存 O(k)"
)
def test_cost_of_iterables(solution: Solution) -> None:
    lists, each = 128, 8
    tally = Tally()
    counted = [[Counted(value, tally) for value in values] for values in dealt(lists, each)]
    result = merged(solution, *(Given(iter(values), "...") for values in counted))
    tally.count = 0
    with solution.counting_lines() as lines:
        for value in range(lists * each):
            call = result.call("__next__")
            if not isinstance(call.value, Counted) or call.value.value != value:
                call.fail(paste(value))
    count = lists * each
    what = f"comparisons for {count} values of {lists} iterables"
    solution.within(what, tally.count, most_comparisons(count, lists), call)
    solution.within(f"executed lines for {count} values", lines.count, 160 * count, call)
    endless = [Given(itertools.count(start, 3), "...") for start in range(3)]
    with solution.peak_memory() as peak:
        result = merged(solution, *endless)
        for _ in range(5000):
            call = result.call("__next__")
            _ = call.value
    solution.within("bytes of memory after 5,000 values", peak.bytes, 32 << 10, call)
