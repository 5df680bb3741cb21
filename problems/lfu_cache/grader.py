"""Grades lfu_cache against a model that searches all entries, and counts the work per call."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from infra_lab.practice.kit import Call, Counted, Instance, Solution, Tally, follow_up, states

# Means over many calls. A dict costs one hash and at most one comparison per look-up; twenty
# look-ups a call are more than any of the usual designs needs.
KEY_WORK_PER_CALL = 40
LINES_PER_CALL = 150

Operation = tuple[int, ...]  # (key,) is a get, (key, value) a put


class Model:
    """key -> [value, count, time of the last use], searched from end to end."""

    def __init__(self, capacity: int, half_life: int | None = None) -> None:
        self.capacity = capacity
        self.half_life = half_life
        self.time = 0
        self.entries: dict[int, list[int]] = {}

    def run(self, operation: Operation) -> int | None:
        self.time += 1
        result = self._put(*operation) if len(operation) == 2 else self._get(*operation)
        if self.half_life is not None and self.time % self.half_life == 0:
            for entry in self.entries.values():
                entry[1] //= 2
        return result

    def _get(self, key: int) -> int:
        if key not in self.entries:
            return -1
        self._use(key)
        return self.entries[key][0]

    def _put(self, key: int, value: int) -> None:
        if self.capacity == 0:
            return
        if key not in self.entries:
            if len(self.entries) == self.capacity:
                del self.entries[min(self.entries, key=lambda k: self.entries[k][1:])]
            self.entries[key] = [value, 0, 0]
        self.entries[key][0] = value
        self._use(key)

    def _use(self, key: int) -> None:
        self.entries[key][1] += 1
        self.entries[key][2] = self.time


def apply(cache: Instance, operation: Operation, key: Any = None) -> Call:
    """One call; `key` takes the place of the operation's where it is given."""
    arguments = (operation[0] if key is None else key, *operation[1:])
    return cache.call("put" if len(operation) == 2 else "get", *arguments)


def run_both(cache: Instance, model: Model, operations: list[Operation]) -> None:
    for operation in operations:
        call = apply(cache, operation)
        expected = model.run(operation)
        if len(operation) == 1:
            call.equals(expected)
        else:
            assert_no_exception(call)


def assert_no_exception(call: Call) -> None:
    _ = call.value  # what put returns is not graded, an exception is


def operations(keys: int, most: int = 24) -> st.SearchStrategy[list[Operation]]:
    key = st.integers(0, keys - 1)
    one = st.one_of(st.tuples(key), st.tuples(key, st.integers(0, 9)))
    return st.lists(one, max_size=most)


def skewed(count: int, keys: int, seed: int) -> list[Operation]:
    """Some keys are far more often used than others, and which ones changes late."""
    draw = random.Random(seed)
    made: list[Operation] = []
    for time in range(count):
        key = min(draw.randrange(keys) for _ in range(3))
        key = key if 3 * time < 2 * count else keys - 1 - key
        made.append((key, time) if draw.random() < 0.4 else (key,))
    return made


def hard_workload(size: int) -> list[Operation]:
    """Fills the cache; then uses keys from the newest back, so that each leaves the far end of
    those with its count; updates all; evicts all but a few, which it goes on using; misses."""
    made: list[Operation] = [(key, key) for key in range(size)]
    made += [(key,) for key in reversed(range(size))]
    made += [(key, key + 1) for key in range(size)]
    for new in range(size, size + size // 2):
        made += [(new, new), (new % 3,)]
    made += [(3 * size + key,) for key in range(size // 4)]
    return made


# ---- LFUCache ----


@states("a key that was never stored gives -1", "从未存入的键返回 -1")
def test_missing_key(solution: Solution) -> None:
    cache = solution.new("LFUCache", 2)
    cache.call("get", 0).equals(-1)
    assert_no_exception(cache.call("put", 1, 10))
    cache.call("get", 0).equals(-1)


@states("keys and values of zero are as good as others", "键和值为 0 时与其他值一视同仁")
def test_zeros(solution: Solution) -> None:
    run_both(solution.new("LFUCache", 1), Model(1), [(0, 0), (0,), (0, 5), (0,), (0, 0), (0,)])


SCRIPTS: dict[str, tuple[int, list[Operation]]] = {
    "the less used key is evicted": (2, [(1, 10), (2, 20), (1,), (3, 30), (2,), (1,), (3,)]),
    "recency alone does not save a key": (2, [(1, 10), (1,), (2, 20), (3, 30), (1,), (2,), (3,)]),
    "of equal counts the older use is evicted": (2, [(1, 10), (2, 20), (3, 30), (1,), (2,)]),
    "of equal counts above one too": (2, [(1, 1), (2, 2), (2,), (1,), (3, 3), (2,), (1,)]),
    "an update counts as a use": (2, [(1, 10), (2, 20), (1, 11), (3, 30), (1,), (2,)]),
    "an update evicts nothing": (2, [(1, 10), (2, 20), (2, 21), (1,), (2,)]),
    "a miss counts for nothing": (
        2,
        [(1, 1), (2, 2), (3,), (3,), (1,), (3, 3), (2,), (4, 4), (3,)],
    ),
    "a key that comes back starts anew": (
        2,
        [(1, 1), (2, 2), (1,), (3, 3), (2, 2), (3, 3), (2,), (1,)],
    ),
    "the newest key is evicted by the next one": (2, [(1, 1), (1,), (2, 2), (3, 3), (4, 4), (3,)]),
    "capacity 1": (1, [(1, 10), (1,), (1,), (2, 20), (1,), (2,)]),
}


@states("small scripts behave as one works them out by hand", "小脚本的结果与手工推演一致")
@pytest.mark.parametrize("name", SCRIPTS)
def test_scripts(solution: Solution, name: str) -> None:
    capacity, script = SCRIPTS[name]
    run_both(solution.new("LFUCache", capacity), Model(capacity), script)


@states("a cache of capacity 0 stores nothing", "容量为 0 的缓存不存任何东西")
def test_capacity_zero(solution: Solution) -> None:
    run_both(solution.new("LFUCache", 0), Model(0), [(1, 10), (1,), (1, 11), (2, 20), (2,), (1,)])


@states("a negative capacity raises ValueError", "负容量抛出 ValueError")
@pytest.mark.parametrize("capacity", [-1, -2])
def test_negative_capacity(solution: Solution, capacity: int) -> None:
    solution.call("LFUCache", capacity).raises(ValueError)


@states(
    "any sequence of calls agrees with a searched list of entries",
    "任意调用序列都与逐项查找的模型一致",
)
@given(capacity=st.integers(1, 3), script=operations(keys=5))
def test_model(solution: Solution, capacity: int, script: list[Operation]) -> None:
    run_both(solution.new("LFUCache", capacity), Model(capacity), script)


@states("long runs with few and many counts agree too", "长序列、计数差异大时同样一致")
@pytest.mark.parametrize("capacity", [3, 8, 20])
def test_long_runs(solution: Solution, capacity: int) -> None:
    script = skewed(700, 2 * capacity, seed=capacity)
    run_both(solution.new("LFUCache", capacity), Model(capacity), script)


@states("two caches share nothing", "两个缓存互不影响")
@given(
    capacities=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    scripts=st.tuples(operations(keys=3, most=8), operations(keys=3, most=8)),
)
def test_two_caches(
    solution: Solution,
    capacities: tuple[int, int],
    scripts: tuple[list[Operation], list[Operation]],
) -> None:
    caches = [solution.new("LFUCache", capacity) for capacity in capacities]
    models = [Model(capacity) for capacity in capacities]
    for step in range(max(map(len, scripts))):
        for cache, model, script in zip(caches, models, scripts, strict=True):
            run_both(cache, model, script[step : step + 1])


def check_work(solution: Solution, cache: Instance, model: Model, script: list[Operation]) -> None:
    """Every key is an object of its own, so that no look-up is spared by identity."""
    tally = Tally()
    lines_used = 0
    for operation in script:
        with solution.counting_lines() as lines:
            call = apply(cache, operation, Counted(operation[0], tally))
        lines_used += lines.count
        expected = model.run(operation)
        if len(operation) == 1:
            call.equals(expected)
        else:
            assert_no_exception(call)
    calls = len(script)
    what = f"hashes and comparisons of keys in {calls:,} calls"
    solution.within(what, tally.count, KEY_WORK_PER_CALL * calls, call)
    what = f"executed lines in {calls:,} calls"
    solution.within(what, lines_used, LINES_PER_CALL * calls, call)


@states(
    "work per call does not grow with the cache: 40 hashes and comparisons of keys, 150 lines",
    "每次调用的工作量与缓存大小无关：平均至多 40 次键的哈希与比较、150 行代码",
)
@pytest.mark.parametrize("size", [16, 512])
def test_work(solution: Solution, size: int) -> None:
    check_work(solution, solution.new("LFUCache", size), Model(size), hard_workload(size))


@states(
    "memory is set by the capacity, not by how long the cache runs",
    "内存占用取决于容量，与运行时长无关",
)
def test_memory(solution: Solution) -> None:
    rounds = 2000
    cache = solution.new("LFUCache", 2)
    with solution.peak_memory() as peak:
        for count in range(rounds):
            assert_no_exception(cache.call("put", 1, count))
            cache.call("get", 1).equals(count)
            call = cache.call("put", 2 + count, count)
    solution.within(f"bytes kept after {3 * rounds:,} calls", peak.bytes, 200_000, call)


# ---- AgingLFUCache ----


AGING_SCRIPTS: dict[str, tuple[int, int, list[Operation]]] = {
    # After the fourth call key 1 has 3 // 2 and key 2 has 1 // 2; two more uses put 2 ahead.
    "an old favourite is overtaken": (
        2,
        4,
        [(1, 1), (1,), (1,), (2, 2), (2,), (2,), (3, 3), (1,), (2,)],
    ),
    # After the fifth call key 1 has 2 // 2 and key 2 has 3 // 2; the use of 2 is older.
    "halved counts that are equal go by recency": (
        2,
        5,
        [(2, 2), (2,), (2,), (1, 1), (1,), (3, 3), (1,), (2,)],
    ),
    # After the third call key 1 has 2 // 2 and key 2 has 1 // 2.
    "the halving comes after the call, and down to 0": (
        2,
        3,
        [(1, 1), (1,), (2, 2), (3, 3), (2,), (1,)],
    ),
    # After the second call key 1 has 1 // 2; key 2 is new, with 1.
    "a count of 0 is below a new key's": (2, 2, [(9,), (1, 1), (2, 2), (3, 3), (1,), (2,)]),
    # The third call halves key 1 to 2 // 2, so it is no better than key 3, and older.
    "a miss makes time pass": (2, 3, [(9,), (1, 1), (1, 1), (3, 3), (2, 2), (1,), (3,)]),
}


@follow_up("AgingLFUCache")
@states(
    "follow-up: small scripts behave as one works them out by hand",
    "进阶：小脚本的结果与手工推演一致",
)
@pytest.mark.parametrize("name", AGING_SCRIPTS)
def test_aging_scripts(solution: Solution, name: str) -> None:
    capacity, half_life, script = AGING_SCRIPTS[name]
    cache = solution.new("AgingLFUCache", capacity, half_life)
    run_both(cache, Model(capacity, half_life), script)


@follow_up("AgingLFUCache")
@states(
    "follow-up: a negative capacity or a half-life below 1 raises ValueError",
    "进阶：负容量或小于 1 的半衰期抛出 ValueError",
)
@pytest.mark.parametrize(("capacity", "half_life"), [(2, 0), (2, -1), (0, 0), (-1, 1)])
def test_aging_invalid(solution: Solution, capacity: int, half_life: int) -> None:
    solution.call("AgingLFUCache", capacity, half_life).raises(ValueError)


@follow_up("AgingLFUCache")
@states(
    "follow-up: any sequence of calls agrees with a searched list of entries",
    "进阶：任意调用序列都与逐项查找的模型一致",
)
@given(capacity=st.integers(0, 3), half_life=st.integers(1, 7), script=operations(keys=5, most=30))
def test_aging_model(
    solution: Solution, capacity: int, half_life: int, script: list[Operation]
) -> None:
    cache = solution.new("AgingLFUCache", capacity, half_life)
    run_both(cache, Model(capacity, half_life), script)


@follow_up("AgingLFUCache")
@states("follow-up: long runs agree too", "进阶：长序列同样一致")
@pytest.mark.parametrize(("capacity", "half_life"), [(3, 5), (8, 16), (20, 100), (8, 10**9)])
def test_aging_long_runs(solution: Solution, capacity: int, half_life: int) -> None:
    cache = solution.new("AgingLFUCache", capacity, half_life)
    run_both(cache, Model(capacity, half_life), skewed(700, 2 * capacity, seed=half_life % 97))


@follow_up("AgingLFUCache")
@states("follow-up: two caches share nothing", "进阶：两个缓存互不影响")
@given(
    half_lives=st.tuples(st.integers(1, 6), st.integers(1, 6)), script=operations(keys=4, most=20)
)
@example(half_lives=(3, 3), script=[(1, 1), (1,), (2, 2), (3, 3), (2,), (1,)])
def test_two_aging_caches(
    solution: Solution, half_lives: tuple[int, int], script: list[Operation]
) -> None:
    caches = [solution.new("AgingLFUCache", 2, half_life) for half_life in half_lives]
    models = [Model(2, half_life) for half_life in half_lives]
    for pair in zip(script, reversed(script), strict=True):
        for cache, model, operation in zip(caches, models, pair, strict=True):
            run_both(cache, model, [operation])


@follow_up("AgingLFUCache")
@states(
    "follow-up: with a half-life of the capacity the work per call stays constant",
    "进阶：半衰期等于容量时，每次调用的平均工作量仍为常数",
)
@pytest.mark.parametrize("size", [16, 512])
def test_aging_work(solution: Solution, size: int) -> None:
    cache = solution.new("AgingLFUCache", size, size)
    check_work(solution, cache, Model(size, size), hard_workload(size))
