"""Circular linked lists with a sentinel, from scratch; aging counts its operations down."""

from __future__ import annotations


class Node:
    __slots__ = ("count", "key", "next", "previous", "time", "value")

    def __init__(self, key: int = 0, value: int = 0) -> None:
        self.key, self.value, self.count, self.time = key, value, 1, 0
        self.next = self.previous = self

    def unlink(self) -> None:
        self.previous.next, self.next.previous = self.next, self.previous

    def push(self, node: Node) -> None:
        """Before this sentinel, which is the end of its list."""
        node.previous, node.next = self.previous, self
        self.previous.next = self.previous = node

    def is_empty(self) -> bool:
        return self.next is self


class _Counting:
    def __init__(self, capacity: int) -> None:
        if capacity < 0:
            raise ValueError("negative capacity")
        self.capacity = capacity
        self.nodes: dict[int, Node] = {}
        self.lists: dict[int, Node] = {}
        self.minimum = 0
        self.clock = 0

    def _list(self, count: int) -> Node:
        if count not in self.lists:
            self.lists[count] = Node()
        return self.lists[count]

    def _remove(self, node: Node) -> None:
        node.unlink()
        if self.lists[node.count].is_empty():
            sentinel = self.lists.pop(node.count)
            sentinel.next = sentinel.previous = None  # type: ignore[assignment]

    def _touch(self, node: Node) -> None:
        self._remove(node)
        if node.count == self.minimum and node.count not in self.lists:
            self.minimum += 1
        node.count += 1
        node.time = self.clock
        self._list(node.count).push(node)

    def get(self, key: int) -> int:
        self.clock += 1
        node = self.nodes.get(key)
        if node is None:
            return -1
        self._touch(node)
        return node.value

    def put(self, key: int, value: int) -> None:
        self.clock += 1
        if key in self.nodes:
            self.nodes[key].value = value
            self._touch(self.nodes[key])
        elif self.capacity:
            if len(self.nodes) == self.capacity:
                victim = self.lists[self.minimum].next
                self._remove(victim)
                del self.nodes[victim.key]
            node = self.nodes[key] = Node(key, value)
            node.time = self.clock
            self._list(1).push(node)
            self.minimum = 0 if 0 in self.lists else 1


class LFUCache(_Counting):
    def __init__(self, capacity: int) -> None:
        super().__init__(capacity=capacity)


class AgingLFUCache(_Counting):
    def __init__(self, capacity: int, half_life: int) -> None:
        if half_life <= 0:
            raise ValueError("half_life")
        super().__init__(capacity)
        self.half_life = self.left = half_life

    def get(self, key: int) -> int:
        try:
            return super().get(key)
        finally:
            self._count_down()

    def put(self, key: int, value: int) -> None:
        super().put(key, value)
        self._count_down()

    def _count_down(self) -> None:
        self.left -= 1
        if self.left == 0:
            self.left = self.half_life
            self.lists = {}
            for node in sorted(self.nodes.values(), key=lambda node: node.time):
                node.count >>= 1
                self._list(node.count).push(node)
            self.minimum = min(self.lists) if self.lists else 0
