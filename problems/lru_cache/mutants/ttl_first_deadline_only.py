# killed_by: test_renewal — an updated key keeps its place by put
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


class TTLLRUCache:
    def __init__(self, capacity, ttl_s, clock):
        if capacity < 1 or ttl_s <= 0:
            raise ValueError("capacity and ttl_s must be positive")
        self.capacity, self.ttl_s, self.clock = capacity, ttl_s, clock
        self.values = OrderedDict()  # by use
        self.deadlines = OrderedDict()  # by put

    def _purge(self):
        now = self.clock()
        while self.deadlines:
            key, deadline = next(iter(self.deadlines.items()))
            if now < deadline:
                break
            del self.deadlines[key]
            del self.values[key]

    def get(self, key):
        self._purge()
        if key not in self.values:
            return -1
        self.values.move_to_end(key)
        return self.values[key]

    def put(self, key, value):
        self._purge()
        if key in self.values:
            self.values.move_to_end(key)
        elif len(self.values) >= self.capacity:
            oldest, _ = self.values.popitem(last=False)
            del self.deadlines[oldest]
        self.values[key] = value
        self.deadlines[key] = self.clock() + self.ttl_s
