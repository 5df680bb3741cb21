"""Buckets of keys by count, each in the order of use: O(1) per call, O(capacity) space.

Aging adds O(size) once per half-life: O(1 + capacity / half_life) per call on average.
"""

from collections import OrderedDict


class LFUCache:
    def __init__(self, capacity: int) -> None:
        if capacity < 0:
            raise ValueError(f"capacity must not be negative, not {capacity}")
        self.capacity = capacity
        self.values: dict[int, int] = {}
        self.counts: dict[int, int] = {}
        self.buckets: dict[int, OrderedDict[int, None]] = {}  # count -> keys, oldest use first
        self.least = 0  # the smallest count that has a bucket

    def get(self, key: int) -> int:
        if key not in self.values:
            return -1
        self._use(key)
        return self.values[key]

    def put(self, key: int, value: int) -> None:
        if key in self.values:
            self._use(key)
            self.values[key] = value
        elif self.capacity > 0:
            if len(self.values) == self.capacity:
                self._evict()
            self.values[key] = value
            self.counts[key] = self.least = 1
            self.buckets.setdefault(1, OrderedDict())[key] = None

    def _use(self, key: int) -> None:
        count = self.counts[key]
        self._remove(key, count)
        if self.least == count and count not in self.buckets:
            self.least += 1  # which is where the key goes
        self.counts[key] = count + 1
        self.buckets.setdefault(count + 1, OrderedDict())[key] = None

    def _evict(self) -> None:
        key = next(iter(self.buckets[self.least]))
        self._remove(key, self.least)
        del self.values[key], self.counts[key]

    def _remove(self, key: int, count: int) -> None:
        bucket = self.buckets[count]
        del bucket[key]
        if not bucket:
            del self.buckets[count]  # else one empty bucket stays for each count ever reached


class AgingLFUCache:
    """Entries in the order of use, so that one walk over them fills all buckets anew in the
    right order: keys whose counts were 2c and 2c + 1 mix by recency, not bucket after bucket."""

    def __init__(self, capacity: int, half_life: int) -> None:
        if capacity < 0:
            raise ValueError(f"capacity must not be negative, not {capacity}")
        if half_life < 1:
            raise ValueError(f"half_life must be at least 1, not {half_life}")
        self.capacity = capacity
        self.half_life = half_life
        self.until_halving = half_life
        self.entries: OrderedDict[int, tuple[int, int]] = OrderedDict()  # key -> value, count
        self.buckets: dict[int, OrderedDict[int, None]] = {}
        self.least = 0

    def get(self, key: int) -> int:
        value = -1
        if key in self.entries:
            value, count = self.entries[key]
            self._use(key, value, count)
        self._tick()
        return value

    def put(self, key: int, value: int) -> None:
        if key in self.entries:
            self._use(key, value, self.entries[key][1])
        elif self.capacity > 0:
            if len(self.entries) == self.capacity:
                self._evict()
            self._store(key, value, 1)
            self.least = 0 if 0 in self.buckets else 1  # halving leaves counts below a new key's
        self._tick()

    def _use(self, key: int, value: int, count: int) -> None:
        self._remove(key, count)
        if self.least == count and count not in self.buckets:
            self.least += 1
        self._store(key, value, count + 1)

    def _evict(self) -> None:
        key = next(iter(self.buckets[self.least]))
        self._remove(key, self.least)
        del self.entries[key]

    def _store(self, key: int, value: int, count: int) -> None:
        self.entries[key] = value, count
        self.entries.move_to_end(key)
        self.buckets.setdefault(count, OrderedDict())[key] = None

    def _remove(self, key: int, count: int) -> None:
        bucket = self.buckets[count]
        del bucket[key]
        if not bucket:
            del self.buckets[count]

    def _tick(self) -> None:
        self.until_halving -= 1
        if self.until_halving:
            return
        self.until_halving = self.half_life
        self.buckets = {}
        for key, (value, count) in self.entries.items():
            self.entries[key] = value, count // 2  # a stored key keeps its place
            self.buckets.setdefault(count // 2, OrderedDict())[key] = None
        self.least = min(self.buckets, default=0)
