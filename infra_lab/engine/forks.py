"""Requests that wait for another one's prompt, to go on from its blocks instead of computing it.

Answers "what do n samples of one prompt cost?": one prefill. The first request of a group, its
leader, computes the prompt; when its last chunk is in a step, the others (its followers) sample
from the same logits and fork its block table, so that every block of the prompt is held once. From
then on all are requests like any others, and each copies the partly filled block when it writes.
"""

from __future__ import annotations

from collections.abc import Sequence

from infra_lab.engine.request import Request


class Followers:
    """Who waits for whom. A request is here or in one of the scheduler's queues, never in both."""

    def __init__(self) -> None:
        self._waiting: dict[str, list[Request]] = {}  # by leader
        self._leaders: dict[str, str] = {}
        self._joining: dict[str, Request] = {}

    def __len__(self) -> int:
        return len(self._leaders) + len(self._joining)

    def __contains__(self, request_id: str) -> bool:
        return request_id in self._leaders or request_id in self._joining

    @property
    def ids(self) -> set[str]:
        return {*self._leaders, *self._joining}

    def add(self, follower: Request, leader_id: str) -> None:
        self._waiting.setdefault(leader_id, []).append(follower)
        self._leaders[follower.request_id] = leader_id

    def remove(self, follower: Request) -> None:
        """Of a follower that ends while it is here."""
        if self._joining.pop(follower.request_id, None) is None:
            leader_id = self._leaders.pop(follower.request_id)
            self._waiting[leader_id].remove(follower)

    def take(self, leader_id: str) -> list[Request]:
        """The leader's followers, in order of arrival, who wait no longer."""
        followers = self._waiting.pop(leader_id, [])
        for follower in followers:
            del self._leaders[follower.request_id]
        return followers

    def lead_on(self, leader_id: str) -> Request | None:
        """After the end of a leader that left its prompt undone: the first of its followers leads
        the others, and is to be queued. None if it had none."""
        followers = self.take(leader_id)
        if not followers:
            return None
        leader, *others = followers
        for follower in others:
            self.add(follower, leader.request_id)
        return leader

    def join(self, followers: Sequence[Request]) -> tuple[str, ...]:
        """Followers that sample in the step that is under way; they stay until it is over."""
        self._joining |= {follower.request_id: follower for follower in followers}
        return tuple(follower.request_id for follower in followers)

    def take_joined(self, request_ids: Sequence[str]) -> list[Request]:
        """Those of them that have not ended meanwhile."""
        return [self._joining.pop(name) for name in request_ids if name in self._joining]
