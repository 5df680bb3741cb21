# killed_by: test_preemption — resumes without the tokens that it had generated
from collections import deque


class Scheduler:
    def __init__(self, token_budget: int, num_blocks: int, block_size: int) -> None:
        if token_budget < 1 or num_blocks < 1 or block_size < 1:
            raise ValueError("sizes must be positive")
        self.token_budget = token_budget
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.free = num_blocks
        self.running = []
        self.waiting = deque()
        self.unfinished = set()

    def blocks(self, tokens):
        return (tokens + self.block_size - 1) // self.block_size

    def add_request(self, request_id: str, prompt_len: int, max_tokens: int) -> None:
        if prompt_len < 1 or max_tokens < 1:
            raise ValueError("lengths must be positive")
        if request_id in self.unfinished:
            raise ValueError("duplicate id")
        if self.blocks(prompt_len + max_tokens - 1) > self.num_blocks:
            raise ValueError("can never fit")
        self.unfinished.add(request_id)
        self.waiting.append(
            {
                "id": request_id,
                "prompt": prompt_len,
                "max_tokens": max_tokens,
                "generated": 0,
                "computed": 0,
                "held": 0,
            }
        )

    def schedule(self) -> tuple[dict[str, int], list[str]]:
        scheduled = {}
        preempted = []
        budget = self.token_budget
        i = 0
        while i < len(self.running):
            request = self.running[i]
            left = request["prompt"] + request["generated"] - request["computed"]
            n = min(left, budget)
            need = self.blocks(request["computed"] + n) - request["held"]
            if need > self.free:
                victim = self.running.pop()
                self.free += victim["held"]
                victim["held"] = 0
                victim["computed"] = 0
                self.waiting.appendleft(victim)
                preempted.append(victim["id"])
                continue
            self.free -= need
            request["held"] += need
            scheduled[request["id"]] = n
            budget -= n
            i += 1
        while self.waiting and budget > 0:
            request = self.waiting[0]
            left = request["prompt"]
            if self.blocks(left) > self.free:
                break
            self.waiting.popleft()
            self.running.append(request)
            n = min(left, budget)
            request["held"] = self.blocks(n)
            self.free -= request["held"]
            scheduled[request["id"]] = n
            budget -= n
        still_running = []
        for request in self.running:
            request["computed"] += scheduled[request["id"]]
            if request["computed"] >= request["prompt"]:
                request["generated"] += 1
            if request["generated"] == request["max_tokens"]:
                self.free += request["held"]
                self.unfinished.remove(request["id"])
            else:
                still_running.append(request)
        self.running = still_running
        return scheduled, preempted

    def num_free_blocks(self) -> int:
        return self.free
