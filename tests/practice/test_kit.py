"""What graders are written with: when an answer counts as right, and how a failure is shown."""

from __future__ import annotations

import ast
import math
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.practice.counting import Counted, Tally, counting_lines, peak_memory
from infra_lab.practice.failures import Failure, SolutionError, SolutionStopped
from infra_lab.practice.kit import Solution, has_follow_up, paste, shown
from infra_lab.practice.loading import load_solution

SOURCE = """
class LRUCache:
    def __init__(self, capacity):
        self.capacity = capacity
        self.items = {}

    def put(self, key, value):
        self.items[key] = value

    def get(self, key):
        return self.items.get(key, -1)


def same(value, *rest, **named):
    return value


def spoil(values):
    values.append(7)
    return values


def spoil_array(values):
    values *= 2


def refuse(value):
    raise ValueError(f"no {value}\\nat all")


def leave(value):
    raise SystemExit(3)


def unsolved(value):
    raise NotImplementedError


def triangle(n):
    total = 0
    for i in range(n):
        total += i
    return total
"""


@pytest.fixture(scope="module")
def solution(tmp_path_factory: pytest.TempPathFactory) -> Solution:
    path = tmp_path_factory.mktemp("kit") / "solution.py"
    path.write_text(SOURCE)
    module = ModuleType("solution")
    module.__file__ = str(path)
    exec(compile(SOURCE, str(path), "exec"), vars(module))
    return Solution(module)


def failure_of(check: Callable[[], object]) -> Failure:
    with pytest.raises(SolutionError) as raised:
        check()
    return raised.value.failure


RIGHT: list[tuple[Any, Any]] = [
    (3, 3),
    (np.int64(3), 3),
    (np.uint8(3), 3),
    (3, np.int64(3)),
    (True, True),
    (np.True_, True),
    (np.False_, False),
    (0.5, 0.5),
    (1, 1.0),
    (np.float32(0.5), 0.5),
    (math.inf, math.inf),
    (math.nan, math.nan),
    ("a", "a"),
    (None, None),
    ([1, [2]], [1, [2]]),
    ([np.int64(1)], [1]),
    ((1, 2), (1, 2)),
    ({"a": [1]}, {"a": [1]}),
    ({1, 2}, {2, 1}),
    (np.array([1.0, np.nan]), np.array([1.0, np.nan])),
    (np.array([1, 2]), np.array([1, 2])),
    ([], []),
    (10**30, 10**30),
]
WRONG: list[tuple[Any, Any]] = [
    (4, 3),
    (3.0, 3),
    (np.float64(3), 3),
    (True, 1),
    (np.True_, 1),
    (False, 0),
    (1, True),
    (0, False),
    ("True", True),
    ("3", 3),
    (None, 0),
    (None, False),
    (None, []),
    (True, 1.0),
    (math.nan, 1.0),
    (1.0, math.nan),
    (-math.inf, math.inf),
    ((1, 2), [1, 2]),
    ([1, 2], (1, 2)),
    ([1, 2, 3], [1, 2]),
    ([1], [1, 2]),
    ([2, 1], [1, 2]),
    ([1.0], [1]),
    ([True], [1]),
    ({"a": 1, "b": 2}, {"a": 1}),
    ({"a": True}, {"a": 1}),
    ([1, 2], {1, 2}),
    (np.array([1, 2]), [1, 2]),
    ([1, 2], np.array([1, 2])),
    (np.array([1, 2, 3]), np.array([1, 2])),
    (np.array([[1, 2]]), np.array([1, 2])),
    (np.array([1.0, np.nan]), np.array([np.nan, np.nan])),
    (iter([1]), [1]),
    (float(10**17), 10**17),
    (b"a", "a"),
]


def named(case: object) -> str:
    """A test's name, the same in every process: without addresses."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(case))


@pytest.mark.parametrize(("got", "expected"), RIGHT, ids=map(named, RIGHT))
def test_equal_answers(solution: Solution, got: Any, expected: Any) -> None:
    solution.call("same", got).equals(expected)


@pytest.mark.parametrize(("got", "expected"), WRONG, ids=map(named, WRONG))
def test_unequal_answers(solution: Solution, got: Any, expected: Any) -> None:
    failure = failure_of(lambda: solution.call("same", got).equals(expected))
    assert failure.verdict == "wrong_answer"
    assert failure.expected == paste(expected)


def test_an_answer_whose_comparison_raises_is_wrong_and_no_fault_of_the_grader(
    solution: Solution,
) -> None:
    class Hostile(list):  # type: ignore[type-arg]
        def __len__(self) -> int:
            raise RuntimeError("no length")

        def __eq__(self, other: object) -> bool:
            raise RuntimeError("no comparison")

        def __repr__(self) -> str:
            raise RuntimeError("no text")

        __hash__ = None  # type: ignore[assignment]

    for expected in ([1], 1, 1.0, "a", None, np.array([1]), {1: 1}, True):
        failure = failure_of(lambda e=expected: solution.call("same", Hostile()).equals(e))  # type: ignore[misc]
        assert "whose repr raises RuntimeError" in failure.got


def test_a_none_is_explained_by_a_missing_return(solution: Solution) -> None:
    failure = failure_of(lambda: solution.call("same", None).equals(1))
    assert "return" in failure.note


def test_a_wrong_type_is_named(solution: Solution) -> None:
    failure = failure_of(lambda: solution.call("same", 3.0).equals(3))
    assert failure.note == "got a float, expected a int"


CLOSE: list[tuple[Any, Any]] = [
    ([1.0, 2.0], [1.0, 2.0]),
    ([1.0 + 1e-10], [1.0]),
    (np.array([1.0, np.inf, -np.inf]), [1.0, np.inf, -np.inf]),
    ([math.nan], [math.nan]),
    (np.float32(2), 2.0),
    (3, 3.0),
    ([[1, 2]], np.array([[1.0, 2.0]])),
]
FAR: list[tuple[Any, Any]] = [
    ([1.0 + 1e-6], [1.0]),
    ([math.nan], [1.0]),
    ([1.0], [math.nan]),
    ([math.inf], [1.0]),
    ([1.0], [math.inf]),
    ([-math.inf], [math.inf]),
    ([[1.0]], [1.0]),
    ([1.0, 2.0], [1.0]),
    (None, [1.0]),
    ("text", [1.0]),
    ([None], [1.0]),
    ([[1.0], [1.0, 2.0]], [[1.0], [1.0]]),
    ({}, 1.0),
]


@pytest.mark.parametrize(("got", "expected"), CLOSE, ids=map(named, CLOSE))
def test_close_answers(solution: Solution, got: Any, expected: Any) -> None:
    solution.call("same", got).close_to(expected)


@pytest.mark.parametrize(("got", "expected"), FAR, ids=map(named, FAR))
def test_answers_that_are_not_close(solution: Solution, got: Any, expected: Any) -> None:
    failure = failure_of(lambda: solution.call("same", got).close_to(expected, rtol=1e-9))
    assert failure.verdict == "wrong_answer"


def test_an_absolute_tolerance_is_for_zeros(solution: Solution) -> None:
    solution.call("same", [1e-12]).close_to([0.0], atol=1e-9)
    failure_of(lambda: solution.call("same", [1e-12]).close_to([0.0]))


def test_the_first_place_that_is_not_close_is_named(solution: Solution) -> None:
    got = np.array([[1.0, 2.0], [3.0, 5.0]])
    failure = failure_of(lambda: solution.call("same", got).close_to([[1.0, 2.0], [3.0, 4.0]]))
    assert "first at [1, 1]: 5.0 for 4.0" in failure.note


def test_an_expected_exception(solution: Solution) -> None:
    solution.call("refuse", 1).raises(ValueError)
    solution.call("refuse", 1).raises(KeyError, ValueError)


def test_no_exception_where_one_is_expected(solution: Solution) -> None:
    failure = failure_of(lambda: solution.call("same", 1).raises(ValueError))
    assert (failure.verdict, failure.got) == ("wrong_answer", "1")
    assert failure.expected == "ValueError to be raised"


def test_another_exception_than_the_expected_one(solution: Solution) -> None:
    failure = failure_of(lambda: solution.call("refuse", 1).raises(KeyError))
    assert failure.verdict == "crashed"
    assert failure.got == "ValueError: no 1"


def test_a_stub_is_unsolved_whatever_is_expected_of_it(solution: Solution) -> None:
    call = solution.call("unsolved", 1)
    for check in (
        lambda: call.equals(1),
        lambda: call.raises(RuntimeError),  # NotImplementedError is one
        lambda: call.close_to(1.0),
        lambda: call.of_type(int),
    ):
        assert failure_of(check).verdict == "unsolved"


def test_an_exit_stops_everything(solution: Solution) -> None:
    with pytest.raises(SolutionStopped) as stopped:
        solution.call("leave", 1)
    assert stopped.value.failure.verdict == "exited"
    assert stopped.value.failure.call == "leave(1)"


def test_a_crash_names_the_line_of_the_solution(solution: Solution) -> None:
    failure = failure_of(lambda: solution.call("refuse", 1).equals(1))
    raising = '    raise ValueError(f"no {value}\\nat all")'
    assert failure.line == SOURCE.splitlines().index(raising) + 1


def test_changed_arguments_are_noticed(solution: Solution) -> None:
    solution.call("same", [1, 2]).leaves_arguments_alone()
    failure = failure_of(lambda: solution.call("spoil", [1]).leaves_arguments_alone())
    assert failure.call == "spoil([1])"
    assert failure.expected == "the argument still to be [1]"
    assert failure.got == "it was changed to [1, 7]"


def test_a_changed_array_is_noticed_also_by_name(solution: Solution) -> None:
    array = np.array([1.0, 2.0])
    failure_of(lambda: solution.call("spoil_array", array).leaves_arguments_alone())
    failure_of(lambda: solution.call("spoil_array", values=array).leaves_arguments_alone())


def test_a_failure_shows_the_arguments_as_they_were_before_the_call(solution: Solution) -> None:
    failure = failure_of(lambda: solution.call("spoil", [1]).equals([1]))
    assert (failure.call, failure.got) == ("spoil([1])", "[1, 7]")


def test_an_argument_is_shown_as_the_code_that_builds_it(solution: Solution) -> None:
    failure = failure_of(lambda: solution.call("same", shown(object(), "build([1])")).equals(1))
    assert failure.call == "same(build([1]))"


def test_the_history_of_an_object_can_be_pasted_and_run(solution: Solution) -> None:
    cache = solution.new("LRUCache", capacity=2)
    cache.call("put", "a", np.array([1.5, np.nan, -np.inf]))
    cache.call("put", 2, {"b": (1, None)})
    failure = failure_of(lambda: cache.call("get", "no").equals(5))
    assert failure.call.splitlines()[0] == "lru_cache = LRUCache(capacity=2)"
    names: dict[str, Any] = {"np": np}
    exec(SOURCE, names)
    *statements, last = failure.call.splitlines()
    exec("\n".join(statements), names)
    assert eval(last, names) == -1
    np.testing.assert_array_equal(names["lru_cache"].items["a"], [1.5, np.nan, -np.inf])
    assert names["lru_cache"].items[2] == {"b": (1, None)}


def test_a_long_history_keeps_the_line_that_makes_the_object(solution: Solution) -> None:
    cache = solution.new("LRUCache", 2)
    for key in range(100):
        cache.call("put", key, key)
    lines = failure_of(lambda: cache.call("get", 0).equals(5)).call.splitlines()
    assert lines[0] == "lru_cache = LRUCache(2)"
    assert lines[1].startswith("# ")
    assert lines[-2:] == ["lru_cache.put(99, 99)", "lru_cache.get(0)"]
    assert len(lines) < 50


def test_a_missing_method_is_a_missing_entry_point(solution: Solution) -> None:
    cache = solution.new("LRUCache", 2)
    failure = failure_of(lambda: cache.call("peek", 1))
    assert failure.verdict == "missing_entry_point"
    assert "peek" in failure.expected


def test_two_objects_have_histories_of_their_own(solution: Solution) -> None:
    first, second = solution.new("LRUCache", 1), solution.new("LRUCache", 2)
    first.call("put", 1, 1)
    failure = failure_of(lambda: second.call("get", 1).equals(1))
    assert "put" not in failure.call


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.integers() | st.text(), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(value=values)
def test_a_pasted_value_is_that_value(value: Any) -> None:
    text = paste(value)
    ast.parse(text)
    if "..." not in text:
        assert repr(eval(text, {})) == repr(value)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (math.inf, "float('inf')"),
        (-math.inf, "-float('inf')"),
        (math.nan, "float('nan')"),
        ([math.inf, 1.5], "[float('inf'), 1.5]"),
        ((math.nan,), "(float('nan'),)"),
        ({-math.inf: {math.inf}}, "{-float('inf'): {float('inf')}}"),
        ([np.float64(math.inf), np.array([1, 2])], "[float('inf'), np.array([1, 2])]"),
        ([set(), {}, (), []], "[set(), {}, (), []]"),
        (10**500, f"int('1{'0' * 199}' + ... + '{'0' * 200}')"),
        (np.zeros((20, 50), np.int8), None),
        (np.arange(10**6), None),
        ([[1] * 100] * 100, None),
        (dict.fromkeys(range(1000), "x" * 1000), None),
        (set(range(1000)), None),
        (["x" * 5000], None),
        (("x" * 5000, b"x" * 5000), None),
    ],
    ids=str,
)
def test_a_value_is_shown_as_python(value: Any, text: str | None) -> None:
    assert text is None or paste(value) == text
    assert len(paste(value)) < 600
    ast.parse(paste(value))


def test_a_list_that_holds_itself_is_shown(solution: Solution) -> None:
    value: list[Any] = [1]
    value += [value, value]
    failure = failure_of(lambda: solution.call("same", value).equals(1))
    assert failure.call.startswith("same([1, [1, ")
    ast.parse(failure.call)


def test_a_list_nested_without_end_is_shown_as_python() -> None:
    value: list[Any] = []
    for _ in range(10_000):
        value = [value]
    assert paste(value).startswith("[[[")
    ast.parse(paste(value))


def test_a_call_with_long_arguments_is_python_and_tells_their_sizes(solution: Solution) -> None:
    values, text = list(range(1024)), "x" * 5000
    call = failure_of(lambda: solution.call("same", values, 256, key=text).equals(1)).call
    assert call.startswith("same([0, 1, 2, ")
    assert ", ..., " in call
    assert ", 1022, 1023], 256, key='xxx" in call
    assert call.endswith("xxx')  # list of 1,024 items; str of 5,000 characters")
    tree = ast.parse(call, mode="eval").body
    assert isinstance(tree, ast.Call)
    assert len(tree.args) == 2
    assert [word.arg for word in tree.keywords] == ["key"]


def test_a_long_array_is_shown_with_its_shape_and_type() -> None:
    text = paste(np.arange(600, dtype=np.int32).reshape(20, 30))
    assert text == "np.array([0, 1, 2, ..., 597, 598, 599], np.int32).reshape(20, 30)"


@given(
    st.lists(st.floats(width=32), max_size=8),
    st.sampled_from([np.float64, np.float32, np.int64, np.int8, np.bool_]),
    st.sampled_from([(-1,), (1, -1), (-1, 1)]),
)
def test_a_pasted_array_is_that_array(items: list[float], dtype: Any, shape: tuple[int]) -> None:
    with np.errstate(invalid="ignore"):
        array = np.array(items, np.float32).astype(dtype)
    if array.size:
        array = array.reshape(shape)
    again = eval(paste(array), {"np": np})
    assert (again.dtype, again.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(again, array)


def test_a_long_value_keeps_its_beginning_and_its_end() -> None:
    text = paste("x" * 10_000)
    assert len(text) < 500
    assert " ... " in text
    assert len(paste(list(range(10**6)))) < 500


@given(st.lists(st.integers(0, 50), min_size=1, max_size=30))
def test_counted_values_sort_as_plain_ones_and_count_each_comparison(items: list[int]) -> None:
    tally = Tally()
    assert [one.value for one in sorted(Counted(item, tally) for item in items)] == sorted(items)
    rounds = max(1, math.ceil(math.log2(len(items) + 1)))
    assert len(items) - 1 <= tally.count <= len(items) * rounds


def test_a_counted_key_counts_its_hash_and_equals_the_plain_value() -> None:
    tally = Tally()
    table = {Counted("a", tally): 1}
    assert tally.count == 1
    assert table[Counted("a", tally)] == 1
    assert tally.count >= 2
    assert Counted(3, tally) == 3
    assert -Counted(3, tally) == -3
    assert hash(Counted(3, tally)) == hash(3)


def test_lines_are_counted_a_loops_body_each_time_around(solution: Solution) -> None:
    counts = []
    for n in (10, 20):
        with solution.counting_lines() as lines:
            solution.call("triangle", n).equals(n * (n - 1) // 2)
        counts.append(lines.count)
    assert counts[1] - counts[0] == 2 * 10


def test_counting_lines_leaves_other_files_and_the_tracer_alone(solution: Solution) -> None:
    import sys

    before = sys.gettrace()
    with counting_lines("another_file.py") as lines:
        solution.call("triangle", 10)
    assert lines.count == 0
    assert sys.gettrace() is before


def test_peak_memory_sees_what_was_freed_again_and_arrays() -> None:
    with peak_memory() as peak:
        bytearray(3_000_000)
    assert 3_000_000 <= peak.bytes < 3_100_000
    with peak_memory() as peak:
        np.ones(1_000_000)
    assert 8_000_000 <= peak.bytes < 8_100_000


def test_a_budget_that_is_kept_is_reported_as_the_nearest_use(solution: Solution) -> None:
    call = solution.call("same", 1)
    for used in (3, 9, 5):
        solution.within("steps", used, 10, call)
    assert solution.budgets == {"steps": (9, 10)}
    solution.within("steps", 10, 10, call)


def test_a_budget_that_is_not_kept_fails_with_both_numbers(solution: Solution) -> None:
    call = solution.call("same", 1)
    failure = failure_of(lambda: solution.within("hash look-ups", 11_000, 10, call))
    assert failure.verdict == "over_budget"
    assert (failure.call, failure.got) == ("same(1)", "11,000 hash look-ups")
    assert failure.expected == "at most 10"


def test_a_follow_up_is_attempted_once_its_stub_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "solution.py"
    path.write_text(
        "def stub(x):\n    '''Words.'''\n    raise NotImplementedError\n\n"
        "def done(x):\n    return x\n\n"
        "class Stub:\n    def __init__(self):\n        raise NotImplementedError\n\n"
        "def commented(x):\n    # raise NotImplementedError\n    return x\n\n"
        "def partial(x):\n    if x:\n        raise NotImplementedError('later')\n    return x\n\n"
        "class Begun:\n    def get(self):\n        raise NotImplementedError\n\n"
        "    def put(self):\n        return 1\n"
    )
    module = load_solution(path)
    assert not has_follow_up(module, "stub")
    assert has_follow_up(module, "done")
    assert not has_follow_up(module, "absent")
    assert not has_follow_up(module, "Stub")
    assert all(has_follow_up(module, name) for name in ("commented", "partial", "Begun"))


def test_garbage_in_cycles_is_no_use_of_memory() -> None:
    """However long ago the process last looked for garbage."""

    class Node:
        def __init__(self) -> None:
            self.itself, self.load = self, bytearray(1000)

    with peak_memory() as peak:
        kept: list[Node] = []
        for _ in range(3000):
            kept.append(Node())  # they grow old before they go
            del kept[:-10]
    assert peak.bytes < 250_000
