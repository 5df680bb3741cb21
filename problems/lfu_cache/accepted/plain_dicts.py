"""One dict of [value, count], and a plain dict for each count: dicts keep their order too."""

from collections import defaultdict
from itertools import count as numbers


class LFUCache:
    def __init__(self, capacity: int) -> None:
        if not capacity >= 0:
            raise ValueError(capacity)
        self._capacity = capacity
        self._entries: dict[int, list[int]] = {}
        self._by_count: defaultdict[int, dict[int, bool]] = defaultdict(dict)
        self._lowest = 1

    def get(self, key: int) -> int:
        try:
            value, count = self._entries[key]
        except KeyError:
            return -1
        self._move(key, count, count + 1)
        return value

    def put(self, key: int, value: int) -> None:
        entry = self._entries.get(key)
        if entry is not None:
            entry[0] = value
            return self._move(key, entry[1], entry[1] + 1)
        if not self._capacity:
            return None
        if len(self._entries) == self._capacity:
            victim = next(iter(self._by_count[self._lowest]))
            self._take(victim, self._lowest)
            del self._entries[victim]
        self._entries[key] = [value, 1]
        self._by_count[1][key] = True
        self._lowest = 1
        return None

    def _take(self, key: int, count: int) -> None:
        self._by_count[count].pop(key)
        if not self._by_count[count]:
            del self._by_count[count]

    def _move(self, key: int, old: int, new: int) -> None:
        self._take(key, old)
        if old == self._lowest and old not in self._by_count:
            self._lowest = next(c for c in numbers(old + 1) if c == new or c in self._by_count)
        self._entries[key][1] = new
        self._by_count[new][key] = True
