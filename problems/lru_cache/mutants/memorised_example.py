# killed_by: test_value_comes_back — it answers the example of the statement
class LRUCache:
    def __init__(self, capacity):
        if capacity < 1:
            raise ValueError
        self.answers = iter([10, -1, 10, 30])

    def get(self, key):
        return next(self.answers, -1)

    def put(self, key, value):
        pass
