"""Grades reverse_linked_list node by node: which objects the result is made of, in which order.

The expected order is index arithmetic on a Python list, so the oracle follows no pointers.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.practice.kit import Call, Shown, Solution, Tally, follow_up, paste, states

LONGEST_SHOWN = 8  # nodes of a list that a failure shows as nested constructors
VALUES = st.lists(st.sampled_from([0, 1, 2, None]), max_size=8)


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
    """A list of nodes. The grader keeps hold of the nodes themselves, so a call takes no copy."""

    def __deepcopy__(self, memo: object) -> Given:
        return self


class Nodes:
    """The nodes that a call is given, in their first order, with their values."""

    def __init__(self, solution: Solution, values: Sequence[Any]) -> None:
        make = node_class(solution)
        self.values = list(values)
        self.all: list[Any] = []
        following = None
        for value in reversed(self.values):
            following = make(value, following)
            self.all.append(following)
        self.all.reverse()
        self.argument = Given(following, code(values))


def code(values: Sequence[Any]) -> str:
    """Python that builds the list."""
    if len(values) > LONGEST_SHOWN:
        # Not nested: Python's parser refuses brackets that are hundreds deep.
        return f"functools.reduce(lambda rest, val: ListNode(val, rest), {values!r}[::-1], None)"
    text = ""
    for value in reversed(values):
        text = f"ListNode({value!r}, {text})" if text else f"ListNode({value!r})"
    return text or "None"


def arrows(values: Iterable[Any], total: int, ending: str = "None") -> str:
    texts = [paste(value) for value, _ in zip(values, range(LONGEST_SHOWN + 2), strict=False)]
    if total > len(texts):
        texts += [f"... ({total} nodes)"]
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


def expect_order(call: Call, nodes: Nodes, order: Sequence[int]) -> None:
    """The result is made of the given nodes in this order, each with the value it had."""
    count = len(order)
    got = list(follow(call, count + 1))
    wanted = arrows((nodes.values[index] for index in order), count)
    shown_got = arrows((node.val for node in got), len(got))
    if len(got) > count:
        if len({id(node) for node in got}) < len(got):
            text = arrows((node.val for node in got), len(got), "...")
            call.fail(wanted, text, "the list never ends: a node comes again")
        call.fail(wanted, shown_got)
    if len(got) < count or any(
        node.val is not nodes.values[index] for node, index in zip(got, order, strict=True)
    ):
        call.fail(wanted, shown_got)
    for place, (node, index) in enumerate(zip(got, order, strict=True)):
        if node is not nodes.all[index]:
            is_new = all(node is not one for one in nodes.all)
            what = "a new node" if is_new else "another of the given nodes, its value changed"
            call.fail(
                f"{wanted}, made of the given nodes",
                f"these values, but place {place} holds {what}",
                "relink the nodes: copy none, and move no values",
            )


def in_groups(count: int, k: int) -> list[int]:
    """Indices 0 to count-1, each whole group of k of them backwards."""
    whole = count - count % k
    backwards = [start + k - 1 - i for start in range(0, whole, k) for i in range(k)]
    return [*backwards, *range(whole, count)]


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


def check_reversed(solution: Solution, values: Sequence[Any]) -> None:
    nodes = Nodes(solution, values)
    call = solution.call("reverse_list", nodes.argument)
    expect_order(call, nodes, range(len(values))[::-1])


def check_groups(solution: Solution, values: Sequence[Any], k: int) -> None:
    nodes = Nodes(solution, values)
    call = solution.call("reverse_k_group", nodes.argument, k)
    expect_order(call, nodes, in_groups(len(values), k))


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


def check_cost(solution: Solution, name: str, *rest: int) -> None:
    """Steps on 500 nodes, depth of calls on 300, and memory on 20,000."""
    argument = Nodes(solution, range(500)).argument
    with solution.counting_lines() as lines:
        call = solution.call(name, argument, *rest)
    solution.within("executed lines for 500 nodes", lines.count, 40 * 500, call)
    argument = Nodes(solution, range(300)).argument
    with counting_depth() as deepest:
        call = solution.call(name, argument, *rest)
    solution.within("nested calls for 300 nodes", deepest.count, 60, call)
    argument = Nodes(solution, range(20_000)).argument
    with solution.peak_memory() as peak:
        call = solution.call(name, argument, *rest)
    solution.within("bytes of extra memory for 20,000 nodes", peak.bytes, 32 << 10, call)


@states("the empty list stays empty", "空链表反转后仍为空")
def test_empty(solution: Solution) -> None:
    check_reversed(solution, [])


@states("one node is its own reverse", "只有一个节点时保持不变")
def test_one_node(solution: Solution) -> None:
    check_own_nodes(solution)
    check_reversed(solution, [7])


@states("two nodes change places, and the list ends after them", "两个节点互换，且链表正确结束")
def test_two_nodes(solution: Solution) -> None:
    check_reversed(solution, [1, 2])


@states("the nodes come back in the opposite order", "节点按相反的顺序返回")
@pytest.mark.parametrize("count", [3, 4, 5])
def test_few_nodes(solution: Solution, count: int) -> None:
    check_reversed(solution, range(1, count + 1))


@states("falsy and repeated values are values like others", "值为假或重复时与其他值一样处理")
@pytest.mark.parametrize("values", [[0, 1], [None, 0], ["", "", 0], [2, 2, 1, 2], [False, None, 0]])
def test_any_values(solution: Solution, values: list[Any]) -> None:
    check_reversed(solution, values)


@states("any list comes back node by node in the opposite order", "任意链表都逐节点反序返回")
@given(values=VALUES)
def test_any_list(solution: Solution, values: list[Any]) -> None:
    check_reversed(solution, values)


@states("reversing twice gives the list as it was", "反转两次得到原来的链表")
@given(values=VALUES)
def test_twice(solution: Solution, values: list[Any]) -> None:
    nodes = Nodes(solution, values)
    once = solution.call("reverse_list", nodes.argument)
    head = Given(once.value, f"reverse_list({nodes.argument.text})")
    expect_order(solution.call("reverse_list", head), nodes, range(len(values)))


@states(
    "each node costs a bounded number of steps, and none costs memory or a nested call",
    "每个节点只用常数步，且不额外占用内存或调用栈",
)
def test_cost(solution: Solution) -> None:
    check_cost(solution, "reverse_list")


@states("100,000 nodes are reversed like three", "10 万个节点也能正确反转")
def test_long_list(solution: Solution) -> None:
    check_reversed(solution, range(100_000))


@follow_up("reverse_k_group")
@states(
    "follow-up: whole groups are reversed, the rest keeps its order",
    "进阶：整组反转，余下的保持原序",
)
@pytest.mark.parametrize(
    ("count", "k"), [(0, 1), (0, 3), (1, 1), (1, 2), (3, 1), (2, 2), (3, 2), (4, 2), (5, 3), (2, 5)]
)
def test_few_groups(solution: Solution, count: int, k: int) -> None:
    check_groups(solution, range(1, count + 1), k)


@follow_up("reverse_k_group")
@states("follow-up: a group size below 1 raises ValueError", "进阶：k 小于 1 时抛出 ValueError")
@pytest.mark.parametrize("k", [0, -1, -2])
def test_group_size_is_checked(solution: Solution, k: int) -> None:
    nodes = Nodes(solution, [1, 2, 3])
    solution.call("reverse_k_group", nodes.argument, k).raises(ValueError)


@follow_up("reverse_k_group")
@states("follow-up: any list in groups of any size", "进阶：任意链表、任意 k")
@given(values=VALUES, k=st.integers(1, 9))
def test_any_groups(solution: Solution, values: list[Any], k: int) -> None:
    check_groups(solution, values, k)


@follow_up("reverse_k_group")
@states(
    "follow-up: groups cost no memory or nested calls either",
    "进阶：分组反转同样不额外占用内存或调用栈",
)
@pytest.mark.parametrize("k", [1, 2, 250, 20_000])
def test_cost_of_groups(solution: Solution, k: int) -> None:
    check_cost(solution, "reverse_k_group", k)


@follow_up("reverse_k_group")
@states("follow-up: 100,000 nodes in groups", "进阶：10 万个节点分组反转")
@pytest.mark.parametrize("k", [2, 7, 100_000])
def test_long_groups(solution: Solution, k: int) -> None:
    check_groups(solution, range(100_000), k)
