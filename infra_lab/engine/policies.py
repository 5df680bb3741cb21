"""In which order requests run, and which of them gives way.

Answers "FCFS, shortest job first or priorities: what does each do to the mean and to the P99, and
what keeps a request from starving?". A policy gives every request a rank when it arrives; the
lower rank runs first and the highest of the running gives way. A rank never changes: of two
requests the same one is ahead for ever, so none can preempt another in turns.

**Ageing.** Each step of waiting is to make up for some cost: with `aging_steps` = A, a request of
cost c that arrived in step t is worth c - (s - t) / A in step s. All age at one rate, so comparing
two of them at any s comes to comparing A * c + t, which is a rank: the request counts as if it
had arrived A * c steps later. Hence the bounds, where c_min is the least cost there is:

1. *Overtaking.* Whoever arrives later than step T = t + A * (c - c_min) has a higher rank and is
   not admitted before this request.
2. *Finishing.* Let Q be the requests that had arrived by T, and W the tokens, prompts and outputs,
   of all of them. The request ends by step T + (|Q| + 1) * W.
   Proof. After T and until it ends, look in each step at the running request x of the lowest rank.
   While ours runs, x is not behind it; while ours waits, nobody from outside Q runs, since whoever
   is behind it gives way before it does and comes back after it. So x is in Q. Being the first, x
   is given a token's work in each step. It loses that work only after a request y ahead of it, so
   also of Q, was let in; for the first time, since x would have given way before y and come back
   after it. So there are at most |Q| such moments, and between two of them each step computes
   at least one token that stays, of the W there are.

With A = 0 the order is strict: one long job under an endless stream of short ones starves.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Sequence
from typing import ClassVar

from infra_lab.config import EngineConfig, OutputLengthPredictor
from infra_lab.engine.request import Request, RequestStatus

logger = logging.getLogger(__name__)

SJF_AGING_STEPS = 1  # a step decodes a token: a job counts from when it would have ended
PRIORITY_AGING_STEPS = 100


class SchedulingPolicy:
    """First come, first served: the base of the others, which change what they must.

    Attributes:
        preempts_for_waiting: whether a running request gives way to a waiting one ahead of it.
            Else whoever was let in once comes back before anyone new is let in.
    """

    preempts_for_waiting: ClassVar[bool] = False

    def rank(self, request: Request, arrival_step: int, arrival_index: int) -> tuple[float, ...]:
        """The place of a request that arrives: asked once, kept for its life.

        Args:
            arrival_step: steps scheduled before it came.
            arrival_index: requests that came before it; makes every rank another.
        """
        return (arrival_index,)

    def waiting_order(self, request: Request) -> tuple[bool, tuple[float, ...]]:
        """The sort key of the waiting requests."""
        is_new = request.status is RequestStatus.WAITING
        return (is_new and not self.preempts_for_waiting, request.rank)

    def choose_victim(self, running: Sequence[Request]) -> int:
        """Index of the running request that gives its blocks up; `running` is in order of rank."""
        return len(running) - 1

    def may_admit(self, request: Request, running: Sequence[Request]) -> bool:
        """Whether the first of the waiting requests may be let in, if there is room for it."""
        return True

    def end_admission(self) -> None:
        """Told when a step lets in nobody more though it has budget: no seat, no room, no request,
        or `may_admit` said no."""


class FirstComeFirstServed(SchedulingPolicy):
    """In order of arrival. Costs are equal, so nobody is overtaken: T is the arrival itself."""


class ShortestJobFirst(SchedulingPolicy):
    """By expected output tokens: the least mean waiting time there is when all jobs are there and
    known (Smith 1956). It does not preempt for a shorter job that comes later.

    The cost lies between 0 and the room for output, so that T <= t + A * max_model_len.

    Args:
        max_model_len: bounds a request that names no max_tokens.
        predict: expected output tokens of a prompt; None takes max_tokens. A prediction beyond
            max_tokens counts as max_tokens. One that fails or is no number costs its request
            nothing but its place: it counts as max_tokens, and a warning is logged.
        aging_steps: steps of waiting that make up for one token.
    """

    def __init__(
        self,
        max_model_len: int,
        predict: OutputLengthPredictor | None = None,
        aging_steps: int = SJF_AGING_STEPS,
    ) -> None:
        self._max_model_len = max_model_len
        self._predict = predict
        self._aging_steps = aging_steps

    def rank(self, request: Request, arrival_step: int, arrival_index: int) -> tuple[float, ...]:
        return _aged(self._cost(request), arrival_step, arrival_index, self._aging_steps)

    def _cost(self, request: Request) -> float:
        longest = self._max_model_len - request.num_prompt_tokens
        if request.sampling_params.max_tokens is not None:
            longest = min(longest, request.sampling_params.max_tokens)
        if self._predict is None:
            return longest
        try:
            predicted = float(self._predict(request.prompt_token_ids, request.sampling_params))
        except Exception as error:
            reason = f"failed: {type(error).__name__}: {error}"
        else:
            if math.isfinite(predicted):
                return min(max(predicted, 0.0), longest)
            reason = f"gave {predicted}"
        logger.warning(
            "the output length predictor %s for request %r, which counts as one of %d tokens",
            reason,
            request.request_id,
            longest,
        )
        return longest


class PriorityFirst(SchedulingPolicy):
    """By `Request.priority`, the lower first, then by arrival; whoever is ahead preempts.

    T = t + A * (priority - the least priority in use), and that is at least MIN_PRIORITY.

    Args:
        aging_steps: steps of waiting that make up for one level of priority.
    """

    preempts_for_waiting: ClassVar[bool] = True

    def __init__(self, aging_steps: int = PRIORITY_AGING_STEPS) -> None:
        self._aging_steps = aging_steps

    def rank(self, request: Request, arrival_step: int, arrival_index: int) -> tuple[float, ...]:
        cost, *arrival = _aged(request.priority, arrival_step, arrival_index, self._aging_steps)
        return (cost, request.arrival_time, *arrival)


class StaticBatching(SchedulingPolicy):
    """The baseline: a batch is filled, runs until all of it have finished, then comes the next.

    A batch is full when no seat, no room or no waiting request is left; filling it may take
    several steps where the token budget is small. Seats of finished requests stay empty, which is
    kinder than a padded batch, where they go on computing. Order is that of arrival.
    """

    def __init__(self) -> None:
        self._is_filling = True

    def may_admit(self, request: Request, running: Sequence[Request]) -> bool:
        if request.status is not RequestStatus.WAITING:
            return True  # preempted: it belongs to the batch
        if not running:
            self._is_filling = True
        return self._is_filling

    def end_admission(self) -> None:
        self._is_filling = False


def make_policy(config: EngineConfig, max_model_len: int) -> SchedulingPolicy:
    """The policy that a config names."""
    aging = {} if config.aging_steps is None else {"aging_steps": config.aging_steps}
    if config.scheduling_policy == "sjf":
        return ShortestJobFirst(max_model_len, config.output_length_predictor, **aging)
    if config.scheduling_policy == "priority":
        return PriorityFirst(**aging)
    if config.scheduling_policy == "static":
        return StaticBatching()
    return FirstComeFirstServed()


def _aged(
    cost: float, arrival_step: int, arrival_index: int, aging_steps: int
) -> tuple[float, ...]:
    """Cost and arrival in one number where waiting counts, else the cost before all."""
    if aging_steps == 0:
        return (cost, arrival_index)
    return (aging_steps * cost + arrival_step, arrival_index)
