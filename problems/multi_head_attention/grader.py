"""Grades multi_head_attention against loops over sequences, heads, queries and keys, in Python
floats; the follow-up against derivatives by a complex step."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.practice.kit import Call, Solution, follow_up, paste, states

RTOL, ATOL = 1e-9, 1e-9
IDENTITY = np.eye(2)
SMALL_NUMBERS = (0.0, 1.0, 2.0, -1.0, -2.0)  # simplest first: counterexamples shrink to zeros


def attend_by_loops(
    x: np.ndarray,
    weights: tuple[np.ndarray, ...],
    num_heads: int,
    causal: bool = False,
    padding_mask: np.ndarray | None = None,
) -> np.ndarray:
    """The oracle: the definition, one number at a time."""
    w_q, w_k, w_v, w_o = weights
    batch, length, d_model = x.shape
    head_dim = d_model // num_heads
    output = np.zeros(x.shape)
    for b in range(batch):
        q, k, v = ((x[b] @ w).tolist() for w in (w_q, w_k, w_v))
        for i in range(length):
            keys = [
                j
                for j in range(length)
                if not (causal and j > i) and (padding_mask is None or padding_mask[b, j])
            ]
            joined = [0.0] * d_model
            for h in range(num_heads if keys else 0):
                columns = range(h * head_dim, (h + 1) * head_dim)
                scores = [
                    math.fsum(q[i][c] * k[j][c] for c in columns) / math.sqrt(head_dim)
                    for j in keys
                ]
                shares = [math.exp(score - max(scores)) for score in scores]
                for c in columns:
                    joined[c] = math.fsum(
                        share * v[j][c] for share, j in zip(shares, keys, strict=True)
                    ) / math.fsum(shares)
            output[b, i] = np.array(joined) @ w_o
    return output


def call(solution: Solution, *args: Any, **kwargs: Any) -> Call:
    """Calls it with NumPy told to raise where an invalid value is computed."""
    with np.errstate(invalid="raise", divide="raise"):
        return solution.call("multi_head_attention", *args, **kwargs)


def matches(made: Call, expected: np.ndarray) -> None:
    made.of_type(np.ndarray, "an array")
    made.close_to(expected, RTOL, ATOL)
    made.leaves_arguments_alone()


@st.composite
def array(draw: st.DrawFn, *shape: int) -> np.ndarray:
    """Small whole numbers; drawn as bytes, for speed."""
    size = math.prod(shape)
    drawn = draw(st.binary(min_size=size, max_size=size))
    return np.array([SMALL_NUMBERS[byte % 5] for byte in drawn]).reshape(shape)


@st.composite
def problem(draw: st.DrawFn) -> tuple[np.ndarray, tuple[np.ndarray, ...], int]:
    """(x, weights, num_heads), small."""
    batch, length = draw(st.integers(1, 2)), draw(st.integers(1, 4))
    num_heads, head_dim = draw(st.integers(1, 3)), draw(st.integers(1, 2))
    d_model = num_heads * head_dim
    weights = tuple(draw(array(d_model, d_model)) for _ in range(4))
    return draw(array(batch, length, d_model)), weights, num_heads


def random_problem(
    seed: int, batch: int, length: int, d_model: int
) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
    rng = np.random.default_rng(seed)
    weights = tuple(rng.normal(size=(d_model, d_model)) / math.sqrt(d_model) for _ in range(4))
    return rng.normal(size=(batch, length, d_model)), weights


# ---- by hand ----


@states("one token attends to itself", "只有一个 token 时，它只注意自己")
def test_one_token(solution: Solution) -> None:
    x = np.array([[[1.0, 2.0]]])
    w_v, w_o = np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([[1.0, 0.0], [5.0, 1.0]])
    for num_heads in (1, 2):
        matches(call(solution, x, IDENTITY, IDENTITY, w_v, w_o, num_heads), x @ w_v @ w_o)


@states(
    "the weights are a softmax over keys, scaled by sqrt(head_dim)",
    "权重是对 key 做 softmax，缩放因子是 sqrt(head_dim)",
)
def test_scale(solution: Solution) -> None:
    # The scores of the second query are 0 and head_dim log(3): its weights tell the scale.
    for head_dim in (1, 2, 4):
        x = np.zeros((1, 2, head_dim))
        x[0, 1] = math.sqrt(math.log(3))
        identity = np.eye(head_dim)
        share = 1 / (1 + math.exp(-math.log(3) * math.sqrt(head_dim)))
        expected = np.stack([x[0, 1] / 2, x[0, 1] * share])[None]
        matches(call(solution, x, *[identity] * 4, 1), expected)


@states("head h owns the h-th run of head_dim columns", "第 h 个头拥有第 h 段连续的 head_dim 列")
def test_head_columns(solution: Solution) -> None:
    # Only the first half of the columns tells keys apart: the second head must take the mean.
    x = np.array([[[9.0, 0.0, 1.0, 0.0], [0.0, 9.0, 0.0, 1.0]]])
    to_scores = np.diag([3.0, 3.0, 0.0, 0.0])
    matches(
        call(solution, x, to_scores, to_scores, np.eye(4), np.eye(4), 2),
        attend_by_loops(x, (to_scores, to_scores, np.eye(4), np.eye(4)), 2),
    )


@states(
    "causal: a query sees its own position and those before", "因果：query 只看自己与之前的位置"
)
def test_causal(solution: Solution) -> None:
    # Scores are all 0: each output is the mean of the values that are seen.
    x = np.array([[[6.0, 0.0], [0.0, 6.0], [3.0, 3.0]]])
    zero = np.zeros((2, 2))
    seen = np.array([[[6.0, 0.0], [3.0, 3.0], [3.0, 3.0]]])
    matches(call(solution, x, zero, zero, IDENTITY, IDENTITY, 1, causal=True), seen)
    everything = np.full((1, 3, 2), 3.0)
    matches(call(solution, x, zero, zero, IDENTITY, IDENTITY, 1, causal=False), everything)
    matches(call(solution, x, zero, zero, IDENTITY, IDENTITY, 1), everything)


@states(
    "padding: a key marked False is attended to by nobody, and each sequence has its own marks",
    "padding：标为 False 的 key 谁也不看，各序列用各自的标记",
)
def test_padding(solution: Solution) -> None:
    x = np.array([[[6.0], [0.0], [3.0]], [[6.0], [0.0], [3.0]]])
    zero, one = np.zeros((1, 1)), np.eye(1)
    mask = np.array([[True, True, False], [False, True, True]])
    expected = np.array([[[3.0]] * 3, [[1.5]] * 3])
    matches(call(solution, x, zero, zero, one, one, 1, padding_mask=mask), expected)
    both = call(solution, x, zero, zero, one, one, 1, causal=True, padding_mask=mask)
    matches(both, np.array([[[6.0], [3.0], [3.0]], [[0.0], [0.0], [1.5]]]))


@states(
    "a query that may attend to nothing gets zeros, without NaN",
    "没有可看的 key 时得到 0，不出 NaN",
)
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("num_heads", [1, 2])
def test_nothing_to_attend(solution: Solution, causal: bool, num_heads: int) -> None:
    x = np.array([[[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0], [3.0, 4.0]]])
    weights = (IDENTITY,) * 4
    for mask in (
        np.array([[False, False], [True, True]]),
        np.array([[False, True], [True, False]]),
        np.zeros((2, 2), dtype=bool),
    ):
        made = call(solution, x, *weights, num_heads, causal, mask)
        matches(made, attend_by_loops(x, weights, num_heads, causal, mask))


@states("large scores do not overflow", "分数很大时不溢出")
@pytest.mark.parametrize("size", [40.0, 1e3, 1e100])
def test_large_scores(solution: Solution, size: float) -> None:
    x = np.array([[[size, 0.0], [0.0, size / 2]]])  # each row has its own maximum
    for causal in (False, True):
        made = call(solution, x, *[IDENTITY] * 4, 1, causal)
        made.of_type(np.ndarray, "an array")
        made.close_to(x, RTOL, ATOL, "each token's score with itself is far above the other")
    ahead = np.array([[[1.0], [size]]])  # the score that is masked is far above the one that is not
    matches(call(solution, ahead, *[np.eye(1)] * 4, 1, True), ahead)


@states("scores far below zero are a softmax too", "分数远小于 0 时仍是正确的 softmax")
def test_very_negative_scores(solution: Solution) -> None:
    # A mask by a "large negative number" would weigh as much as these.
    x = np.array([[[1.0, 4.0], [1.0, 8.0]]])
    w_q, w_k = np.diag([-1e12, 0.0]), np.diag([1.0, 0.0])
    for causal, expected in (
        (False, [[[1.0, 6.0], [1.0, 6.0]]]),
        (True, [[[1.0, 4.0], [1.0, 6.0]]]),
    ):
        made = call(solution, x, w_q, w_k, IDENTITY, IDENTITY, 1, causal)
        matches(made, np.array(expected))
    made = call(solution, x, w_q, w_k, IDENTITY, IDENTITY, 1, False, np.array([[True, False]]))
    matches(made, np.array([[[1.0, 4.0], [1.0, 4.0]]]))


# ---- in general ----


@states("the result agrees with loops over heads and positions", "结果与逐头逐位置的循环一致")
@given(made=problem())
def test_without_masks(
    solution: Solution, made: tuple[np.ndarray, tuple[np.ndarray, ...], int]
) -> None:
    x, weights, num_heads = made
    matches(call(solution, x, *weights, num_heads), attend_by_loops(x, weights, num_heads))


@states("both masks together agree with the loops", "两种掩码叠加时与循环一致")
@given(made=problem(), causal=st.booleans(), data=st.data())
def test_with_masks(
    solution: Solution,
    made: tuple[np.ndarray, tuple[np.ndarray, ...], int],
    causal: bool,
    data: st.DataObject,
) -> None:
    x, weights, num_heads = made
    tokens = x.shape[0] * x.shape[1]
    marks = data.draw(st.lists(st.booleans(), min_size=tokens, max_size=tokens), label="mask")
    mask = np.array(marks, dtype=bool).reshape(x.shape[:2])
    result = call(solution, x, *weights, num_heads, causal=causal, padding_mask=mask)
    matches(result, attend_by_loops(x, weights, num_heads, causal, mask))


@states("other shapes and real numbers agree with the loops", "其他形状与实数输入也与循环一致")
@pytest.mark.parametrize(
    ("batch", "length", "d_model", "num_heads"),
    [(1, 5, 6, 2), (3, 4, 8, 4), (2, 7, 6, 6), (2, 2, 9, 3), (4, 3, 4, 1), (2, 12, 4, 2)],
)
def test_shapes(solution: Solution, batch: int, length: int, d_model: int, num_heads: int) -> None:
    x, weights = random_problem(d_model, batch, length, d_model)
    mask = np.random.default_rng(length).random((batch, length)) < 0.7
    for causal, padding_mask in ((False, None), (True, None), (False, mask), (True, mask)):
        result = call(solution, x, *weights, num_heads, causal, padding_mask)
        matches(result, attend_by_loops(x, weights, num_heads, causal, padding_mask))


@states("no token attends to another sequence of the batch", "batch 内各序列互不影响")
def test_sequences_are_apart(solution: Solution) -> None:
    x, weights = random_problem(3, 2, 3, 4)
    other = x.copy()
    other[1] += 1.0
    first = call(solution, x, *weights, 2)
    first.close_to(attend_by_loops(x, weights, 2), RTOL, ATOL)
    second = call(solution, other, *weights, 2)
    second.close_to(attend_by_loops(other, weights, 2), RTOL, ATOL)


@states("an empty batch or sequence gives an empty result", "空的 batch 或序列得到空结果")
@pytest.mark.parametrize(("batch", "length"), [(0, 3), (2, 0)])
def test_empty(solution: Solution, batch: int, length: int) -> None:
    x = np.zeros((batch, length, 4))
    matches(call(solution, x, *[np.eye(4)] * 4, 2, causal=True), x)


@states(
    "heads that do not divide d_model are refused", "num_heads 不能整除 d_model 时抛 ValueError"
)
@pytest.mark.parametrize(("d_model", "num_heads"), [(2, 3), (4, 3), (6, 4), (4, 0), (4, -2)])
def test_heads_refused(solution: Solution, d_model: int, num_heads: int) -> None:
    x, weights = random_problem(0, 1, 2, d_model)
    call(solution, x, *weights, num_heads).raises(ValueError)


@states("a padding mask of another shape is refused", "padding_mask 形状不符时抛 ValueError")
@pytest.mark.parametrize("shape", [(3,), (1, 3), (2, 1), (2, 2), (2, 3, 1), (3, 2)])
def test_mask_refused(solution: Solution, shape: tuple[int, ...]) -> None:
    x, weights = random_problem(0, 2, 3, 4)
    mask = np.ones(shape, dtype=bool)
    call(solution, x, *weights, 2, padding_mask=mask).raises(ValueError)


# ---- the follow-up ----


def attend_complex(q: np.ndarray, k: np.ndarray, v: np.ndarray, causal: bool) -> np.ndarray:
    """One head in complex arithmetic, row by row."""
    rows = []
    for i in range(len(q)):
        seen = i + 1 if causal else len(k)
        scores = k[:seen] @ q[i] / math.sqrt(q.shape[1])
        weights = np.exp(scores - scores.real.max())
        rows.append(weights @ v[:seen] / weights.sum())
    return np.array(rows).reshape(len(q), v.shape[1])


def gradients_by_complex_step(
    inputs: tuple[np.ndarray, np.ndarray, np.ndarray], d_out: np.ndarray, causal: bool
) -> list[np.ndarray]:
    """d loss / d x is Im loss(x + ih) / h, exact to rounding, where loss = sum(d_out * out)."""
    gradients = []
    for which, one in enumerate(inputs):
        gradient = np.zeros(one.shape)
        for index in np.ndindex(one.shape):
            moved = [a.astype(np.complex128) for a in inputs]
            moved[which][index] += 1e-30j
            out = attend_complex(*moved, causal)
            gradient[index] = (d_out * out).sum().imag / 1e-30
        gradients.append(gradient)
    return gradients


def gradients_match(made: Call, expected: list[np.ndarray]) -> None:
    got = made.of_type(tuple, "a tuple (d_q, d_k, d_v)")
    if len(got) != 3:
        made.fail("a tuple (d_q, d_k, d_v)", f"a tuple of {len(got)}")
    for name, gradient, wanted in zip(("d_q", "d_k", "d_v"), got, expected, strict=True):
        if not isinstance(gradient, np.ndarray) or gradient.dtype.kind != "f":
            made.fail(f"{name} to be an array of floats", paste(gradient))
        if gradient.shape != wanted.shape:
            made.fail(f"{name} of shape {wanted.shape}", f"{name} of shape {gradient.shape}")
        if not np.allclose(gradient, wanted, rtol=RTOL, atol=ATOL):
            made.fail(f"{name} {paste(wanted)}", f"{name} {paste(gradient)}")
    made.leaves_arguments_alone()


@follow_up("attention_backward")
@states("follow-up: gradients agree with a complex step", "进阶：梯度与复数步长求导一致")
@given(length=st.integers(1, 3), head_dim=st.integers(1, 2), causal=st.booleans(), data=st.data())
def test_gradients(
    solution: Solution, length: int, head_dim: int, causal: bool, data: st.DataObject
) -> None:
    q, k, v, d_out = (data.draw(array(length, head_dim)) for _ in range(4))
    made = solution.call("attention_backward", q, k, v, d_out, causal=causal)
    gradients_match(made, gradients_by_complex_step((q, k, v), d_out, causal))


@follow_up("attention_backward")
@states("follow-up: so do those of longer inputs", "进阶：更长的输入同样一致")
@pytest.mark.parametrize("causal", [False, True])
def test_gradients_of_real_numbers(solution: Solution, causal: bool) -> None:
    q, k, v, d_out = np.random.default_rng(1).normal(size=(4, 5, 3))
    causal_if_set = {"causal": True} if causal else {}
    made = solution.call("attention_backward", q, k, v, d_out, **causal_if_set)
    gradients_match(made, gradients_by_complex_step((q, k, v), d_out, causal))


@follow_up("attention_backward")
@states("follow-up: large scores do not overflow", "进阶：分数很大时不溢出")
def test_gradients_of_large_scores(solution: Solution) -> None:
    q = k = np.array([[1000.0, 0.0], [0.0, 1000.0]])
    v, d_out = np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([[1.0, 0.0], [0.0, 1.0]])
    made = solution.call("attention_backward", q, k.copy(), v, d_out)
    gradients_match(made, [np.zeros((2, 2)), np.zeros((2, 2)), d_out])
    ahead = np.array([[1.0], [1e4]])  # what is masked is far above what is not
    made = solution.call(
        "attention_backward", ahead, ahead.copy(), ahead.copy(), np.ones((2, 1)), True
    )
    gradients_match(made, [np.zeros((2, 1)), np.zeros((2, 1)), np.ones((2, 1))])
