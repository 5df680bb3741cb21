"""Grades grouped_query_attention_with_kv_cache against the whole sequence at once, computed by
loops without a cache; rotations are checked as products of complex numbers."""

from __future__ import annotations

import cmath
import math
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.practice.kit import Call, Instance, Solution, follow_up, paste, states

RTOL, ATOL = 1e-9, 1e-9
SMALL_NUMBERS = (0.0, 1.0, 2.0, -1.0, -2.0)  # simplest first: counterexamples shrink to zeros
Weights = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def rotate_by_complex(vector: list[float], position: int) -> list[float]:
    half = len(vector) // 2
    turned = [
        complex(vector[i], vector[i + half])
        * cmath.exp(1j * position * 10000.0 ** (-2 * i / len(vector)))
        for i in range(half)
    ]
    return [z.real for z in turned] + [z.imag for z in turned]


def attend_to_all(x: np.ndarray, weights: Weights, num_heads: int, num_kv_heads: int) -> np.ndarray:
    """The oracle: every token of the sequence at once, one number at a time."""
    w_q, w_k, w_v, w_o = weights
    head_dim = w_q.shape[1] // num_heads

    def cut(projected: np.ndarray, head: int) -> list[list[float]]:
        return projected[:, head * head_dim : (head + 1) * head_dim].tolist()

    joined = np.zeros((len(x), num_heads * head_dim))
    for head in range(num_heads):
        kv_head = head * num_kv_heads // num_heads
        q = [rotate_by_complex(row, p) for p, row in enumerate(cut(x @ w_q, head))]
        k = [rotate_by_complex(row, p) for p, row in enumerate(cut(x @ w_k, kv_head))]
        v = cut(x @ w_v, kv_head)
        for p in range(len(x)):
            scores = [
                math.fsum(a * b for a, b in zip(q[p], k[j], strict=True)) / math.sqrt(head_dim)
                for j in range(p + 1)
            ]
            shares = [math.exp(score - max(scores)) for score in scores]
            for c in range(head_dim):
                weighted = math.fsum(shares[j] * v[j][c] for j in range(p + 1))
                joined[p, head * head_dim + c] = weighted / math.fsum(shares)
    return joined @ w_o


def new(
    solution: Solution, weights: Weights, num_heads: int, num_kv_heads: int, max_length: int
) -> Instance:
    return solution.new("CachedAttention", *weights, num_heads, num_kv_heads, max_length)


def side_by_side(first: Instance, other: Instance) -> list[Instance]:
    """Both, with one history: a failure shows what was called on either, in order."""
    (line,) = other.history
    other.variable = "other"
    first.history.append(line.replace(first.variable, other.variable, 1))
    other.history = first.history
    return [first, other]


def matches(call: Call, expected: np.ndarray, note: str = "") -> None:
    call.of_type(np.ndarray, "an array")
    call.close_to(expected, RTOL, ATOL, note)
    call.leaves_arguments_alone()


@st.composite
def array(draw: st.DrawFn, *shape: int) -> np.ndarray:
    """Small whole numbers; drawn as bytes, for speed."""
    size = math.prod(shape)
    drawn = draw(st.binary(min_size=size, max_size=size))
    return np.array([SMALL_NUMBERS[byte % 5] for byte in drawn]).reshape(shape)


@st.composite
def layers(draw: st.DrawFn) -> tuple[Weights, int, int]:
    """(weights, num_heads, num_kv_heads), small."""
    d_model, head_dim = draw(st.integers(1, 2)), draw(st.sampled_from([2, 4]))
    num_kv_heads, group = draw(st.integers(1, 2)), draw(st.integers(1, 2))
    num_heads = num_kv_heads * group
    queries, keys = num_heads * head_dim, num_kv_heads * head_dim
    shapes = ((d_model, queries), (d_model, keys), (d_model, keys), (queries, d_model))
    weights = tuple(draw(array(*shape)) for shape in shapes)
    return weights, num_heads, num_kv_heads  # type: ignore[return-value]


def random_layer(seed: int, d_model: int, num_heads: int, num_kv_heads: int, dim: int) -> Weights:
    rng = np.random.default_rng(seed)
    queries, keys = num_heads * dim, num_kv_heads * dim
    shapes = ((d_model, queries), (d_model, keys), (d_model, keys), (queries, d_model))
    return tuple(rng.normal(size=shape) for shape in shapes)  # type: ignore[return-value]


def plain_layer(num_heads: int, num_kv_heads: int) -> Weights:
    """All scores are 0, so that a query takes the mean of the values that it sees."""
    queries, keys = 2 * num_heads, 2 * num_kv_heads
    return np.zeros((keys, queries)), np.zeros((keys, keys)), np.eye(keys), np.eye(queries, keys)


# ---- by hand ----


@states("neighbouring query heads share a KV head", "相邻的 query 头共用一个 KV 头")
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads", "expected"),
    [
        (1, 1, [1.0, 2.0]),
        (2, 2, [1.0, 2.0, 3.0, 4.0]),
        (2, 1, [1.0, 2.0, 1.0, 2.0]),
        (4, 2, [1.0, 2.0, 1.0, 2.0, 3.0, 4.0, 3.0, 4.0]),
        (6, 2, [1.0, 2.0] * 3 + [3.0, 4.0] * 3),
        (6, 3, [1.0, 2.0] * 2 + [3.0, 4.0] * 2 + [5.0, 6.0] * 2),
    ],
)
def test_groups(
    solution: Solution, num_heads: int, num_kv_heads: int, expected: list[float]
) -> None:
    # One token attends to itself: its values come out, once for each query head.
    x = np.arange(1.0, 2 * num_kv_heads + 1)[None]
    w_v = np.eye(2 * num_kv_heads)
    w_q = np.ones((2 * num_kv_heads, 2 * num_heads))
    for head in range(num_heads):  # w_o lets one head through at a time
        w_o = np.zeros((2 * num_heads, 2 * num_kv_heads))
        w_o[2 * head : 2 * head + 2, :2] = np.eye(2)
        attention = new(solution, (w_q, w_v, w_v, w_o), num_heads, num_kv_heads, 1)
        wanted = np.zeros((1, 2 * num_kv_heads))
        wanted[0, :2] = expected[2 * head : 2 * head + 2]
        matches(attention.call("forward", x), wanted, f"w_o lets only head {head} through")


@states(
    "a chunk after others sees all earlier tokens, and its own causally",
    "后来的分块能看到之前的全部 token，块内仍是因果的",
)
@pytest.mark.parametrize("chunks", [[4], [1, 1, 1, 1], [2, 2], [1, 3], [3, 1], [1, 2, 1]])
def test_prefix_means(solution: Solution, chunks: list[int]) -> None:
    x = np.array([[4.0, 0.0], [0.0, 8.0], [2.0, 1.0], [-2.0, -1.0]])
    means = np.array([[4.0, 0.0], [2.0, 4.0], [2.0, 3.0], [1.0, 2.0]])
    attention = new(solution, plain_layer(1, 1), 1, 1, 4)
    start = 0
    for size in chunks:
        call = attention.call("forward", x[start : start + size])
        matches(call, means[start : start + size])
        start += size
        attention.call("length").equals(start)


@states("positions go on from call to call", "位置编号跨调用延续")
def test_positions(solution: Solution) -> None:
    # Keys are all [1, 0], and a query [9, 0]: what tells tokens apart is how far back they are.
    one = np.array([[1.0, 0.0], [0.0, 0.0]])
    weights = (9.0 * one, one, np.array([[0.0, 0.0], [1.0, 0.0]]), np.eye(2))
    x = np.array([[1.0, 0.0], [1.0, 10.0], [1.0, 20.0]])
    expected = attend_to_all(x, weights, 1, 1)
    for chunks in ([3], [2, 1], [1, 1, 1]):
        attention = new(solution, weights, 1, 1, 3)
        start = 0
        for size in chunks:
            call = attention.call("forward", x[start : start + size])
            matches(call, expected[start : start + size])
            start += size


@states("the scale is sqrt(head_dim)", "缩放因子是 sqrt(head_dim)")
@pytest.mark.parametrize("head_dim", [2, 4, 6])
def test_scale(solution: Solution, head_dim: int) -> None:
    weights = random_layer(head_dim, 3, 2, 1, head_dim)
    x = np.random.default_rng(1).normal(size=(3, 3))
    attention = new(solution, weights, 2, 1, 3)
    matches(attention.call("forward", x), attend_to_all(x, weights, 2, 1))


@states("large scores do not overflow", "分数很大时不溢出")
def test_large_scores(solution: Solution) -> None:
    weights = (np.eye(2) * 1e3, np.eye(2) * 1e3, np.eye(2), np.eye(2))
    x = np.array([[1.0, 2.0], [2.0, -1.0], [3.0, 0.5]])
    attention = new(solution, weights, 1, 1, 3)
    expected = attend_to_all(x, weights, 1, 1)
    matches(attention.call("forward", x[:2]), expected[:2])
    matches(attention.call("forward", x[2:]), expected[2:])


@states("a call without tokens changes nothing", "没有新 token 的调用不改变任何东西")
def test_no_tokens(solution: Solution) -> None:
    attention = new(solution, plain_layer(2, 2), 2, 2, 2)
    attention.call("length").equals(0)
    matches(attention.call("forward", np.zeros((0, 4))), np.zeros((0, 4)))
    x = np.array([[1.0, 2.0, 3.0, 4.0], [3.0, 2.0, 1.0, 0.0]])
    matches(attention.call("forward", x[:1]), x[:1])
    matches(attention.call("forward", np.zeros((0, 4))), np.zeros((0, 4)))
    attention.call("length").equals(1)
    matches(attention.call("forward", x[1:]), x.mean(axis=0, keepdims=True))


@states(
    "max_length tokens fit, one more is refused and changes nothing",
    "正好 max_length 个放得下；多一个则抛 ValueError 且状态不变",
)
def test_max_length(solution: Solution) -> None:
    x = np.array([[4.0, 0.0], [0.0, 8.0], [2.0, 1.0]])
    attention = new(solution, plain_layer(1, 1), 1, 1, 3)
    attention.call("forward", np.ones((4, 2))).raises(ValueError)
    attention.call("length").equals(0)
    matches(attention.call("forward", x[:2]), np.array([[4.0, 0.0], [2.0, 4.0]]))
    attention.call("forward", np.full((2, 2), 100.0)).raises(ValueError)
    attention.call("length").equals(2)
    matches(attention.call("forward", x[2:]), np.array([[2.0, 3.0]]))
    attention.call("forward", x[:1]).raises(ValueError)
    attention.call("length").equals(3)


@states("truncated tokens are as if they had never been", "被截掉的 token 如同从未出现")
def test_truncate(solution: Solution) -> None:
    x = np.array([[4.0, 0.0], [0.0, 8.0], [2.0, 1.0]])
    attention = new(solution, plain_layer(1, 1), 1, 1, 3)
    _ = attention.call("forward", np.array([[4.0, 0.0], [50.0, 50.0], [70.0, 70.0]])).value
    attention.call("truncate", 1).equals(None)
    attention.call("length").equals(1)
    matches(attention.call("forward", x[1:]), np.array([[2.0, 4.0], [2.0, 3.0]]))
    attention.call("truncate", 3).equals(None)
    attention.call("length").equals(3)
    attention.call("truncate", 0).equals(None)
    matches(attention.call("forward", x[1:2]), x[1:2])
    for refused in (2, -1):
        attention.call("truncate", refused).raises(ValueError)
    attention.call("length").equals(1)


@states("long sequences are truncated, too", "较长的序列同样可以截断")
@pytest.mark.parametrize("kept", [0, 3, 16, 17, 39])
def test_truncate_long(solution: Solution, kept: int) -> None:
    weights = random_layer(17, 2, 2, 1, 2)
    first, second = np.random.default_rng(17).normal(size=(2, 40, 2))
    attention = new(solution, weights, 2, 1, 64)
    matches(attention.call("forward", first), attend_to_all(first, weights, 2, 1))
    attention.call("truncate", kept).equals(None)
    attention.call("length").equals(kept)
    held = np.concatenate([first[:kept], second[:24]])
    expected = attend_to_all(held, weights, 2, 1)[kept:]
    matches(attention.call("forward", second[:1]), expected[:1])
    matches(attention.call("forward", second[1:24]), expected[1:])


@states("heads that cannot be grouped evenly are refused", "头数不能整除分组时抛 ValueError")
@pytest.mark.parametrize(
    ("num_heads", "num_kv_heads"),
    [(3, 2), (2, 4), (4, 3), (2, 0), (2, -1), (0, 1), (-2, 1), (-2, -1), (0, 0)],
)
def test_heads_refused(solution: Solution, num_heads: int, num_kv_heads: int) -> None:
    queries, keys = 2 * max(num_heads, 1), 2 * max(num_kv_heads, 1)
    weights = np.ones((2, queries)), np.ones((2, keys)), np.ones((2, keys)), np.ones((queries, 2))
    call = solution.call("CachedAttention", *weights, num_heads, num_kv_heads, max_length=4)
    call.raises(ValueError)


# ---- in general ----


@states(
    "any split into chunks equals the whole sequence at once",
    "无论怎样分块，都与整个序列一次算完一致",
)
@given(layer=layers(), sizes=st.lists(st.integers(0, 3), min_size=1, max_size=3), data=st.data())
def test_chunks(
    solution: Solution, layer: tuple[Weights, int, int], sizes: list[int], data: st.DataObject
) -> None:
    weights, num_heads, num_kv_heads = layer
    x = data.draw(array(sum(sizes), len(weights[0])), label="x")
    expected = attend_to_all(x, *layer)
    attention = new(solution, weights, num_heads, num_kv_heads, max(1, len(x)))
    start = 0
    for size in sizes:
        call = attention.call("forward", x[start : start + size])
        matches(call, expected[start : start + size])
        start += size


@states("other shapes and real numbers do, too", "其他形状与实数输入同样一致")
@pytest.mark.parametrize(
    ("d_model", "num_heads", "num_kv_heads", "head_dim"),
    [(5, 4, 4, 2), (3, 4, 1, 4), (8, 6, 2, 2), (4, 2, 2, 6), (1, 8, 4, 2)],
)
@pytest.mark.parametrize("sizes", [[9], [5, 3, 1], [1] * 9])
def test_shapes(
    solution: Solution,
    d_model: int,
    num_heads: int,
    num_kv_heads: int,
    head_dim: int,
    sizes: list[int],
) -> None:
    weights = random_layer(d_model, d_model, num_heads, num_kv_heads, head_dim)
    x = np.random.default_rng(7).normal(size=(sum(sizes), d_model))
    expected = attend_to_all(x, weights, num_heads, num_kv_heads)
    attention = new(solution, weights, num_heads, num_kv_heads, 20)
    start = 0
    for size in sizes:
        call = attention.call("forward", x[start : start + size])
        matches(call, expected[start : start + size])
        start += size


steps = st.tuples(
    st.integers(0, 1),  # which of two instances
    st.one_of(
        st.tuples(st.just("forward"), st.integers(0, 3)),
        st.tuples(st.just("truncate"), st.integers(0, 4)),
    ),
)


@states("two caches used in turn keep apart", "两个实例交替使用，互不影响")
@given(todo=st.lists(steps, min_size=1, max_size=6), data=st.data())
def test_two_instances(
    solution: Solution, todo: list[tuple[int, tuple[str, int]]], data: st.DataObject
) -> None:
    max_length = 4
    weights = (
        np.array([[1.0, 0.0, 0.0, 2.0]]),
        np.array([[1.0, 1.0]]),
        np.array([[1.0, -1.0]]),
        np.array([[1.0], [2.0], [4.0], [3.0]]),
    )
    instances = side_by_side(*(new(solution, weights, 2, 1, max_length) for _ in range(2)))
    held = [np.zeros((0, 1)), np.zeros((0, 1))]
    for which, (name, number) in todo:
        attention, tokens = instances[which], held[which]
        if name == "truncate":
            call = attention.call("truncate", number)
            if number > len(tokens):
                call.raises(ValueError)
            else:
                call.equals(None)
                held[which] = tokens[:number]
        else:
            x = data.draw(array(number, 1), label="x")
            call = attention.call("forward", x)
            if len(tokens) + number > max_length:
                call.raises(ValueError)
            else:
                held[which] = np.concatenate([tokens, x])
                matches(call, attend_to_all(held[which], weights, 2, 1)[len(tokens) :])
        attention.call("length").equals(len(held[which]))


@states(
    "keys and values are computed once, when their token arrives",
    "K 与 V 只在 token 到来时计算一次",
)
def test_computed_once(solution: Solution) -> None:
    # The last token does not use the first row of the weights, which is changed before it comes:
    # only who computes the earlier keys or values again can see that.
    weights = random_layer(11, 2, 2, 1, 2)
    x = np.array([[1.0, 0.5], [-1.0, 2.0], [0.0, 1.0]])
    expected = attend_to_all(x, weights, 2, 1)
    attention = new(solution, weights, 2, 1, 3)
    matches(attention.call("forward", x[:2]), expected[:2])
    weights[1][0] += 3.0
    weights[2][0] -= 5.0
    note = "w_k[0] += 3 and w_v[0] -= 5 came before this call, whose token does not use them"
    matches(attention.call("forward", x[2:]), expected[2:], note)


@states("the weights are not changed", "不修改权重")
def test_weights_unchanged(solution: Solution) -> None:
    weights = random_layer(13, 3, 4, 2, 2)
    made = solution.call("CachedAttention", *weights, 4, 2, max_length=4)
    made.leaves_arguments_alone()
    before = [one.copy() for one in weights]
    attention = new(solution, weights, 4, 2, 4)
    call = attention.call("forward", np.random.default_rng(13).normal(size=(3, 3)))
    _ = call.value
    for name, one, wanted in zip(("w_q", "w_k", "w_v", "w_o"), weights, before, strict=True):
        if not np.array_equal(one, wanted):
            call.fail(f"{name} still to be {paste(wanted)}", f"it was changed to {paste(one)}")


@states("the cache holds num_kv_heads heads, not num_heads", "缓存里只有 num_kv_heads 个头")
def test_cache_size(solution: Solution) -> None:
    tokens, num_heads, head_dim = 128, 8, 64
    weights = random_layer(2, 4, num_heads, 1, head_dim)
    x = np.random.default_rng(2).normal(size=(tokens, 4))
    with solution.peak_memory():
        before, _ = tracemalloc.get_traced_memory()
        attention = new(solution, weights, num_heads, 1, tokens)
        for start in range(0, tokens, 8):
            call = attention.call("forward", x[start : start + 8])
            _ = call.value
        after, _ = tracemalloc.get_traced_memory()
    attention.call("length").equals(tokens)
    keys_and_values = 2 * tokens * head_dim * 8
    solution.within("bytes kept", after - before, 2 * keys_and_values + (64 << 10), call)


# ---- the follow-up ----


def cache_holds(cache: Instance, keys: np.ndarray, values: np.ndarray) -> None:
    for name, wanted in (("keys", keys), ("values", values)):
        call = cache.call(name)
        call.of_type(np.ndarray, "an array")
        call.close_to(wanted, 0.0, 0.0)


@follow_up("GrowingCache")
@states("follow-up: what is appended can be read, in order", "进阶：追加的内容按顺序可读")
@given(
    heads=st.integers(1, 2),
    head_dim=st.integers(1, 2),
    appends=st.lists(st.tuples(st.integers(0, 1), st.integers(0, 7)), min_size=1, max_size=5),
)
def test_growing_contents(
    solution: Solution, heads: int, head_dim: int, appends: list[tuple[int, int]]
) -> None:
    made = (solution.new("GrowingCache", heads, head_dim) for _ in range(2))
    caches = side_by_side(*made)
    held: list[Any] = [[np.zeros((heads, 0, head_dim))] * 2 for _ in range(2)]
    cache_holds(caches[0], *held[0])
    count = 0
    for which, new_tokens in appends:
        size = heads * new_tokens * head_dim
        k = np.arange(1.0 + count, 1 + count + size).reshape(heads, new_tokens, head_dim)
        count += size
        caches[which].call("append", k, -k).leaves_arguments_alone().equals(None)
        keys, values = held[which]
        held[which] = [np.concatenate([keys, k], axis=1), np.concatenate([values, -k], axis=1)]
        k += 1000.0  # the caller's array is the caller's again
        for cache, wanted in zip(caches, held, strict=True):
            cache_holds(cache, *wanted)


@follow_up("GrowingCache")
@states("follow-up: what was read before stays as it was", "进阶：之前读出的内容不会改变")
def test_growing_views(solution: Solution) -> None:
    cache = solution.new("GrowingCache", 1, 1)
    seen = []
    for token in range(20):
        call = cache.call("append", np.full((1, 1, 1), float(token)), np.zeros((1, 1, 1)))
        _ = call.value
        seen.append((token + 1, cache.call("keys")))
    for count, call in seen:
        call.of_type(np.ndarray, "an array")
        call.close_to(np.arange(float(count)).reshape(1, count, 1), 0.0, 0.0)


@follow_up("GrowingCache")
@states(
    "follow-up: n tokens move the buffer O(log n) times",
    "进阶：追加 n 个 token 只搬动缓冲区 O(log n) 次",
)
def test_growing_moves(solution: Solution) -> None:
    tokens = 2048
    cache = solution.new("GrowingCache", 1, 1)
    one = np.ones((1, 1, 1))
    # The arrays are kept alive, so that their address is not given to others.
    before: dict[str, Any] = {}
    moves = {"keys": 0, "values": 0}
    for _ in range(tokens):
        _ = cache.call("append", one, one).value
        for name in moves:
            call = cache.call(name)
            got = call.of_type(np.ndarray, "an array")
            moves[name] += name not in before or address_of(got) != address_of(before[name])
            before[name] = got
    if before["values"].shape != (1, tokens, 1):
        call.fail(f"an array of shape {(1, tokens, 1)}", f"one of shape {before['values'].shape}")
    budget = 2 * int(math.log2(tokens)) + 4
    solution.within("places in memory", max(moves.values()), budget, call)


def address_of(array: np.ndarray) -> int:
    address: int = array.__array_interface__["data"][0]
    return address


@follow_up("GrowingCache")
@states("follow-up: at most three times what it holds is kept", "进阶：占用不超过所存内容的三倍")
def test_growing_size(solution: Solution) -> None:
    heads, head_dim, tokens = 2, 32, 264
    one = np.ones((heads, 1, head_dim))
    with solution.peak_memory():
        before, _ = tracemalloc.get_traced_memory()
        cache = solution.new("GrowingCache", heads, head_dim)
        for _ in range(tokens):
            call = cache.call("append", one, one)
            _ = call.value
        after, _ = tracemalloc.get_traced_memory()
    call = cache.call("keys")
    if call.array((heads, tokens, head_dim)).sum() != heads * tokens * head_dim:
        call.fail("ones only", paste(call.value))
    held = 2 * heads * tokens * head_dim * 8
    solution.within("bytes kept", after - before, 3 * held + (64 << 10), call)
