"""OrderedDict: the standard library's hash map with a linked list inside. O(1) a call.

`move_to_end` and `popitem(last=False)` are all that is needed. An interviewer takes it as the
first answer and then asks for the list by hand. The expiry follow-up keeps a second OrderedDict
for the order of the puts.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable


class LRUCache:
    def __init__(self, capacity: int) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        self._capacity = capacity
        self._values: OrderedDict[Hashable, int] = OrderedDict()

    def get(self, key: Hashable) -> int:
        if key not in self._values:
            return -1
        self._values.move_to_end(key)
        return self._values[key]

    def put(self, key: Hashable, value: int) -> None:
        self._values[key] = value
        self._values.move_to_end(key)
        if len(self._values) > self._capacity:
            self._values.popitem(last=False)


class TTLLRUCache:
    def __init__(self, capacity: int, ttl_s: float, clock: Callable[[], float]) -> None:
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        if ttl_s <= 0:
            raise ValueError(f"ttl_s must be above 0, not {ttl_s}")
        self._capacity = capacity
        self._ttl_s = ttl_s
        self._clock = clock
        self._values: OrderedDict[Hashable, int] = OrderedDict()  # by last use
        self._expiry: OrderedDict[Hashable, float] = OrderedDict()  # by last put

    def get(self, key: Hashable) -> int:
        self._drop_expired()
        if key not in self._values:
            return -1
        self._values.move_to_end(key)
        return self._values[key]

    def put(self, key: Hashable, value: int) -> None:
        self._drop_expired()
        if key not in self._values and len(self._values) == self._capacity:
            oldest, _ = self._values.popitem(last=False)
            del self._expiry[oldest]
        for order, stored in ((self._values, value), (self._expiry, self._clock() + self._ttl_s)):
            order[key] = stored
            order.move_to_end(key)

    def _drop_expired(self) -> None:
        now = self._clock()
        while self._expiry:
            key = next(iter(self._expiry))
            if self._expiry[key] > now:
                break
            del self._expiry[key]
            del self._values[key]


class ThreadSafeLRUCache(LRUCache):
    def __init__(self, capacity: int) -> None:
        super().__init__(capacity)
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> int:
        with self._lock:
            return super().get(key)

    def put(self, key: Hashable, value: int) -> None:
        with self._lock:
            super().put(key, value)
