# killed_by: test_scripts — makes room before it looks whether the key is stored
from collections import OrderedDict


class LFUCache:
    def __init__(self, capacity: int) -> None:
        if capacity < 0:
            raise ValueError("capacity must not be negative")
        self.capacity = capacity
        self.values: dict[int, int] = {}
        self.counts: dict[int, int] = {}
        self.buckets: dict[int, OrderedDict[int, None]] = {}
        self.least = 0

    def get(self, key: int) -> int:
        if key not in self.values:
            return -1
        self._use(key)
        return self.values[key]

    def put(self, key: int, value: int) -> None:
        if self.capacity == 0:
            return
        if len(self.values) >= self.capacity:
            self._evict()
        if key in self.values:
            self.values[key] = value
            self._use(key)
            return
        self.values[key] = value
        self.counts[key] = 1
        self.buckets.setdefault(1, OrderedDict())[key] = None
        self.least = 1

    def _use(self, key: int) -> None:
        count = self.counts[key]
        self.counts[key] = count + 1
        del self.buckets[count][key]
        if not self.buckets[count]:
            del self.buckets[count]
            if self.least == count:
                self.least = count + 1
        self.buckets.setdefault(count + 1, OrderedDict())[key] = None

    def _evict(self) -> None:
        victim, _ = self.buckets[self.least].popitem(last=False)
        if not self.buckets[self.least]:
            del self.buckets[self.least]
        del self.values[victim]
        del self.counts[victim]
