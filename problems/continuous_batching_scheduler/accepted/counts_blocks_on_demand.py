"""Keeps no count of free blocks: it follows from the tokens that are computed."""

from collections import OrderedDict
from typing import NamedTuple


class Step(NamedTuple):
    scheduled: dict
    preempted: list


class Scheduler:
    def __init__(self, token_budget, num_blocks, block_size):
        if token_budget < 1 or num_blocks < 1 or block_size < 1:
            raise ValueError
        self.budget, self.pool, self.size = token_budget, num_blocks, block_size
        self.running = OrderedDict()  # id -> [computed, known, last]
        self.waiting = OrderedDict()

    def need(self, tokens):
        full, rest = divmod(tokens, self.size)
        return full + bool(rest)

    def num_free_blocks(self):
        return self.pool - sum(self.need(computed) for computed, _, _ in self.running.values())

    def add_request(self, request_id, prompt_len, max_tokens):
        if prompt_len <= 0 or max_tokens <= 0:
            raise ValueError("positive lengths only")
        if request_id in self.running or request_id in self.waiting:
            raise ValueError("id in use")
        last = prompt_len + max_tokens
        if self.need(last - 1) > self.pool:
            raise ValueError("too large")
        self.waiting[request_id] = [0, prompt_len, last]

    def schedule(self):
        step = Step({}, [])
        left = self.budget
        for name in list(self.running):
            if name not in self.running:
                break
            request = self.running[name]
            n = min(left, request[1] - request[0])
            while name in self.running:
                more = self.need(request[0] + n) - self.need(request[0])
                if more <= self.num_free_blocks():
                    request[0] += n
                    left -= n
                    step.scheduled[name] = n
                    break
                victim, record = self.running.popitem()
                record[0] = 0
                self.waiting[victim] = record
                self.waiting.move_to_end(victim, last=False)
                step.preempted.append(victim)
        while left and self.waiting:
            name = next(iter(self.waiting))
            request = self.waiting[name]
            if self.need(request[1]) > self.num_free_blocks():
                break
            self.running[name] = self.waiting.pop(name)
            request[0] = min(left, request[1])
            left -= request[0]
            step.scheduled[name] = request[0]
        for name in step.scheduled:
            request = self.running[name]
            if request[0] == request[1]:
                request[1] += 1
                if request[1] == request[2]:
                    del self.running[name]
        return step
