"""How much work may be under way: in all, and for one client.

Answers "why answer 429 rather than queue?". A queue without an end turns overload into answers
that come after their readers have left; a refused client can go elsewhere, or come back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

from infra_lab.server.api_errors import too_many_requests


class Limits:
    """Counts prompts from their arrival to the end of their answers; for one event loop."""

    def __init__(self, capacity: int, per_client: int | None) -> None:
        self._capacity = capacity
        self._per_client = per_client
        self._by_client: Counter[str] = Counter()
        self.num_open = 0

    def enter(self, client: str, count: int) -> Callable[[], None]:
        """Takes `count` places; the returned function gives them back, once.

        Raises ApiError 429 where there are not so many.
        """
        if self.num_open + count > self._capacity:
            raise too_many_requests(
                f"the server has {self.num_open} prompts under way and takes at most "
                f"{self._capacity}: send these {count} again later"
            )
        limit = self._per_client
        if limit is not None and self._by_client[client] + count > limit:
            raise too_many_requests(
                f"this client has {self._by_client[client]} prompts under way and may have "
                f"{limit}: send these {count} again when others have ended"
            )
        self.num_open += count
        self._by_client[client] += count
        is_inside = True

        def leave() -> None:
            nonlocal is_inside
            if is_inside:
                is_inside = False
                self.num_open -= count
                self._by_client[client] -= count
                if not self._by_client[client]:
                    del self._by_client[client]

        return leave
