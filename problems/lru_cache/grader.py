"""Grades lru_cache against a model that keeps a plain list, in O(n), and by counted operations.

Threads are graded without chance: one call is stopped before each of its steps in turn, another
thread makes a call there, and what both and the calls after them return must be what one of the
two orders of the calls returns.
"""

from __future__ import annotations

import builtins
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.practice.kit import (
    Call,
    Counted,
    Instance,
    Solution,
    Tally,
    follow_up,
    paste,
    shown,
    states,
)

# ---- the model ----


class Model:
    """An LRU cache, and one whose entries expire, as a list of [key, value, time of its put].

    The entry used longest ago comes first. Without a `ttl_s` nothing expires.
    """

    def __init__(self, capacity: int, ttl_s: float | None = None) -> None:
        self.capacity = capacity
        self.ttl_s = ttl_s
        self.entries: list[tuple[Any, int, float]] = []

    def get(self, key: Any, now: float = 0.0) -> int:
        self._expire(now)
        for entry in self.entries:
            if entry[0] == key:
                self.entries.remove(entry)
                self.entries.append(entry)
                return entry[1]
        return -1

    def put(self, key: Any, value: int, now: float = 0.0) -> None:
        self._expire(now)
        self.entries = [entry for entry in self.entries if entry[0] != key]
        self.entries = [*self.entries, (key, value, now)][-self.capacity :]

    def _expire(self, now: float) -> None:
        if self.ttl_s is not None:
            self.entries = [entry for entry in self.entries if now - entry[2] < self.ttl_s]


Operation = tuple[Any, ...]  # ("get", key) or ("put", key, value) or ("wait", seconds)

KEYS = st.integers(0, 3)
GET = st.tuples(st.just("get"), KEYS)
PUT = st.tuples(st.just("put"), KEYS, st.integers(0, 9))
WAIT = st.tuples(st.just("wait"), st.sampled_from([0.5, 1.0]))


def sequences(*operations: st.SearchStrategy[Any]) -> st.SearchStrategy[list[Any]]:
    """Long enough to fill a cache several times. What is left of a shrunk one is short, as an
    operation shrinks to none."""
    steps = st.lists(st.one_of(st.none(), *operations), min_size=18, max_size=18)
    return steps.map(lambda drawn: [step for step in drawn if step is not None])


OPERATIONS = sequences(GET, PUT)


def replay(cache: Instance, model: Model, operations: Iterable[Operation]) -> None:
    """Makes the calls on both; the first `get` that differs fails."""
    for name, *args in operations:
        call = cache.call(name, *args)
        expected = getattr(model, name)(*args)
        if name == "get":
            call.equals(expected)
        else:
            _ = call.value  # an exception in `put` fails here


def new_pair(solution: Solution, name: str, capacity: int) -> tuple[Instance, Instance]:
    """Two caches at once. A failure of either shows the calls of both."""
    history: list[str] = []
    pair = []
    for variable in ("one", "other"):
        made = solution.new(name, capacity)
        history.append(f"{variable} = {name}({capacity})")
        pair.append(Instance(solution, variable, made.value, history))
    return pair[0], pair[1]


# ---- the cache ----


@states("a new cache holds nothing", "新缓存是空的")
def test_new_cache_is_empty(solution: Solution) -> None:
    solution.new("LRUCache", 2).call("get", 1).equals(-1)


@states("a stored value comes back, zero too", "存入的值能取回，包括 0")
@pytest.mark.parametrize("value", [7, 0])
def test_value_comes_back(solution: Solution, value: int) -> None:
    cache = solution.new("LRUCache", 2)
    replay(cache, Model(2), [("put", 1, value), ("get", 1), ("get", 1), ("get", 2)])


@states("a full cache evicts the entry used longest ago", "缓存满时淘汰最久未使用的条目")
def test_evicts_the_oldest(solution: Solution) -> None:
    puts = [("put", 1, 10), ("put", 2, 20), ("put", 3, 30)]
    gets = [("get", 1), ("get", 2), ("get", 3)]
    replay(solution.new("LRUCache", 2), Model(2), puts + gets)


@states("capacity 1 holds one entry", "容量为 1 时只保留一个条目")
def test_capacity_one(solution: Solution) -> None:
    operations = [("put", 1, 10), ("get", 1), ("put", 2, 20), ("get", 1), ("get", 2)]
    operations += [("put", 2, 21), ("get", 2), ("put", 1, 11), ("get", 2), ("get", 1)]
    replay(solution.new("LRUCache", 1), Model(1), operations)


@states("get counts as a use", "get 算一次使用")
def test_get_is_a_use(solution: Solution) -> None:
    operations = [("put", 1, 10), ("put", 2, 20), ("get", 1), ("put", 3, 30)]
    replay(solution.new("LRUCache", 2), Model(2), [*operations, ("get", 2), ("get", 1)])


@states(
    "put of a key that is there replaces its value, counts as a use and evicts nothing",
    "对已有的键 put：更新值、算一次使用、不淘汰任何条目",
)
def test_put_of_a_present_key(solution: Solution) -> None:
    operations = [("put", 1, 10), ("put", 2, 20), ("put", 1, 11), ("get", 2), ("get", 1)]
    replay(solution.new("LRUCache", 2), Model(2), operations)
    operations = [("put", 1, 10), ("put", 2, 20), ("put", 2, 20), ("get", 1), ("get", 2)]
    replay(solution.new("LRUCache", 2), Model(2), operations)
    operations = [("put", 1, 10), ("put", 2, 20), ("put", 1, 10), ("put", 3, 30)]
    replay(solution.new("LRUCache", 2), Model(2), [*operations, ("get", 1), ("get", 2)])


@states("get of a missing key changes nothing", "get 不存在的键不改变缓存")
def test_missing_key_changes_nothing(solution: Solution) -> None:
    operations = [("put", 1, 10), ("put", 2, 20), ("get", 3), ("get", 1), ("get", 2)]
    replay(solution.new("LRUCache", 2), Model(2), operations)


@states("keys are any hashable values, equal or not", "键可以是任意可哈希的值，按相等判断")
def test_any_hashable_key(solution: Solution) -> None:
    keys: list[Any] = [1, "1", (1,), None, "", 0, frozenset({1})]
    puts = [("put", key, place) for place, key in enumerate(keys)]
    gets: list[Operation] = [("get", key) for key in [*keys, "2", (1, 1), 1.0]]
    replay(solution.new("LRUCache", len(keys)), Model(len(keys)), [*puts, *gets])


@states("a capacity below 1 raises ValueError", "容量小于 1 时抛出 ValueError")
@pytest.mark.parametrize("capacity", [0, -1])
def test_capacity_is_checked(solution: Solution, capacity: int) -> None:
    solution.call("LRUCache", capacity).raises(ValueError)


@states("two caches share nothing", "两个缓存互不影响")
def test_two_caches(solution: Solution) -> None:
    one, other = new_pair(solution, "LRUCache", 1)
    models = Model(1), Model(1)
    replay(one, models[0], [("put", 1, 10)])
    replay(other, models[1], [("get", 1), ("put", 2, 20), ("get", 2)])
    replay(one, models[0], [("get", 2), ("get", 1)])


@states("any calls give what a plain list would give", "任意操作序列的结果与朴素列表模型一致")
@given(capacity=st.integers(1, 4), operations=OPERATIONS)
def test_any_calls(solution: Solution, capacity: int, operations: list[Operation]) -> None:
    replay(solution.new("LRUCache", capacity), Model(capacity), operations)


@states("two caches used in turn give what two lists would give", "交替使用两个缓存，结果各自独立")
@given(capacity=st.integers(1, 3), steps=sequences(st.tuples(st.booleans(), GET | PUT)))
def test_two_caches_in_turn(
    solution: Solution, capacity: int, steps: list[tuple[bool, Operation]]
) -> None:
    caches = new_pair(solution, "LRUCache", capacity)
    models = Model(capacity), Model(capacity)
    for is_other, operation in steps:
        replay(caches[is_other], models[is_other], [operation])


# ---- its cost ----


class Elements:
    """Counts the elements that the solution searches or moves in calls written in C, where no
    line of its own runs: min over a dict's items, list.remove, deque.index."""

    SEARCHING = ("all", "any", "max", "min", "sorted", "sum")
    METHODS = ("copy", "count", "index", "insert", "remove", "reverse", "rotate", "sort")

    def __init__(self, solution: Solution) -> None:
        self.solution = solution
        self.count = 0

    @contextmanager
    def counting(self) -> Iterator[None]:
        before = sys.getprofile()
        with pytest.MonkeyPatch.context() as patch:
            for name in self.SEARCHING:
                if name not in vars(self.solution.module):
                    patch.setattr(self.solution.module, name, self._charged(name), raising=False)
            sys.setprofile(self._profile)
            try:
                yield
            finally:
                sys.setprofile(before)

    def _charged(self, name: str) -> Callable[..., Any]:
        function = getattr(builtins, name)

        def call(*args: Any, **kwargs: Any) -> Any:
            is_search = len(args) == 1 or name in ("sorted", "sum")
            first = (self._each(args[0]), *args[1:]) if is_search and args else args
            return function(*first, **kwargs)

        return call

    def _each(self, items: Iterable[Any]) -> Iterator[Any]:
        for item in items:
            self.count += 1
            yield item

    def _profile(self, frame: FrameType, event: str, argument: Any) -> None:
        if event == "c_call" and frame.f_code.co_filename == self.solution.file:
            owner = getattr(argument, "__self__", None)
            is_sequence = type(owner).__name__ in ("list", "deque")
            if is_sequence and argument.__name__ in self.METHODS:
                self.count += len(owner)


def mixed_operations(size: int) -> list[Operation]:
    """2 * size calls on a full cache of `size` keys: half of them evict, half find their key."""
    operations: list[Operation] = []
    for step in range(size):
        operations.append(("get", step + size // 2) if step % 2 else ("put", step + size // 2, 1))
        operations.append(("put", size + step, step))
    return operations


def check_cost(solution: Solution, cache: Instance, operations: list[Operation], each: int) -> None:
    """Hashes and comparisons of keys, lines, and elements, each over all the calls.

    Args:
        each: lines that one call may take.
    """
    calls = len(operations)
    tally = Tally()
    elements = Elements(solution)
    quiet: list[Operation] = [
        (name, Counted(key, tally), *value) for name, key, *value in operations
    ]
    with solution.counting_lines() as lines, elements.counting():
        for name, *args in quiet:
            call = cache.call(name, *args)
            _ = call.value
    per = f"in {calls} calls on a full cache"
    solution.within(f"hashes and comparisons of keys {per}", tally.count, 24 * calls, call)
    solution.within(f"executed lines {per}", lines.count, each * calls, call)
    solution.within(f"elements searched or moved {per}", elements.count, 4 * calls, call)


@states("a call costs the same however full the cache is", "每次操作的代价与缓存大小无关")
def test_cost(solution: Solution) -> None:
    size = 400
    cache = solution.new("LRUCache", size)
    for key in range(size):
        _ = cache.call("put", key, key).value
    check_cost(solution, cache, mixed_operations(size), each=80)


@states(
    "memory is bounded by the capacity, not by the number of calls",
    "内存只取决于容量，与调用次数无关",
)
def test_memory(solution: Solution) -> None:
    cache = solution.new("LRUCache", 2)
    for key in range(4):
        _ = cache.call("put", key, key).value
    with solution.peak_memory() as peak:
        for step in range(1500):
            _ = cache.call("get", 2 + step % 2).value
            _ = cache.call("put", 2, step).value
            _ = cache.call("get", -1).value
        for step in range(1500):
            call = cache.call("put", step + 4, step)
    solution.within("bytes for 6,000 calls at capacity 2", peak.bytes, 24 << 10, call)


# ---- follow-up: expiry ----


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def replay_with_clock(
    solution: Solution, capacity: int, ttl_s: float, operations: Iterable[Operation]
) -> None:
    clock, model = Clock(), Model(capacity, ttl_s)
    cache = solution.new("TTLLRUCache", capacity, ttl_s, shown(clock, "lambda: now"))
    cache.history.insert(0, "now = 0.0")
    for name, *args in operations:
        if name == "wait":
            clock.now += args[0]
            cache.history.append(f"now = {clock.now}")
            continue
        call = cache.call(name, *args)
        expected = getattr(model, name)(*args, now=clock.now)
        if name == "get":
            call.equals(expected)
        else:
            _ = call.value


@follow_up("TTLLRUCache")
@states(
    "follow-up: an entry counts while less than ttl_s has passed since its put",
    "进阶：距 put 不足 ttl_s 秒的条目才有效",
)
def test_expiry(solution: Solution) -> None:
    replay_with_clock(solution, 2, 2.0, [("put", 1, 10), ("wait", 1.5), ("get", 1)])
    replay_with_clock(solution, 2, 2.0, [("put", 1, 10), ("wait", 2.0), ("get", 1), ("get", 1)])
    replay_with_clock(solution, 2, 0.25, [("put", 1, 10), ("get", 1), ("wait", 0.5), ("get", 1)])


@follow_up("TTLLRUCache")
@states("follow-up: put renews an entry, get does not", "进阶：put 会续期，get 不会")
def test_renewal(solution: Solution) -> None:
    first = [("put", 1, 10), ("wait", 1.5)]
    then = [("wait", 1.5), ("get", 1)]
    replay_with_clock(solution, 2, 2.0, [*first, ("get", 1), *then])
    replay_with_clock(solution, 2, 2.0, [*first, ("put", 1, 11), *then])
    replay_with_clock(solution, 2, 2.0, [*first, ("wait", 1.5), ("put", 1, 12), *then])
    # Key 1 was put first and renewed: now key 2 expires before it.
    renewed = [("put", 1, 10), ("wait", 0.5), ("put", 2, 20), ("wait", 0.5), ("put", 1, 11)]
    renewed += [("wait", 1.5)]
    replay_with_clock(solution, 2, 2.0, [*renewed, ("get", 2), ("get", 1)])


@follow_up("TTLLRUCache")
@states("follow-up: expired entries go before any other", "进阶：先清除过期条目，再淘汰有效条目")
def test_expired_go_first(solution: Solution) -> None:
    # Key 1 was used last, but it has expired: key 2 must stay.
    used_late = [("put", 1, 10), ("wait", 1.5), ("put", 2, 20), ("get", 1), ("wait", 0.5)]
    replay_with_clock(solution, 2, 2.0, [*used_late, ("put", 3, 30), ("get", 2), ("get", 3)])
    both = [("put", 1, 10), ("put", 2, 20), ("wait", 2.0), ("put", 3, 30), ("put", 4, 40)]
    replay_with_clock(solution, 2, 2.0, [*both, ("get", 3), ("get", 4), ("get", 1), ("get", 2)])


@follow_up("TTLLRUCache")
@states(
    "follow-up: with a clock that stands still it is an LRU cache",
    "进阶：时钟不动时就是普通 LRU 缓存",
)
@given(capacity=st.integers(1, 3), operations=OPERATIONS)
def test_standing_clock(solution: Solution, capacity: int, operations: list[Operation]) -> None:
    replay_with_clock(solution, capacity, 1.0, operations)


@follow_up("TTLLRUCache")
@states("follow-up: any calls at any times", "进阶：任意时刻的任意操作序列")
@given(
    capacity=st.integers(1, 3),
    ttl_s=st.sampled_from([0.5, 1.0, 2.0]),
    operations=sequences(GET, PUT, WAIT),
)
def test_any_times(
    solution: Solution, capacity: int, ttl_s: float, operations: list[Operation]
) -> None:
    replay_with_clock(solution, capacity, ttl_s, operations)


@follow_up("TTLLRUCache")
@states("follow-up: bad arguments raise ValueError", "进阶：参数非法时抛出 ValueError")
@pytest.mark.parametrize(("capacity", "ttl_s"), [(0, 1.0), (-1, 1.0), (1, 0.0), (1, -1.0)])
def test_ttl_is_checked(solution: Solution, capacity: int, ttl_s: float) -> None:
    clock = shown(Clock(), "lambda: 0.0")
    solution.call("TTLLRUCache", capacity, ttl_s, clock).raises(ValueError)


@follow_up("TTLLRUCache")
@states(
    "follow-up: a call costs the same however full the cache is, expiry included",
    "进阶：含过期处理在内，每次操作的均摊代价与缓存大小无关",
)
@pytest.mark.parametrize("expires", [False, True])
def test_cost_of_expiry(solution: Solution, expires: bool) -> None:
    size = 400
    clock = Clock()
    cache = solution.new("TTLLRUCache", size, 1.0, shown(clock, "lambda: now"))
    for key in range(size):
        _ = cache.call("put", key, key).value
    clock.now = 1.0 if expires else 0.5
    check_cost(solution, cache, mixed_operations(size), each=120)


# ---- follow-up: threads ----


class Key:
    """A key whose hash and comparison are steps at which another thread may run."""

    def __init__(self, number: int, step: Callable[[str], None]) -> None:
        self.number = number
        self.step = step

    def __hash__(self) -> int:
        self.step("as a key is hashed")
        return hash(self.number)

    def __eq__(self, other: object) -> bool:
        self.step("as keys are compared")
        return isinstance(other, Key) and self.number == other.number

    def __deepcopy__(self, memo: object) -> Key:
        return self

    def __repr__(self) -> str:
        return repr(self.number)


@dataclass
class Interleaving:
    """One call, before whose `at`-th step another thread makes a call of its own.

    A step is a line of the solution, or a hash or a comparison of a key. If the other thread
    waits for a lock, the first goes on, and the other ends after it.
    """

    file: str
    at: int
    other: Callable[[], Any]
    places: list[str] = field(default_factory=list)  # of the steps, as the failure shows them
    got: Any = None
    error: BaseException | None = None
    thread: threading.Thread | None = None

    BLOCKED_S = 0.003  # it waits for a lock, says the first; if it was only slow, no harm is done

    @contextmanager
    def running(self) -> Iterator[None]:
        before = sys.gettrace()
        self._first, self._is_running = threading.get_ident(), True
        sys.settrace(self._trace)
        try:
            yield
        finally:
            sys.settrace(before)
            self._is_running = False

    _first: int = 0
    _is_running: bool = False

    def step(self, place: str) -> None:
        if not self._is_running or threading.get_ident() != self._first:
            return
        self.places.append(place)
        if len(self.places) - 1 == self.at:
            self._run_other()

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename != self.file:
            return None
        if event == "line":
            self.step(f"before line {frame.f_lineno}")
        return self._trace

    def _run_other(self) -> None:
        begun, done = threading.Event(), threading.Event()

        def run() -> None:
            begun.set()
            try:
                self.got = self.other()
            except Exception as error:
                self.error = error
            done.set()

        self.thread = threading.Thread(target=run, daemon=True)
        self.thread.start()
        begun.wait(5.0)
        done.wait(self.BLOCKED_S)


@dataclass(frozen=True)
class Race:
    """Two calls at once on a cache that holds keys 1 to `capacity`, 1 used longest ago."""

    capacity: int
    first: Operation
    other: Operation

    def __str__(self) -> str:
        return f"{self.first[0]} {self.first[1]} and {self.other[0]} {self.other[1]}"

    def orders(self) -> list[list[Any]]:
        """What the two orders of the calls give: the first's result, the other's, the rest's."""
        results = []
        for is_swapped in (False, True):
            model = Model(self.capacity)
            for operation in self.before():
                apply(model, operation)
            calls = [self.first, self.other]
            pair = [apply(model, one) for one in (calls[::-1] if is_swapped else calls)]
            rest = [apply(model, one) for one in self.after()]
            results.append([*(pair[::-1] if is_swapped else pair), *rest])
        return results

    def before(self) -> list[Operation]:
        return [("put", key, 10 * key) for key in range(1, self.capacity + 1)]

    def after(self) -> list[Operation]:
        """Shows which keys are left, and by one more `put` which of them was used first."""
        looks = [("get", key) for key in range(1, self.capacity + 4)]
        return [("put", self.capacity + 3, 99), *looks]


def apply(model: Model, operation: Operation) -> Any:
    name, *args = operation
    return getattr(model, name)(*args)


RACES = [
    Race(1, ("get", 1), ("put", 2, 21)),
    Race(1, ("put", 2, 22), ("get", 1)),
    Race(1, ("put", 2, 22), ("put", 3, 33)),
    Race(2, ("get", 1), ("put", 3, 31)),
    Race(2, ("put", 3, 32), ("get", 1)),
    Race(2, ("put", 3, 32), ("put", 4, 44)),
    Race(2, ("put", 3, 32), ("put", 3, 33)),
    Race(2, ("put", 1, 12), ("put", 3, 31)),
    Race(2, ("get", 1), ("get", 2)),
]
MOST_STEPS = 300  # in which a call is interrupted


def run_race(solution: Solution, race: Race, at: int, place: str) -> list[str]:
    """Runs both calls with the switch before step `at`; the places of all steps of the first."""
    cache = solution.new("ThreadSafeLRUCache", race.capacity)
    other_name, *other_args = race.other
    text = f"{cache.variable}.{other_name}({', '.join(map(repr, other_args))})"

    def step(where: str) -> None:
        interleaving.step(where)

    def keyed(operation: Operation) -> Operation:
        name, number, *value = operation
        return (name, Key(number, step), *value)

    _, *other_keyed = keyed(race.other)
    method = getattr(cache.value, other_name, None)
    interleaving = Interleaving(solution.file, at, lambda: method(*other_keyed))
    for name, *args in map(keyed, race.before()):
        _ = cache.call(name, *args).value
    if place:
        cache.history.append(f"# the next call stops {place}, where another thread runs {text}")
    name, *args = keyed(race.first)
    with interleaving.running():
        call = cache.call(name, *args)
    results = [call.value]
    if interleaving.thread is not None:
        check_other(call, interleaving, text)
        results.append(interleaving.got)
        calls = [cache.call(name, *args) for name, *args in map(keyed, race.after())]
        results += [one.value for one in calls]
        check_results(calls[-1], results, race)
    return interleaving.places


def check_other(call: Call, interleaving: Interleaving, text: str) -> None:
    assert interleaving.thread is not None
    interleaving.thread.join(5.0)
    if interleaving.thread.is_alive():
        call.fail("both calls to end", f"{text} in the other thread never ended", "a deadlock?")
    if interleaving.error is not None:
        said = f"{type(interleaving.error).__name__}: {interleaving.error}"
        call.fail("no exception", f"{said} in the other thread, from {text}")


def check_results(call: Call, results: list[Any], race: Race) -> None:
    """Compares what the gets returned; what a put returns does not matter."""
    operations = [race.first, race.other, *race.after()]
    is_get = [operation[0] == "get" for operation in operations]

    def of_gets(values: list[Any]) -> list[Any]:
        return [value for value, counts in zip(values, is_get, strict=True) if counts]

    got, wanted = of_gets(results), [of_gets(order) for order in race.orders()]
    if not any(
        all(type(a) is type(b) and a == b for a, b in zip(got, order, strict=True))
        for order in wanted
    ):
        texts = sorted({paste(order) for order in wanted})
        gets = ", ".join(
            f"get({op[1]})" for op, counts in zip(operations, is_get, strict=True) if counts
        )
        call.fail(
            " or ".join(texts),
            f"{paste(got)} from {gets}",
            "these are the results of one call after the other, in either order",
        )


@follow_up("ThreadSafeLRUCache")
@states("follow-up: in one thread it is an LRU cache", "进阶：单线程下就是普通 LRU 缓存")
@given(capacity=st.integers(1, 3), operations=OPERATIONS)
def test_thread_safe_calls(solution: Solution, capacity: int, operations: list[Operation]) -> None:
    replay(solution.new("ThreadSafeLRUCache", capacity), Model(capacity), operations)


@follow_up("ThreadSafeLRUCache")
@states(
    "follow-up: its capacity is checked, and two share nothing", "进阶：检查容量；两个实例互不影响"
)
def test_thread_safe_instances(solution: Solution) -> None:
    solution.call("ThreadSafeLRUCache", 0).raises(ValueError)
    one, other = new_pair(solution, "ThreadSafeLRUCache", 1)
    replay(one, Model(1), [("put", 1, 10)])
    replay(other, Model(1), [("get", 1)])


@follow_up("ThreadSafeLRUCache")
@states(
    "follow-up: a call that another thread's call interrupts, wherever, is as if one came first",
    "进阶：一次调用无论在哪一步被另一线程的调用打断，结果都等同于先后执行",
)
@pytest.mark.parametrize("race", RACES, ids=str)
def test_interrupted_anywhere(solution: Solution, race: Race) -> None:
    places = run_race(solution, race, at=-1, place="")
    for at, place in enumerate(places[:MOST_STEPS]):
        run_race(solution, race, at, place)
