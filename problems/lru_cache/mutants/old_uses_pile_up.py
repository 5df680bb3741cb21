# killed_by: test_memory — each use is appended and old ones stay: memory grows with the calls
from collections import Counter, deque


class LRUCache:
    def __init__(self, capacity):
        if capacity < 1:
            raise ValueError("capacity must be positive")
        self.capacity = capacity
        self.values = {}
        self.uses = deque()
        self.pending = Counter()

    def _use(self, key):
        self.uses.append(key)
        self.pending[key] += 1

    def get(self, key):
        if key not in self.values:
            return -1
        self._use(key)
        return self.values[key]

    def put(self, key, value):
        if key not in self.values and len(self.values) == self.capacity:
            while True:
                oldest = self.uses.popleft()
                self.pending[oldest] -= 1
                if not self.pending[oldest]:
                    break
            del self.values[oldest], self.pending[oldest]
        self.values[key] = value
        self._use(key)
