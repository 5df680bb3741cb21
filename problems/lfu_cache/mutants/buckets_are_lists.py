# killed_by: test_work — list.remove compares key after key
from collections import defaultdict


class LFUCache:
    def __init__(self, capacity: int) -> None:
        if capacity < 0:
            raise ValueError("capacity must not be negative")
        self.capacity = capacity
        self.values: dict[int, int] = {}
        self.counts: dict[int, int] = {}
        self.buckets: defaultdict[int, list[int]] = defaultdict(list)
        self.least = 0

    def get(self, key: int) -> int:
        if key not in self.values:
            return -1
        self._use(key)
        return self.values[key]

    def put(self, key: int, value: int) -> None:
        if self.capacity == 0:
            return
        if key in self.values:
            self.values[key] = value
            self._use(key)
            return
        if len(self.values) >= self.capacity:
            self._evict()
        self.values[key] = value
        self.counts[key] = 1
        self.buckets[1].append(key)
        self.least = 1

    def _use(self, key: int) -> None:
        count = self.counts[key]
        self.counts[key] = count + 1
        self.buckets[count].remove(key)
        if not self.buckets[count]:
            del self.buckets[count]
            if self.least == count:
                self.least = count + 1
        self.buckets[count + 1].append(key)

    def _evict(self) -> None:
        victim = self.buckets[self.least].pop(0)
        if not self.buckets[self.least]:
            del self.buckets[self.least]
        del self.values[victim]
        del self.counts[victim]
