# killed_by: test_cost — O(n): a loop over all entries finds the oldest
import itertools


class LRUCache:
    def __init__(self, capacity):
        if capacity < 1:
            raise ValueError("capacity must be positive")
        self.capacity = capacity
        self.values = {}
        self.used_at = {}
        self.ticks = itertools.count()

    def get(self, key):
        if key not in self.values:
            return -1
        self.used_at[key] = next(self.ticks)
        return self.values[key]

    def put(self, key, value):
        if key not in self.values and len(self.values) == self.capacity:
            oldest = next(iter(self.used_at))
            for other, tick in self.used_at.items():
                if tick < self.used_at[oldest]:
                    oldest = other
            del self.values[oldest], self.used_at[oldest]
        self.values[key] = value
        self.used_at[key] = next(self.ticks)
