"""Arrays of links: the list's nodes are numbers, `older` and `newer` are arrays. O(1) a call.

This is how it is done where an object per entry costs too much: in C, in a database's page
cache, or over the fixed blocks of a KV cache. All memory is taken at the start.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable


class LRUCache:
    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        self._slot_of: dict[Hashable, int] = {}
        self._keys: list[Hashable] = [None] * capacity
        self._values: list[int | None] = [None] * capacity
        # Slot `capacity` is the sentinel: newer[capacity] is the slot used longest ago. All slots
        # are in the ring from the start; those without an entry come first.
        ring = capacity + 1
        self._newer = [(slot + 1) % ring for slot in range(ring)]
        self._older = [(slot - 1) % ring for slot in range(ring)]

    def get(self, key: Hashable) -> int:
        slot = self._slot_of.get(key)
        if slot is None:
            return -1
        self._use(slot)
        return self._values[slot]

    def put(self, key: Hashable, value: int) -> None:
        slot = self._slot_of.get(key)
        if slot is None:
            slot = self._newer[-1]
            if len(self._slot_of) == len(self._keys):
                del self._slot_of[self._keys[slot]]
            self._slot_of[key] = slot
            self._keys[slot] = key
        self._values[slot] = value
        self._use(slot)

    def _use(self, slot: int) -> None:
        older, newer = self._older, self._newer
        newer[older[slot]], older[newer[slot]] = newer[slot], older[slot]
        sentinel = len(newer) - 1
        older[slot], newer[slot] = older[sentinel], sentinel
        newer[older[sentinel]] = slot
        older[sentinel] = slot


class TTLLRUCache:
    """No slots here: entries come and go at both ends, so two ordered maps serve. Taking a key
    out and putting it in again moves it to the end."""

    def __init__(self, capacity: int, ttl_s: float, clock: Callable[[], float]) -> None:
        if capacity < 1 or ttl_s <= 0:
            raise ValueError(f"capacity {capacity} or ttl_s {ttl_s} is too small")
        self._capacity = capacity
        self._ttl_s = ttl_s
        self._clock = clock
        self._values: OrderedDict[Hashable, int] = OrderedDict()  # by last use
        self._put_at: OrderedDict[Hashable, float] = OrderedDict()  # by last put

    def get(self, key: Hashable) -> int:
        self._drop_expired()
        value = self._values.pop(key, -1)
        if value != -1:
            self._values[key] = value
        return value

    def put(self, key: Hashable, value: int) -> None:
        now = self._drop_expired()
        if self._values.pop(key, None) is not None:
            del self._put_at[key]
        elif len(self._values) == self._capacity:
            oldest = next(iter(self._values))
            del self._values[oldest], self._put_at[oldest]
        self._values[key] = value
        self._put_at[key] = now

    def _drop_expired(self) -> float:
        now = self._clock()
        while self._put_at:
            key, put_at = next(iter(self._put_at.items()))
            if now - put_at < self._ttl_s:
                break
            del self._put_at[key], self._values[key]
        return now


class ThreadSafeLRUCache:
    def __init__(self, capacity: int) -> None:
        self._lock = threading.RLock()
        self._inner = LRUCache(capacity)

    def get(self, key: Hashable) -> int:
        with self._lock:
            return self._inner.get(key)

    def put(self, key: Hashable, value: int) -> None:
        with self._lock:
            self._inner.put(key, value)
