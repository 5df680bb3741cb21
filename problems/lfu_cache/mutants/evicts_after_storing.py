# killed_by: test_scripts — the new key has the least count, so it evicts itself
class LFUCache:
    def __init__(self, capacity: int) -> None:
        if capacity < 0:
            raise ValueError("capacity must not be negative")
        self.capacity = capacity
        self.time = 0
        self.values: dict[int, int] = {}
        self.counts: dict[int, int] = {}
        self.used_at: dict[int, int] = {}

    def get(self, key: int) -> int:
        if key not in self.values:
            return -1
        self._use(key)
        return self.values[key]

    def put(self, key: int, value: int) -> None:
        if self.capacity == 0:
            return
        self.values[key] = value
        self._use(key)
        if len(self.values) > self.capacity:
            victim = min(self.values, key=lambda k: (self.counts[k], self.used_at[k]))
            del self.values[victim], self.counts[victim], self.used_at[victim]

    def _use(self, key: int) -> None:
        self.time += 1
        self.counts[key] = self.counts.get(key, 0) + 1
        self.used_at[key] = self.time
