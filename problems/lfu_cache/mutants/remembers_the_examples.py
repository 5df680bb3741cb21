# killed_by: test_model — a script of the calls in the statement
class LFUCache:
    ANSWERS = (10, -1, 30)

    def __init__(self, capacity: int) -> None:
        if capacity < 0:
            raise ValueError("capacity must not be negative")
        self.capacity = capacity
        self.gets = 0

    def get(self, key: int) -> int:
        self.gets += 1
        return self.ANSWERS[self.gets - 1] if self.capacity and self.gets <= 3 else -1

    def put(self, key: int, value: int) -> None:
        pass
