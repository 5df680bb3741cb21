# killed_by: test_scripts — a miss is counted, and favours the key once it is stored
from collections import Counter


class LFUCache:
    def __init__(self, capacity: int) -> None:
        if capacity < 0:
            raise ValueError("capacity must not be negative")
        self.capacity = capacity
        self.time = 0
        self.values: dict[int, int] = {}
        self.counts: Counter[int] = Counter()
        self.used_at: dict[int, int] = {}

    def get(self, key: int) -> int:
        self._use(key)
        if key not in self.values:
            return -1
        return self.values[key]

    def put(self, key: int, value: int) -> None:
        if self.capacity == 0:
            return
        if key not in self.values and len(self.values) == self.capacity:
            victim = min(self.values, key=lambda k: (self.counts[k], self.used_at[k]))
            del self.values[victim], self.counts[victim], self.used_at[victim]
        self.values[key] = value
        self._use(key)

    def _use(self, key: int) -> None:
        self.time += 1
        self.counts[key] += 1
        self.used_at[key] = self.time
