"""Hash map and doubly linked list: O(1) time a call, O(capacity) memory.

The map finds the node of a key, the list keeps the nodes in the order of use. Either alone is
not enough: a map has no order that can be changed in O(1), a list has no look-up.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable


class _Node:
    """An entry. It knows its key, so that the map's entry can go when the node is evicted."""

    __slots__ = ("key", "newer", "older", "value")

    def __init__(self, key: Hashable = None, value: int = 0) -> None:
        self.key = key
        self.value = value
        self.older = self.newer = self


class _ExpiringNode(_Node):
    __slots__ = ("expires",)

    def __init__(self, key: Hashable, value: int, expires: float) -> None:
        super().__init__(key, value)
        self.expires = expires


class _UseOrder:
    """A ring of nodes around a sentinel, which spares every case of an empty side."""

    def __init__(self) -> None:
        self._sentinel = _Node()

    @property
    def oldest(self) -> _Node:
        return self._sentinel.newer

    def append(self, node: _Node) -> None:
        last = self._sentinel.older
        node.older, node.newer = last, self._sentinel
        last.newer = self._sentinel.older = node

    def remove(self, node: _Node) -> None:
        node.older.newer, node.newer.older = node.newer, node.older


class LRUCache:
    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        self._capacity = capacity
        self._nodes: dict[Hashable, _Node] = {}
        self._order = _UseOrder()

    def get(self, key: Hashable) -> int:
        node = self._nodes.get(key)
        if node is None:
            return -1
        self._order.remove(node)
        self._order.append(node)
        return node.value

    def put(self, key: Hashable, value: int) -> None:
        node = self._nodes.get(key)
        if node is not None:
            self._order.remove(node)
        else:
            if len(self._nodes) == self._capacity:
                oldest = self._order.oldest
                self._order.remove(oldest)
                del self._nodes[oldest.key]
            node = self._nodes[key] = _Node(key)
        node.value = value
        self._order.append(node)


class TTLLRUCache:
    """Every entry lives equally long, so the order of expiry is the order of the puts, and only
    the front of that order can have expired. Amortised O(1): an entry expires once."""

    def __init__(self, capacity: int, ttl_s: float, clock: Callable[[], float]) -> None:
        if not ttl_s > 0:
            raise ValueError(f"ttl_s must be above 0, not {ttl_s}")
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        self._capacity = capacity
        self._ttl_s = ttl_s
        self._clock = clock
        # In the order of the puts. A plain dict keeps that order too, but it leaves a hole for each
        # entry deleted, and to find its first one it must step over all holes in front.
        self._nodes: OrderedDict[Hashable, _ExpiringNode] = OrderedDict()
        self._order = _UseOrder()

    def get(self, key: Hashable) -> int:
        self._drop_expired(self._clock())
        node = self._nodes.get(key)
        if node is None:
            return -1
        self._order.remove(node)
        self._order.append(node)
        return node.value

    def put(self, key: Hashable, value: int) -> None:
        now = self._clock()
        self._drop_expired(now)
        if key in self._nodes:
            self._drop(self._nodes[key])
        elif len(self._nodes) == self._capacity:
            self._drop(self._order.oldest)
        node = self._nodes[key] = _ExpiringNode(key, value, now + self._ttl_s)
        self._order.append(node)

    def _drop(self, node: _Node) -> None:
        self._order.remove(node)
        del self._nodes[node.key]

    def _drop_expired(self, now: float) -> None:
        while self._nodes:
            first = next(iter(self._nodes.values()))
            if now < first.expires:
                return
            self._drop(first)


class ThreadSafeLRUCache:
    """One lock for all: a `get` moves its node, so readers change the list as writers do, and a
    lock for readers and writers would gain nothing."""

    def __init__(self, capacity: int) -> None:
        self._cache = LRUCache(capacity)
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> int:
        with self._lock:
            return self._cache.get(key)

    def put(self, key: Hashable, value: int) -> None:
        with self._lock:
            self._cache.put(key, value)
