"""LFU cache. The statement is in README.md; run `infra-lab test lfu_cache` to grade."""


class LFUCache:
    """Holds at most `capacity` keys; a new key evicts the one that was used least often, and of
    several such the one whose last use is longest ago."""

    def __init__(self, capacity: int) -> None:
        """Raises ValueError for a negative capacity. A cache of capacity 0 stores nothing."""
        raise NotImplementedError

    def get(self, key: int) -> int:
        """The value of `key`, which counts as a use, or -1 if it is not stored."""
        raise NotImplementedError

    def put(self, key: int, value: int) -> None:
        """Stores the value. A stored key is updated, which counts as a use; a new key starts
        with one use, after an eviction if the cache is full."""
        raise NotImplementedError


class AgingLFUCache:
    """Follow-up: an LFU cache whose counts fade. After every `half_life`-th operation (each call
    of get or put is one, a miss too) every stored key's count is halved, rounding down."""

    def __init__(self, capacity: int, half_life: int) -> None:
        """Raises ValueError for a negative capacity or a half-life below 1."""
        raise NotImplementedError

    def get(self, key: int) -> int:
        raise NotImplementedError

    def put(self, key: int, value: int) -> None:
        raise NotImplementedError
