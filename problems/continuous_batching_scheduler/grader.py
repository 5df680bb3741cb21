"""Grades continuous_batching_scheduler: follows its steps, and holds them against the statement.

`Follower` believes what the scheduler says and checks what it guarantees. `prescribed_step` says
what the step must be, from sums over the requests in order of arrival: it keeps no queues and
takes no blocks one by one.
"""

from __future__ import annotations

import numbers
from dataclasses import dataclass
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.practice.kit import Call, Instance, Solution, states

Step = tuple[dict[str, int], list[str]]


@dataclass
class Pool:
    token_budget: int
    num_blocks: int
    block_size: int

    def blocks(self, num_tokens: int) -> int:
        return -(-num_tokens // self.block_size)


@dataclass
class Request:
    """An unfinished request. It runs, and holds blocks, exactly if some of it is computed."""

    request_id: str
    known: int
    last: int
    computed: int = 0


def prescribed_step(pool: Pool, requests: list[Request]) -> Step:
    """The step that the statement prescribes for these requests, in order of arrival."""
    running = [request for request in requests if request.computed]
    counts = shares(pool.token_budget, [r.known - r.computed for r in running])
    after = [pool.blocks(r.computed + n) for r, n in zip(running, counts, strict=True)]
    in_all = [0, *accumulate(after)]
    kept = max(n for n in range(len(in_all)) if in_all[n] <= pool.num_blocks)
    step = {r.request_id: n for r, n in zip(running[:kept], counts, strict=False)}
    in_use = in_all[kept]
    for request in requests[kept:]:
        left = pool.token_budget - sum(step.values())
        if left == 0 or in_use + pool.blocks(request.known) > pool.num_blocks:
            break
        step[request.request_id] = min(request.known, left)
        in_use += pool.blocks(step[request.request_id])
    return step, [request.request_id for request in reversed(running[kept:])]


def shares(budget: int, wanted: list[int]) -> list[int]:
    """Each gets what it wants of what those before it leave."""
    ends = [min(end, budget) for end in accumulate(wanted)]
    return [end - start for start, end in zip([0, *ends], ends, strict=False)]


class Follower:
    """A scheduler under test, and the requests as its own words leave them."""

    def __init__(
        self, solution: Solution, token_budget: int, num_blocks: int, block_size: int
    ) -> None:
        self.scheduler: Instance = solution.new("Scheduler", token_budget, num_blocks, block_size)
        self.pool = Pool(token_budget, num_blocks, block_size)
        self.requests: list[Request] = []  # unfinished, in order of arrival
        self.steps = 0
        self.last_step: Step = ({}, [])

    def add(self, request_id: str, prompt_len: int, max_tokens: int) -> None:
        call = self.scheduler.call("add_request", request_id, prompt_len, max_tokens)
        last = prompt_len + max_tokens
        if self.pool.blocks(last - 1) > self.pool.num_blocks:
            call.raises(ValueError)
        else:
            _ = call.value
            self.requests.append(Request(request_id, prompt_len, last))

    def step(self) -> Call:
        """One call of schedule(): that it can be followed at all is checked here."""
        call = self.scheduler.call("schedule")
        scheduled, preempted = self.last_step = read_step(call)
        known = {request.request_id: request for request in self.requests}
        for request_id in [*scheduled, *preempted]:
            if request_id not in known:
                call.fail("unfinished requests only", note=f"{request_id!r} is none")
        for request_id in preempted:
            if not known[request_id].computed or preempted.count(request_id) > 1:
                call.fail("each preempted request to hold blocks before the step")
            if request_id in scheduled:
                call.fail("a preempted request to compute nothing in the same step")
            known[request_id].computed = 0
        for request_id, count in scheduled.items():
            request = known[request_id]
            left = request.known - request.computed
            if not 1 <= count <= left:
                call.fail(f"1 to {left} tokens of {request_id!r}", note=describe(request))
            request.computed += count
        self.steps += 1
        return call

    def run_step(self) -> None:
        """The step's outcome: requests with no token left to compute get one more, or end."""
        for request in self.requests:
            if request.computed == request.known:
                request.known += 1
        self.requests = [r for r in self.requests if r.known < r.last]

    def check_budgets(self, call: Call) -> None:
        scheduled, _ = self.last_step
        if sum(scheduled.values()) > self.pool.token_budget:
            call.fail(f"at most {self.pool.token_budget} tokens in all")
        if self.blocks_in_use > self.pool.num_blocks:
            call.fail(
                f"at most {self.pool.num_blocks} blocks in use",
                note=f"this step makes it {self.blocks_in_use}: {self.holders}",
            )

    def check_order(self, call: Call) -> None:
        """Those that hold blocks came before those that do not."""
        waits = ""
        for request in self.requests:
            if not request.computed:
                waits = waits or request.request_id
            elif waits:
                call.fail(
                    f"nobody to run while {waits!r} waits, which came first",
                    note=f"{request.request_id!r} holds blocks",
                )

    def check_progress(self, call: Call) -> None:
        scheduled, _ = self.last_step
        if self.requests and not scheduled:
            call.fail("a step with some tokens, as requests are unfinished")
        for request in self.requests:
            if request.computed and request.request_id not in scheduled:
                call.fail(f"{request.request_id!r} to compute something, as it holds blocks")

    def check_free(self) -> None:
        """After the step has run: only unfinished requests hold blocks."""
        call = self.scheduler.call("num_free_blocks")
        self.scheduler.history.pop()  # it only reads: later failures need not show it
        call.equals(self.pool.num_blocks - self.blocks_in_use, note=f"in use: {self.holders}")

    @property
    def blocks_in_use(self) -> int:
        return sum(self.pool.blocks(request.computed) for request in self.requests)

    @property
    def holders(self) -> str:
        held = {r.request_id: self.pool.blocks(r.computed) for r in self.requests if r.computed}
        return ", ".join(f"{request_id}: {count}" for request_id, count in held.items()) or "none"


def read_step(call: Call) -> Step:
    got = call.of_type(tuple, "a tuple (scheduled, preempted)")
    if len(got) != 2 or not isinstance(got[0], dict) or not isinstance(got[1], list):
        call.fail("a tuple of a dict and a list: (scheduled, preempted)")
    scheduled, preempted = got
    for request_id, count in scheduled.items():
        is_int = isinstance(count, numbers.Integral) and not isinstance(count, bool)
        if not isinstance(request_id, str) or not is_int:
            call.fail("scheduled to be a dict of request ids and numbers of tokens")
    if not all(isinstance(request_id, str) for request_id in preempted):
        call.fail("preempted to be a list of request ids")
    return dict(scheduled), list(preempted)


def describe(request: Request) -> str:
    return f"{request.request_id!r} has computed {request.computed} of {request.known} tokens"


def expect(follower: Follower, *steps: dict[str, int] | Step) -> None:
    """These steps, and the free blocks after each; a dict alone is a step with no preemption."""
    for step in steps:
        call = follower.step()
        call.equals((step, []) if isinstance(step, dict) else step)
        follower.run_step()
        follower.check_free()


# ---- one thing at a time ----


@states("without requests, a step is empty", "没有请求时，这一步为空")
def test_nothing_to_do(solution: Solution) -> None:
    expect(Follower(solution, 8, 4, 4), {}, {})


@states(
    "a request computes its prompt, then one token a step, and leaves",
    "请求先算完 prompt，再每步一个 token，结束后离开",
)
@pytest.mark.parametrize("max_tokens", [1, 2, 3])
def test_one_request(solution: Solution, max_tokens: int) -> None:
    follower = Follower(solution, 16, 8, 4)
    follower.add("a", 5, max_tokens)
    expect(follower, {"a": 5}, *([{"a": 1}] * (max_tokens - 1)), {})


@states("a prompt longer than the budget is computed in chunks", "超过预算的 prompt 分块计算")
def test_long_prompt(solution: Solution) -> None:
    follower = Follower(solution, 4, 8, 4)
    follower.add("a", 10, 2)
    expect(follower, {"a": 4}, {"a": 4}, {"a": 2}, {"a": 1}, {})


@states("requests share a step, and leave one by one", "多个请求同一步计算，各自结束各自离开")
def test_a_batch(solution: Solution) -> None:
    follower = Follower(solution, 16, 8, 4)
    follower.add("a", 3, 3)
    follower.add("b", 2, 2)
    expect(follower, {"a": 3, "b": 2}, {"a": 1, "b": 1}, {"a": 1}, {})


@states(
    "a request joins while others run, with what budget they leave",
    "新请求随时加入正在运行的批次，用剩下的预算",
)
def test_joins_a_running_batch(solution: Solution) -> None:
    follower = Follower(solution, 4, 8, 4)
    follower.add("a", 2, 5)
    expect(follower, {"a": 2})
    follower.add("b", 10, 1)
    follower.add("c", 2, 1)
    expect(follower, *([{"a": 1, "b": 3}] * 3), {"a": 1, "b": 1, "c": 2}, {})


@states("no budget left means no admission", "预算用完就不再接纳新请求")
def test_no_budget_left(solution: Solution) -> None:
    follower = Follower(solution, 2, 8, 4)
    for request_id in "abc":
        follower.add(request_id, 1, 2)
    expect(follower, {"a": 1, "b": 1}, {"a": 1, "b": 1}, {"c": 1}, {"c": 1}, {})


@states("a small request does not pass a large one that waits", "小请求不会越过排在前面的大请求")
def test_head_of_line(solution: Solution) -> None:
    follower = Follower(solution, 16, 4, 2)
    follower.add("a", 4, 4)
    expect(follower, {"a": 4})
    follower.add("b", 6, 1)
    follower.add("c", 1, 1)
    expect(follower, {"a": 1}, {"a": 1}, {"a": 1}, {"b": 6, "c": 1}, {})


@states(
    "a request is admitted once all its tokens have room, not its first chunk alone",
    "整个 prompt 都放得下才接纳，而不是只看第一块",
)
def test_room_for_the_whole_prompt(solution: Solution) -> None:
    follower = Follower(solution, 4, 3, 4)
    follower.add("a", 4, 4)
    expect(follower, {"a": 4})
    follower.add("b", 9, 1)
    expect(follower, {"a": 1}, {"a": 1}, {"a": 1}, {"b": 4}, {"b": 4}, {"b": 1}, {})


@states(
    "the latest request gives way, and later computes its prompt and its answer so far again",
    "让最晚到的请求让位，恢复时重算 prompt 和已生成的 token",
)
def test_preemption(solution: Solution) -> None:
    follower = Follower(solution, 8, 4, 2)
    follower.add("a", 3, 5)
    follower.add("b", 3, 3)
    expect(
        follower,
        {"a": 3, "b": 3},
        {"a": 1, "b": 1},
        ({"a": 1}, ["b"]),
        {"a": 1},
        {"a": 1},
        {"b": 5},
        {},
    )


@states("no more requests are preempted than must be", "只抢占必要的请求，不多抢")
def test_few_are_preempted(solution: Solution) -> None:
    follower = Follower(solution, 8, 6, 2)
    for request_id in "abc":
        follower.add(request_id, 2, 4)
    expect(
        follower,
        {"a": 2, "b": 2, "c": 2},
        {"a": 1, "b": 1, "c": 1},
        {"a": 1, "b": 1, "c": 1},
        ({"a": 1, "b": 1}, ["c"]),
        {"c": 5},
        {},
    )


@states("several requests give way, the latest first", "需要时依次抢占多个请求，最晚到的先让位")
def test_several_are_preempted(solution: Solution) -> None:
    follower = Follower(solution, 12, 4, 3)
    for request_id in "abcd":
        follower.add(request_id, 3, 3)
    expect(
        follower,
        {"a": 3, "b": 3, "c": 3, "d": 3},
        ({"a": 1, "b": 1}, ["d", "c"]),
        {"a": 1, "b": 1},
        {"c": 4, "d": 4},
        {"c": 1, "d": 1},
        {},
    )


@states("nobody stays in place of an earlier request", "更早的请求让位时，后面的小请求也不能留下")
def test_nobody_stays_instead(solution: Solution) -> None:
    follower = Follower(solution, 16, 5, 2)
    follower.add("a", 4, 4)
    follower.add("b", 4, 4)
    follower.add("c", 1, 5)
    expect(
        follower,
        {"a": 4, "b": 4, "c": 1},
        ({"a": 1}, ["c", "b"]),
        {"a": 1},
        {"a": 1},
        {"b": 5, "c": 2},
        {"b": 1, "c": 1},
        ({"b": 1}, ["c"]),
        {"c": 4},
        {"c": 1},
        {},
    )


@states("a preempted request comes before all that wait", "被抢占的请求排在所有等待者之前")
def test_preempted_comes_first(solution: Solution) -> None:
    follower = Follower(solution, 8, 4, 2)
    follower.add("a", 3, 4)
    follower.add("b", 3, 3)
    expect(follower, {"a": 3, "b": 3}, {"a": 1, "b": 1})
    follower.add("c", 1, 1)
    expect(follower, ({"a": 1}, ["b"]), {"a": 1}, {"b": 5, "c": 1}, {})


@states("a prompt in the middle may have to give way itself", "prompt 算到一半的请求也可能自己让位")
def test_preempts_itself(solution: Solution) -> None:
    follower = Follower(solution, 3, 4, 2)
    follower.add("a", 2, 5)
    follower.add("b", 6, 1)
    expect(
        follower,
        {"a": 2, "b": 1},
        {"a": 1, "b": 2},
        ({"a": 1}, ["b"]),
        {"a": 1},
        {"a": 1},
        {"b": 3},
        {"b": 3},
        {},
    )


@states(
    "a request may fill the whole pool; one that needs more is refused",
    "请求可以恰好占满整个池，放不下的直接拒绝",
)
def test_refuses_what_never_fits(solution: Solution) -> None:
    follower = Follower(solution, 8, 2, 4)
    follower.add("a", 4, 6)
    follower.add("b", 9, 1)
    follower.add("c", 4, 5)
    follower.add("d", 8, 1)
    expect(follower, {"c": 4}, *([{"c": 1}] * 4), {"d": 8}, {})


@states("numbers below 1 are refused", "小于 1 的参数一律拒绝")
def test_refuses_bad_numbers(solution: Solution) -> None:
    for sizes in ((0, 4, 4), (8, 0, 4), (8, 4, 0), (-1, 4, 4)):
        solution.call("Scheduler", *sizes).raises(ValueError)
    follower = Follower(solution, 8, 4, 4)
    for prompt_len, max_tokens in ((0, 1), (1, 0), (-1, 4), (4, -1)):
        follower.scheduler.call("add_request", "a", prompt_len, max_tokens).raises(ValueError)
    expect(follower, {})


@states("an id is taken until its request has finished", "请求结束之前，它的 id 不能再用")
def test_ids(solution: Solution) -> None:
    follower = Follower(solution, 8, 4, 4)
    follower.add("a", 2, 2)
    follower.scheduler.call("add_request", "a", 3, 3).raises(ValueError)
    expect(follower, {"a": 2})
    follower.scheduler.call("add_request", "a", 3, 3).raises(ValueError)
    expect(follower, {"a": 1}, {})
    follower.add("a", 3, 1)
    expect(follower, {"a": 3}, {})


@states("the dict and the list of a step are the caller's own", "返回的 dict 和 list 归调用方所有")
@pytest.mark.parametrize("part", [0, 1])
def test_returned_values(solution: Solution, part: int) -> None:
    follower = Follower(solution, 8, 4, 2)
    follower.add("a", 3, 4)
    follower.add("b", 3, 3)
    for _ in range(4):
        call = follower.step()
        follower.run_step()
        call.value[part].clear()
        follower.scheduler.history[-1] += f"[{part}].clear()"
    expect(follower, {"b": 5}, {})


@states("two schedulers share nothing", "两个调度器互不影响")
def test_two_schedulers(solution: Solution) -> None:
    one, other = Follower(solution, 8, 4, 4), Follower(solution, 4, 6, 2)
    one.add("a", 5, 2)
    expect(other, {})
    other.add("a", 6, 2)
    expect(one, {"a": 5})
    expect(other, {"a": 4}, {"a": 2})
    expect(one, {"a": 1}, {})
    expect(other, {"a": 1}, {})


# ---- any workload ----


@dataclass(frozen=True)
class Arrival:
    """A request that arrives after some steps more."""

    after: int
    prompt_len: int
    max_tokens: int


pools = st.builds(Pool, st.integers(1, 8), st.integers(3, 7), st.integers(1, 3))
workloads = st.lists(
    st.builds(Arrival, st.integers(0, 1), st.integers(1, 6), st.integers(1, 6)),
    min_size=2,
    max_size=5,
)


def follow(solution: Solution, pool: Pool, workload: list[Arrival], check: str) -> Follower:
    """Runs the workload to its end, with one of the Follower's checks after each call."""
    follower = Follower(solution, pool.token_budget, pool.num_blocks, pool.block_size)
    for index, arrival in enumerate(workload):
        for _ in range(arrival.after):
            follow_step(follower, check)
        follower.add("abcdefgh"[index], arrival.prompt_len, arrival.max_tokens)
    while follower.requests:
        follow_step(follower, check)
    return follower


def follow_step(follower: Follower, check: str) -> None:
    prescribed = prescribed_step(follower.pool, follower.requests)
    # The oldest computes a token in every step, so that all end within as many steps as tokens.
    oldest = follower.requests[:1]
    call = follower.step()
    if check == "rules":
        call.equals(prescribed)
    elif check:
        getattr(follower, f"check_{check}")(call)
    if oldest and oldest[0].request_id not in follower.last_step[0]:
        call.fail(f"the oldest request, {oldest[0].request_id!r}, to compute something")
    follower.run_step()
    if check == "budgets":
        follower.check_free()


@states(
    "no step is over the token budget or the pool, and all blocks come back",
    "任何一步都不超 token 预算和 block 总数，block 全部归还",
)
@given(pool=pools, workload=workloads)
def test_budgets(solution: Solution, pool: Pool, workload: list[Arrival]) -> None:
    follow(solution, pool, workload, "budgets").check_free()


@states("nobody runs while an earlier request waits", "有更早的请求在等待时，后来者不会运行")
@given(pool=pools, workload=workloads)
def test_first_come_first_served(solution: Solution, pool: Pool, workload: list[Arrival]) -> None:
    follow(solution, pool, workload, "order")


@states(
    "every request that holds blocks computes something in every step, and every request ends",
    "持有 block 的请求每步都有进展，所有请求最终都会结束",
)
@given(pool=pools, workload=workloads)
def test_every_request_ends(solution: Solution, pool: Pool, workload: list[Arrival]) -> None:
    follow(solution, pool, workload, "progress")


@states("every step is the one that the rules prescribe", "每一步都与规则规定的完全一致")
@given(pool=pools, workload=workloads)
def test_rules(solution: Solution, pool: Pool, workload: list[Arrival]) -> None:
    follow(solution, pool, workload, "rules")


# ---- what it is all for ----


@states(
    "short requests make room for others at once: few steps for mixed lengths",
    "短请求结束后立即让出位置：长短混合的负载只需很少的步数",
)
def test_throughput(solution: Solution) -> None:
    follower = Follower(solution, 8, 24, 4)
    arrivals = [(f"r{index}", 4, 24 if index % 4 == 0 else 3) for index in range(16)]
    for arrival in arrivals:
        follower.add(*arrival)
    allowed = steps_prescribed(follower.pool, arrivals)
    while follower.requests:
        call = follower.step()
        follower.check_progress(call)
        follower.run_step()
        solution.within("steps", follower.steps, allowed, call)


def steps_prescribed(pool: Pool, arrivals: list[tuple[str, int, int]]) -> int:
    requests = [Request(name, prompt, prompt + most) for name, prompt, most in arrivals]
    steps = 0
    while requests:
        scheduled, preempted = prescribed_step(pool, requests)
        for request in requests:
            request.computed += scheduled.get(request.request_id, 0)
            request.computed *= request.request_id not in preempted
            request.known += request.computed == request.known
        requests = [request for request in requests if request.known < request.last]
        steps += 1
    return steps


@states(
    "a step's work does not grow with the requests that wait", "一步的运算量不随等待的请求数增长"
)
def test_work(solution: Solution) -> None:
    scheduler = solution.new("Scheduler", 4, 16, 4)
    for index in range(500):
        scheduler.call("add_request", f"r{index}", 2, 6)
    for _ in range(4):
        with solution.counting_lines() as lines:
            call = scheduler.call("schedule")
        _ = call.value
        solution.within("lines executed by schedule", lines.count, 400, call)
    for name, args in (("add_request", ("one more", 2, 6)), ("num_free_blocks", ())):
        with solution.counting_lines() as lines:
            call = scheduler.call(name, *args)
        _ = call.value
        solution.within(f"lines executed by {name}", lines.count, 100, call)
