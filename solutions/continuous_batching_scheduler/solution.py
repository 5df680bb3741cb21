"""Two queues in order of arrival: running requests, which hold blocks, then waiting ones.

There is no prefill phase and no decode phase: in each step, the computed tokens of a request catch
up with its known ones. A step costs O(running + admitted + preempted) operations.
"""

from collections import deque
from dataclasses import dataclass


@dataclass
class Request:
    request_id: str
    num_tokens: int  # known: the prompt and what was generated
    last_num_tokens: int  # known tokens when it is finished
    num_computed: int = 0
    num_blocks: int = 0


class Scheduler:
    """Plans steps of at most token_budget tokens, in num_blocks KV blocks of block_size tokens."""

    def __init__(self, token_budget: int, num_blocks: int, block_size: int) -> None:
        if min(token_budget, num_blocks, block_size) < 1:
            raise ValueError("token_budget, num_blocks and block_size must be at least 1")
        self._token_budget = token_budget
        self._block_size = block_size
        self._num_blocks = num_blocks
        self._num_free = num_blocks
        self._running: list[Request] = []
        self._waiting: deque[Request] = deque()
        self._ids: set[str] = set()

    def add_request(self, request_id: str, prompt_len: int, max_tokens: int) -> None:
        """Queue a request of prompt_len >= 1 tokens that will generate max_tokens >= 1 tokens."""
        if prompt_len < 1 or max_tokens < 1:
            raise ValueError("prompt_len and max_tokens must be at least 1")
        if request_id in self._ids:
            raise ValueError(f"request {request_id!r} is unfinished")
        # The last token is returned, never computed: it takes no slot.
        if self._blocks_for(prompt_len + max_tokens - 1) > self._num_blocks:
            raise ValueError(f"request {request_id!r} does not fit into the pool")
        self._ids.add(request_id)
        self._waiting.append(Request(request_id, prompt_len, prompt_len + max_tokens))

    def schedule(self) -> tuple[dict[str, int], list[str]]:
        """Plan one step, and take it as run."""
        preempted: list[str] = []
        plan = self._schedule_running(preempted)
        self._admit(plan)  # a request that was just preempted does not fit, and lets none pass
        self._run(plan)
        return {request.request_id: count for request, count in plan}, preempted

    def num_free_blocks(self) -> int:
        """The number of blocks that no request holds, after the last step has run."""
        return self._num_free

    def _schedule_running(self, preempted: list[str]) -> list[tuple[Request, int]]:
        plan: list[tuple[Request, int]] = []
        budget = self._token_budget
        while len(plan) < len(self._running):
            request = self._running[len(plan)]
            # Never 0: a request is admitted only into budget that all before it leave.
            count = min(request.num_tokens - request.num_computed, budget)
            if self._grow(request, count):
                plan.append((request, count))
                budget -= count
            else:
                preempted.append(self._preempt_last())
        return plan

    def _admit(self, plan: list[tuple[Request, int]]) -> None:
        budget = self._token_budget - sum(count for _, count in plan)
        while self._waiting and budget > 0:
            request = self._waiting[0]
            # Room for all its known tokens, not for the first chunk alone: let in too early, it
            # would soon be preempted, and its work be lost.
            if self._blocks_for(request.num_tokens) > self._num_free:
                return
            self._running.append(self._waiting.popleft())
            count = min(request.num_tokens, budget)
            self._grow(request, count)
            plan.append((request, count))
            budget -= count

    def _grow(self, request: Request, count: int) -> bool:
        """Take the blocks for `count` more tokens, all or none."""
        wanted = self._blocks_for(request.num_computed + count) - request.num_blocks
        if wanted > self._num_free:
            return False
        self._num_free -= wanted
        request.num_blocks += wanted
        return True

    def _preempt_last(self) -> str:
        """The latest request gives up its blocks, and will compute all its tokens again."""
        request = self._running.pop()
        self._release(request)
        request.num_computed = 0
        self._waiting.appendleft(request)
        return request.request_id

    def _run(self, plan: list[tuple[Request, int]]) -> None:
        for request, count in plan:
            request.num_computed += count
            if request.num_computed == request.num_tokens:
                request.num_tokens += 1
            if request.num_tokens == request.last_num_tokens:
                self._release(request)
                self._ids.remove(request.request_id)
        self._running = [r for r in self._running if r.num_tokens < r.last_num_tokens]

    def _release(self, request: Request) -> None:
        self._num_free += request.num_blocks
        request.num_blocks = 0

    def _blocks_for(self, num_tokens: int) -> int:
        return -(-num_tokens // self._block_size)
