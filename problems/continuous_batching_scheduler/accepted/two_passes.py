"""First decides who stays, from the end of the line, and then shares out the tokens."""


class Scheduler:
    def __init__(self, token_budget: int, num_blocks: int, block_size: int) -> None:
        if any(size < 1 for size in [token_budget, num_blocks, block_size]):
            raise ValueError("every size must be at least 1")
        self.token_budget = token_budget
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.active: list[str] = []
        self.queue: list[str] = []
        self.computed: dict[str, int] = {}
        self.known: dict[str, int] = {}
        self.end: dict[str, int] = {}

    def add_request(self, request_id: str, prompt_len: int, max_tokens: int) -> None:
        if min(prompt_len, max_tokens) < 1 or request_id in self.end:
            raise ValueError(request_id)
        if self._ceil(prompt_len + max_tokens - 1) > self.num_blocks:
            raise ValueError(request_id)
        self.queue.append(request_id)
        self.computed[request_id] = 0
        self.known[request_id] = prompt_len
        self.end[request_id] = prompt_len + max_tokens

    def schedule(self) -> tuple[dict[str, int], list[str]]:
        preempted: list[str] = []
        plan = self._shares()
        while self._in_use(plan) > self.num_blocks:
            victim = self.active.pop()
            self.queue.insert(0, victim)
            self.computed[victim] = 0
            preempted.append(victim)
            plan = self._shares()
        for name in list(self.queue[: self.token_budget]):
            left = self.token_budget - sum(plan.values())
            if left == 0 or self._in_use(plan) + self._ceil(self.known[name]) > self.num_blocks:
                break
            self.queue.remove(name)
            self.active.append(name)
            plan[name] = min(left, self.known[name])
        for name, count in plan.items():
            self.computed[name] += count
            if self.computed[name] == self.known[name]:
                self.known[name] += 1
            if self.known[name] == self.end[name]:
                self.active.remove(name)
                for table in (self.computed, self.known, self.end):
                    del table[name]
        return plan, preempted

    def num_free_blocks(self) -> int:
        return self.num_blocks - self._in_use({})

    def _shares(self) -> dict[str, int]:
        plan: dict[str, int] = {}
        left = self.token_budget
        for name in self.active:
            plan[name] = min(self.known[name] - self.computed[name], left)
            left -= plan[name]
        return plan

    def _in_use(self, plan: dict[str, int]) -> int:
        return sum(self._ceil(self.computed[n] + plan.get(n, 0)) for n in self.active)

    def _ceil(self, tokens: int) -> int:
        return -(-tokens // self.block_size)
