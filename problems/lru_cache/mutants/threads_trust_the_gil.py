# killed_by: test_interrupted_anywhere — several steps of an OrderedDict are not one, GIL or not
from collections import OrderedDict


class LRUCache:
    def __init__(self, capacity):
        if capacity < 1:
            raise ValueError("capacity must be positive")
        self.capacity = capacity
        self.data = OrderedDict()

    def get(self, key):
        value = self.data.pop(key, -1)
        if value != -1:
            self.data[key] = value
        return value

    def put(self, key, value):
        self.data.pop(key, None)
        self.data[key] = value
        if len(self.data) > self.capacity:
            self.data.popitem(last=False)


class ThreadSafeLRUCache(LRUCache):
    """Each method of OrderedDict is atomic."""
