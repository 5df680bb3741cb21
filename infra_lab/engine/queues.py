"""Where every unfinished request stands: running, waiting, or following another."""

from __future__ import annotations

from bisect import insort

from infra_lab.cache.free_block_queue import CacheIntegrityError
from infra_lab.engine.forks import Followers
from infra_lab.engine.policies import SchedulingPolicy
from infra_lab.engine.request import Request, RequestStatus


class Queues:
    """The scheduler's requests, each in one of three places, in the order of its policy.

    `running` is in order of rank, `waiting` in the policy's waiting order.
    """

    def __init__(self, policy: SchedulingPolicy) -> None:
        self.policy = policy
        self.running: list[Request] = []
        self.waiting: list[Request] = []
        self.followers = Followers()
        self._num_arrivals = 0

    def __len__(self) -> int:
        return len(self.running) + len(self.waiting) + len(self.followers)

    @property
    def ids(self) -> set[str]:
        return {r.request_id for r in (*self.running, *self.waiting)} | self.followers.ids

    def rank(self, request: Request, arrival_step: int) -> None:
        """Give a request that arrives its place among the others, for life."""
        request.rank = self.policy.rank(request, arrival_step, self._num_arrivals)
        self._num_arrivals += 1

    def wait(self, request: Request) -> None:
        insort(self.waiting, request, key=self.policy.waiting_order)

    def run(self, request: Request) -> None:
        request.status = RequestStatus.RUNNING
        insort(self.running, request, key=lambda running: running.rank)

    def leave(self, request: Request) -> None:
        if request.request_id in self.followers:
            self.followers.remove(request)
        elif request.status is RequestStatus.RUNNING:
            self.running.remove(request)
        else:
            self.waiting.remove(request)

    def check_order(self) -> None:
        """Raise CacheIntegrityError unless both lists are in their order."""
        ranks = [request.rank for request in self.running]
        places = [self.policy.waiting_order(request) for request in self.waiting]
        if ranks != sorted(ranks) or places != sorted(places):
            raise CacheIntegrityError("the requests do not stand in the policy's order")
