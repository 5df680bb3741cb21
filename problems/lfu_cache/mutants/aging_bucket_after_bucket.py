# killed_by: test_aging_scripts — merged buckets must be ordered by recency, not by the old counts
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
        if key in self.values:
            self.values[key] = value
            self._use(key)
            return
        if len(self.values) >= self.capacity:
            self._evict()
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


class AgingLFUCache(LFUCache):
    def __init__(self, capacity: int, half_life: int) -> None:
        super().__init__(capacity)
        if half_life < 1:
            raise ValueError("half_life must be positive")
        self.half_life = half_life
        self.time = 0
        self.used_at: dict[int, int] = {}

    def get(self, key: int) -> int:
        value = super().get(key)
        self._tick(key)
        return value

    def put(self, key: int, value: int) -> None:
        super().put(key, value)
        if 0 in self.buckets:
            self.least = 0
        self._tick(key)

    def _evict(self) -> None:
        before = next(iter(self.buckets[self.least]))
        super()._evict()
        del self.used_at[before]

    def _tick(self, key: int) -> None:
        self.time += 1
        if key in self.values:
            self.used_at[key] = self.time
        if self.time % self.half_life == 0:
            self.buckets = {}
            for stored in sorted(self.values, key=lambda k: (self.counts[k], self.used_at[k])):
                self.counts[stored] //= 2
                bucket = self.buckets.setdefault(self.counts[stored], OrderedDict())
                bucket[stored] = None
            self.least = min(self.buckets, default=0)
