# killed_by: test_evicts_the_oldest — it makes room one entry early
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
        elif self.data and len(self.data) >= self.capacity - 1:
            self.data.popitem(last=False)
        self.data[key] = value
