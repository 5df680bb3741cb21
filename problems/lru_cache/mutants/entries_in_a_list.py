# killed_by: test_cost — O(n): every look-up walks the list of entries
class LRUCache:
    def __init__(self, capacity):
        if capacity < 1:
            raise ValueError("capacity must be positive")
        self.capacity = capacity
        self.entries = []

    def get(self, key):
        for index, (other, value) in enumerate(self.entries):
            if other == key:
                self.entries.append(self.entries.pop(index))
                return value
        return -1

    def put(self, key, value):
        if self.get(key) != -1:
            self.entries.pop()
        elif len(self.entries) == self.capacity:
            self.entries.pop(0)
        self.entries.append((key, value))
