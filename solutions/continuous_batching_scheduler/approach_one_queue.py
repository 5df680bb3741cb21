"""One list in order of arrival, and how many requests at its front run: there is no second queue.

First come, first served means that the running requests are always the oldest ones. So preemption
moves a boundary back, admission moves it forward, and nothing else moves. The requests to keep
follow from sums: count for each running request the blocks it will hold after the step, and keep
as many as the pool has room for. A step costs O(running + admitted + preempted), and O(unfinished)
in addition where a request ends, for the list closes the gap.
"""


class Entry:
    __slots__ = ("computed", "known", "last", "name")

    def __init__(self, name: str, prompt_len: int, max_tokens: int) -> None:
        self.name = name
        self.known = prompt_len
        self.last = prompt_len + max_tokens
        self.computed = 0


class Scheduler:
    def __init__(self, token_budget: int, num_blocks: int, block_size: int) -> None:
        for size in (token_budget, num_blocks, block_size):
            if size < 1:
                raise ValueError(f"{size} is less than 1")
        self.token_budget = token_budget
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.entries: list[Entry] = []
        self.names: set[str] = set()
        self.num_running = 0

    def add_request(self, request_id: str, prompt_len: int, max_tokens: int) -> None:
        if prompt_len < 1 or max_tokens < 1:
            raise ValueError("a request has at least one token, and generates at least one")
        if request_id in self.names:
            raise ValueError(f"{request_id!r} has not finished")
        if self.blocks(prompt_len + max_tokens - 1) > self.num_blocks:
            raise ValueError(f"{request_id!r} needs more than the whole pool")
        self.names.add(request_id)
        self.entries.append(Entry(request_id, prompt_len, max_tokens))

    def schedule(self) -> tuple[dict[str, int], list[str]]:
        running = self.entries[: self.num_running]
        scheduled: dict[str, int] = {}
        budget, used = self.token_budget, 0
        for entry in running:
            count = min(entry.known - entry.computed, budget)
            blocks = self.blocks(entry.computed + count)
            if used + blocks > self.num_blocks:
                break
            scheduled[entry.name] = count
            budget, used = budget - count, used + blocks
        kept = len(scheduled)
        preempted = [entry.name for entry in reversed(running[kept:])]
        for entry in running[kept:]:
            entry.computed = 0

        for index in range(kept, len(self.entries)):
            entry = self.entries[index]
            if budget == 0 or used + self.blocks(entry.known) > self.num_blocks:
                break
            count = min(entry.known, budget)
            scheduled[entry.name] = count
            budget, used = budget - count, used + self.blocks(count)

        self.num_running = len(scheduled)
        self._run(scheduled)
        return scheduled, preempted

    def num_free_blocks(self) -> int:
        running = self.entries[: self.num_running]
        return self.num_blocks - sum(self.blocks(entry.computed) for entry in running)

    def blocks(self, num_tokens: int) -> int:
        return (num_tokens + self.block_size - 1) // self.block_size

    def _run(self, scheduled: dict[str, int]) -> None:
        unfinished = []
        for entry in self.entries[: self.num_running]:
            entry.computed += scheduled[entry.name]
            entry.known += entry.computed == entry.known
            if entry.known == entry.last:
                self.names.remove(entry.name)
            else:
                unfinished.append(entry)
        self.entries[: self.num_running] = unfinished
        self.num_running = len(unfinished)
