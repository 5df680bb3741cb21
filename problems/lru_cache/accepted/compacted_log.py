"""Uses are logged and the log is compacted when it is twice too long: amortised O(1)."""

from collections import deque


class LRUCache:
    def __init__(self, capacity):
        if not capacity >= 1:
            raise ValueError("need room for one entry")
        self.capacity = capacity
        self.store = {}  # key -> [value, uses still in the log]
        self.log = deque()

    def touch(self, key):
        self.store[key][1] += 1
        self.log.append(key)
        if len(self.log) > 2 * self.capacity + 8:
            for _ in range(len(self.log)):
                key = self.log.popleft()
                entry = self.store[key]
                if entry[1] == 1:
                    self.log.append(key)
                else:
                    entry[1] -= 1

    def get(self, key):
        entry = self.store.get(key)
        if entry is None:
            return -1
        self.touch(key)
        return entry[0]

    def put(self, key, value):
        if key in self.store:
            self.store[key][0] = value
        else:
            if len(self.store) == self.capacity:
                while True:
                    oldest = self.log.popleft()
                    self.store[oldest][1] -= 1
                    if self.store[oldest][1] == 0:
                        del self.store[oldest]
                        break
            self.store[key] = [value, 0]
        self.touch(key)
