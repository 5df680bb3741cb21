"""Threads: a busy flag under a condition; the cache itself is used outside the lock."""

import threading
from collections import OrderedDict
from contextlib import contextmanager


class LRUCache:
    def __init__(self, capacity):
        if capacity < 1:
            raise ValueError("capacity < 1")
        self.capacity = capacity
        self.items = OrderedDict()

    def get(self, key):
        value = self.items.pop(key, -1)
        if value >= 0:
            self.items[key] = value
        return value

    def put(self, key, value):
        self.items.pop(key, None)
        if len(self.items) == self.capacity:
            del self.items[next(iter(self.items))]
        self.items[key] = value


class ThreadSafeLRUCache:
    def __init__(self, capacity):
        self._cache = LRUCache(capacity)
        self._free = threading.Condition()
        self._busy = False

    @contextmanager
    def _alone(self):
        with self._free:
            self._free.wait_for(lambda: not self._busy)
            self._busy = True
        try:
            yield self._cache
        finally:
            with self._free:
                self._busy = False
                self._free.notify()

    def get(self, key):
        with self._alone() as cache:
            return cache.get(key)

    def put(self, key, value):
        with self._alone() as cache:
            cache.put(key, value)
