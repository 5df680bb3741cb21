"""Every request owns a list of block ids, taken from a free list, as an engine would keep them."""

from __future__ import annotations

import itertools
from collections import deque
from dataclasses import dataclass, field


class NoBlocks(Exception):  # noqa: N818
    pass


@dataclass
class Req:
    id: str
    prompt_len: int
    max_tokens: int
    output_len: int = 0
    computed: int = 0
    blocks: list[int] = field(default_factory=list)

    @property
    def remaining(self) -> int:
        return self.prompt_len + self.output_len - self.computed


class Scheduler:
    def __init__(self, token_budget: int, num_blocks: int, block_size: int) -> None:
        if not (token_budget >= 1 and num_blocks >= 1 and block_size >= 1):
            raise ValueError("bad configuration")
        self._token_budget = token_budget
        self._total = num_blocks
        self._bs = block_size
        self._free_ids = list(range(num_blocks))
        self._running: deque[Req] = deque()
        self._waiting: deque[Req] = deque()
        self._by_id: dict[str, Req] = {}

    def add_request(self, request_id: str, prompt_len: int, max_tokens: int) -> None:
        if prompt_len < 1:
            raise ValueError("prompt_len")
        if max_tokens < 1:
            raise ValueError("max_tokens")
        if request_id in self._by_id:
            raise ValueError("request_id")
        if prompt_len + max_tokens - 1 > self._total * self._bs:
            raise ValueError("request is too long for the pool")
        request = Req(request_id, prompt_len, max_tokens)
        self._by_id[request_id] = request
        self._waiting.append(request)

    def num_free_blocks(self) -> int:
        return len(self._free_ids)

    def _allocate(self, request: Req, up_to: int) -> None:
        missing = max(0, (up_to + self._bs - 1) // self._bs - len(request.blocks))
        if missing > len(self._free_ids):
            raise NoBlocks
        for _ in itertools.repeat(None, missing):
            request.blocks.append(self._free_ids.pop())

    def _drop(self, request: Req) -> None:
        self._free_ids.extend(request.blocks)
        request.blocks.clear()

    def schedule(self) -> tuple[dict[str, int], list[str]]:
        plan: dict[str, int] = {}
        preempted: list[str] = []
        budget = self._token_budget
        kept: deque[Req] = deque()
        while self._running:
            request = self._running.popleft()
            n = min(request.remaining, budget)
            while True:
                try:
                    self._allocate(request, request.computed + n)
                except NoBlocks:
                    victim = self._running.pop() if self._running else request
                    self._drop(victim)
                    victim.computed = 0
                    self._waiting.appendleft(victim)
                    preempted.append(victim.id)
                    if victim is request:
                        break
                else:
                    kept.append(request)
                    plan[request.id] = n
                    budget -= n
                    break
        self._running = kept
        while budget and self._waiting:
            request = self._waiting[0]
            if -(-request.remaining // self._bs) > len(self._free_ids):
                break
            n = min(request.remaining, budget)
            self._allocate(request, n)
            self._running.append(self._waiting.popleft())
            plan[request.id] = n
            budget -= n
        for request_id, n in plan.items():
            self._finish_step(self._by_id[request_id], n)
        self._running = deque(r for r in self._running if r.id in self._by_id)
        return plan, preempted

    def _finish_step(self, request: Req, n: int) -> None:
        request.computed += n
        if request.remaining:
            return
        request.output_len += 1
        if request.output_len == request.max_tokens:
            self._drop(request)
            del self._by_id[request.id]
