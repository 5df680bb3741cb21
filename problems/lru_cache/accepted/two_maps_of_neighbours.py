"""No node class: two maps hold the older and the newer key of each key."""

OLDEST, NEWEST = object(), object()


class LRUCache:
    def __init__(self, capacity: int) -> None:
        if capacity <= 0:
            raise ValueError(capacity)
        self.capacity = capacity
        self.values = {}
        self.newer = {OLDEST: NEWEST}
        self.older = {NEWEST: OLDEST}

    def _unlink(self, key):
        before, after = self.older.pop(key), self.newer.pop(key)
        self.newer[before] = after
        self.older[after] = before

    def _link_last(self, key):
        last = self.older[NEWEST]
        self.newer[last] = self.older[NEWEST] = key
        self.older[key], self.newer[key] = last, NEWEST

    def get(self, key):
        try:
            value = self.values[key]
        except KeyError:
            return -1
        self._unlink(key)
        self._link_last(key)
        return value

    def put(self, key, value):
        if self.get(key) == -1:
            if len(self.values) == self.capacity:
                oldest = self.newer[OLDEST]
                self._unlink(oldest)
                del self.values[oldest]
            self._link_last(key)
        self.values[key] = value
