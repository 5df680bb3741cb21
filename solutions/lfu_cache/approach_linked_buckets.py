"""A linked list of buckets in the order of their counts (Shah, Mitra and Matani): O(1) per call,
O(capacity) space. The head of the list is the smallest count, so no smallest count is kept.

Aging merges neighbouring buckets by the time of the last use: O(size) once per half-life.
"""

from __future__ import annotations

from collections.abc import Iterator
from heapq import merge
from itertools import groupby
from operator import attrgetter, itemgetter


class Entry:
    """A stored key, and its neighbours in the order of use inside its bucket."""

    bucket: Bucket
    older: Entry | None
    newer: Entry | None

    def __init__(self, key: int, value: int, used_at: int) -> None:
        self.key = key
        self.value = value
        self.used_at = used_at


class Bucket:
    """The entries of one count; `oldest` and `newest` are the ends of their list."""

    def __init__(self, count: int, lower: Bucket | None, higher: Bucket | None) -> None:
        self.count = count
        self.oldest: Entry | None = None
        self.newest: Entry | None = None
        self.lower = lower
        self.higher = higher

    def append(self, entry: Entry) -> None:
        entry.bucket, entry.older, entry.newer = self, self.newest, None
        if self.newest is None:
            self.oldest = entry
        else:
            self.newest.newer = entry
        self.newest = entry

    def remove(self, entry: Entry) -> None:
        if entry.older is None:
            self.oldest = entry.newer
        else:
            entry.older.newer = entry.newer
        if entry.newer is None:
            self.newest = entry.older
        else:
            entry.newer.older = entry.older

    def __iter__(self) -> Iterator[Entry]:
        entry = self.oldest
        while entry is not None:
            yield entry
            entry = entry.newer


class LFUCache:
    def __init__(self, capacity: int) -> None:
        if capacity < 0:
            raise ValueError(f"capacity must not be negative, not {capacity}")
        self.capacity = capacity
        self.entries: dict[int, Entry] = {}
        self.lowest: Bucket | None = None
        self.time = 0

    def get(self, key: int) -> int:
        self.time += 1
        entry = self.entries.get(key)
        if entry is None:
            return -1
        self._use(entry)
        return entry.value

    def put(self, key: int, value: int) -> None:
        self.time += 1
        if self.capacity == 0:
            return
        entry = self.entries.get(key)
        if entry is not None:
            entry.value = value
            self._use(entry)
            return
        if len(self.entries) == self.capacity:
            self._evict()
        self.entries[key] = entry = Entry(key, value, self.time)
        below = self.lowest if self.lowest is not None and self.lowest.count < 1 else None
        self._bucket_above(below, 1).append(entry)

    def _use(self, entry: Entry) -> None:
        entry.used_at = self.time
        bucket = entry.bucket
        target = self._bucket_above(bucket, bucket.count + 1)
        bucket.remove(entry)
        self._unlink_if_empty(bucket)
        target.append(entry)

    def _evict(self) -> None:
        bucket = self.lowest
        assert bucket is not None
        victim = bucket.oldest
        assert victim is not None
        bucket.remove(victim)
        self._unlink_if_empty(bucket)
        del self.entries[victim.key]

    def _bucket_above(self, bucket: Bucket | None, count: int) -> Bucket:
        """The bucket of `count`, which belongs right above `bucket`, or lowest if that is None."""
        higher = self.lowest if bucket is None else bucket.higher
        if higher is not None and higher.count == count:
            return higher
        made = Bucket(count, lower=bucket, higher=higher)
        if bucket is None:
            self.lowest = made
        else:
            bucket.higher = made
        if higher is not None:
            higher.lower = made
        return made

    def _unlink_if_empty(self, bucket: Bucket) -> None:
        if bucket.oldest is not None:
            return
        if bucket.lower is None:
            self.lowest = bucket.higher
        else:
            bucket.lower.higher = bucket.higher
        if bucket.higher is not None:
            bucket.higher.lower = bucket.lower


class AgingLFUCache(LFUCache):
    def __init__(self, capacity: int, half_life: int) -> None:
        super().__init__(capacity)
        if half_life < 1:
            raise ValueError(f"half_life must be at least 1, not {half_life}")
        self.half_life = half_life

    def get(self, key: int) -> int:
        value = super().get(key)
        self._age()
        return value

    def put(self, key: int, value: int) -> None:
        super().put(key, value)
        self._age()

    def _age(self) -> None:
        if self.time % self.half_life:
            return
        halved = [(bucket.count // 2, list(bucket)) for bucket in self._buckets()]
        self.lowest = last = None
        for count, pair in groupby(halved, key=itemgetter(0)):
            last = self._bucket_above(last, count)
            for entry in merge(*(entries for _, entries in pair), key=attrgetter("used_at")):
                last.append(entry)

    def _buckets(self) -> Iterator[Bucket]:
        bucket = self.lowest
        while bucket is not None:
            yield bucket
            bucket = bucket.higher
