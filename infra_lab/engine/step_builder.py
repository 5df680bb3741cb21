"""A step while the scheduler puts it together: what is in it and what budget is left."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from infra_lab.engine.request import Request
from infra_lab.step import BlockCopy, ScheduledRequest, SchedulerOutput


@dataclass(slots=True)
class StepBuilder:
    """Collects one step's work, in scheduling order, within `budget` tokens."""

    budget: int
    prefix_hit_tokens: int = 0
    preempted_ids: list[str] = field(default_factory=list)
    _scheduled: dict[str, ScheduledRequest] = field(default_factory=dict)
    _new: list[Request] = field(default_factory=list)

    def add(self, item: ScheduledRequest) -> None:
        self._scheduled[item.request_id] = item
        self.budget -= len(item.token_ids)

    def scheduled(self, request_id: str) -> ScheduledRequest | None:
        """A request's share of the step so far."""
        return self._scheduled.get(request_id)

    def extend(self, item: ScheduledRequest) -> None:
        """Put a longer share of a request in the place of the one it has."""
        self.budget += len(self._scheduled[item.request_id].token_ids)
        self.add(item)

    def introduce(self, request: Request) -> None:
        """Let the worker know a request that it has not met."""
        self._new.append(request)

    @property
    def items(self) -> list[ScheduledRequest]:
        return list(self._scheduled.values())

    def fork(self, request_id: str, fork_ids: tuple[str, ...]) -> None:
        """Let these requests sample from the logits of one that is in the step."""
        self._scheduled[request_id] = replace(self._scheduled[request_id], forks=fork_ids)

    def preempt(self, request_id: str) -> None:
        """Note a preemption; if the victim was in the step already, it leaves it and its
        tokens go back to the budget."""
        self.preempted_ids.append(request_id)
        self.withdraw(request_id)

    def num_tokens(self, request_id: str) -> int:
        """Tokens of a request that are in the step so far."""
        item = self._scheduled.get(request_id)
        return len(item.token_ids) if item else 0

    def withdraw(self, request_id: str) -> None:
        """Take a request's tokens, if it has any, out of the step and back to the budget."""
        item = self._scheduled.pop(request_id, None)
        if item is not None:
            self.budget += len(item.token_ids)

    def build(
        self,
        finished_request_ids: list[str],
        block_copies: Sequence[BlockCopy] = (),
        swap_outs: Sequence[BlockCopy] = (),
        swap_ins: Sequence[BlockCopy] = (),
    ) -> SchedulerOutput:
        return SchedulerOutput(
            scheduled=self.items,
            new_requests=[request.to_new_request() for request in self._new],
            finished_request_ids=finished_request_ids,
            preempted_request_ids=self.preempted_ids,
            block_copies=list(block_copies),
            swap_outs=list(swap_outs),
            swap_ins=list(swap_ins),
        )
