"""A subclass of OrderedDict; expiry by a heap with stale entries, O(log n); a lock decorator."""

import functools
import heapq
import itertools
import threading
from collections import OrderedDict


class LRUCache(OrderedDict):
    def __init__(self, capacity: int):
        if capacity < 1:
            raise ValueError(f"bad capacity: {capacity}")
        super().__init__()
        self.capacity = capacity

    def get(self, key):
        if key in self:
            self.move_to_end(key)
            return self[key]
        return -1

    def put(self, key, value) -> None:
        self[key] = value
        self.move_to_end(key)
        while len(self) > self.capacity:
            self.popitem(last=False)


class TTLLRUCache:
    def __init__(self, capacity, ttl_s, clock):
        if ttl_s <= 0:
            raise ValueError("ttl_s")
        self.cache = LRUCache(capacity)
        self.ttl_s = ttl_s
        self.clock = clock
        self.heap = []
        self.serial = itertools.count()

    def expire(self):
        now = self.clock()
        while self.heap and self.heap[0][0] <= now:
            _, serial, key = heapq.heappop(self.heap)
            if key in self.cache and self.cache[key][0] == serial:
                del self.cache[key]
        return now

    def get(self, key):
        self.expire()
        entry = self.cache.get(key)
        return -1 if entry == -1 else entry[1]

    def put(self, key, value):
        deadline = self.expire() + self.ttl_s
        serial = next(self.serial)
        self.cache.put(key, (serial, value))
        heapq.heappush(self.heap, (deadline, serial, key))


def locked(method):
    @functools.wraps(method)
    def call(self, *args):
        self.mutex.acquire()
        try:
            return method(self, *args)
        finally:
            self.mutex.release()

    return call


class ThreadSafeLRUCache:
    def __init__(self, capacity):
        self.mutex = threading.RLock()
        self.inner = LRUCache(capacity)

    @locked
    def get(self, key):
        return self.inner.get(key)

    @locked
    def put(self, key, value):
        return self.inner.put(key, value)
