# killed_by: test_thread_safe_calls — put looks with get, and a plain lock keeps out its own owner
import threading
from collections import OrderedDict


class LRUCache:
    def __init__(self, capacity):
        if capacity < 1:
            raise ValueError("capacity must be positive")
        self.capacity = capacity
        self.data = OrderedDict()

    def get(self, key):
        if key not in self.data:
            return -1
        self.data.move_to_end(key)
        return self.data[key]

    def put(self, key, value):
        if key in self.data:
            self.data.move_to_end(key)
        elif len(self.data) >= self.capacity:
            self.data.popitem(last=False)
        self.data[key] = value


class ThreadSafeLRUCache:
    def __init__(self, capacity):
        self.lock = threading.Lock()
        self.cache = LRUCache(capacity)

    def get(self, key):
        with self.lock:
            return self.cache.get(key)

    def put(self, key, value):
        with self.lock:
            self.get(key)  # a use, whether it is there or not
            self.cache.put(key, value)
