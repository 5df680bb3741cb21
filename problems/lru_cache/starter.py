"""LRU cache. The statement is in README.md; run `infra-lab test lru_cache` to grade."""

from __future__ import annotations

from collections.abc import Callable, Hashable


class LRUCache:
    """Keeps at most `capacity` entries; for a new key beyond that, the one used longest ago goes.

    Both `get` and `put` use a key. Every call takes O(1) time on average, and the cache O(capacity)
    memory. Raises ValueError for a capacity below 1.
    """

    def __init__(self, capacity: int) -> None:
        raise NotImplementedError

    def get(self, key: Hashable) -> int:
        """The key's value, or -1 if the cache does not hold it."""
        raise NotImplementedError

    def put(self, key: Hashable, value: int) -> None:
        """Stores the value, which is at least 0, in place of the key's old one if there is one."""
        raise NotImplementedError


class TTLLRUCache:
    """Follow-up: an entry also expires `ttl_s` seconds after its last `put`.

    `clock()` gives the time in seconds and never goes back. An entry counts while less than
    `ttl_s` has passed since its last `put`; reading it does not renew it. Expired entries take no
    room: no entry that counts is evicted while one has expired. Raises ValueError for a capacity
    below 1 or a `ttl_s` that is not above 0.
    """

    def __init__(self, capacity: int, ttl_s: float, clock: Callable[[], float]) -> None:
        raise NotImplementedError

    def get(self, key: Hashable) -> int:
        raise NotImplementedError

    def put(self, key: Hashable, value: int) -> None:
        raise NotImplementedError


class ThreadSafeLRUCache:
    """Follow-up: an LRUCache that many threads use at once.

    Each call seems to take effect at one moment between its begin and its end.
    """

    def __init__(self, capacity: int) -> None:
        raise NotImplementedError

    def get(self, key: Hashable) -> int:
        raise NotImplementedError

    def put(self, key: Hashable, value: int) -> None:
        raise NotImplementedError
