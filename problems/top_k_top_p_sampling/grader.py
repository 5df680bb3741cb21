"""Grades top_k_top_p_sampling against the definition, worked with 50 decimal digits.

Inputs on which float64 could not tell whether a cumulative probability passes a bound are left
out, so that every right order of additions is accepted.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from decimal import Context, Decimal
from itertools import accumulate

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from infra_lab.practice.kit import Call, Solution, follow_up, states

PRECISE = Context(prec=50)
SAFE = Decimal("1e-6")  # nearer than this to a bound, rounding may decide
TINIEST = Decimal("1e-300")  # what is less likely may be 0 in float64
RTOL, ATOL = 1e-7, 1e-290
NO_LOGIT = -math.inf
LARGEST_U = math.nextafter(1.0, 0.0)


@dataclass(frozen=True)
class Law:
    """The exact distribution, and the least distance of a cumulative sum from top_p."""

    probabilities: list[Decimal]
    margin: Decimal

    def as_array(self) -> np.ndarray:
        return np.array([float(one) for one in self.probabilities])

    def draw(self, u: float) -> tuple[int, bool]:
        """The token, and whether float64 is sure to find the same one."""
        possible = [token for token, one in enumerate(self.probabilities) if one]
        if u == 0:
            return possible[0], self.probabilities[possible[0]] > TINIEST
        if u == LARGEST_U:
            return possible[-1], self.probabilities[possible[-1]] > SAFE
        cumulative = list(accumulate(self.probabilities))
        drawn = next(token for token in possible if cumulative[token] > Decimal(u))
        return drawn, min(abs(one - Decimal(u)) for one in cumulative) > SAFE


def exact_law(logits: np.ndarray, temperature: float, top_k: int, top_p: float) -> Law:
    values = [float(value) for value in logits]
    ranking = sorted(range(len(values)), key=lambda token: (-values[token], token))
    if temperature == 0:
        kept, margin = {ranking[0]: Decimal(1)}, Decimal(1)
    else:
        ranking = ranking[: top_k or None]
        highest = Decimal(values[ranking[0]])
        weights = {}
        for token in ranking:
            is_allowed = values[token] != NO_LOGIT
            scaled = Decimal(0)
            if is_allowed:
                scaled = PRECISE.divide(Decimal(values[token]) - highest, Decimal(temperature))
            weights[token] = PRECISE.exp(scaled) if is_allowed else Decimal(0)
        total = sum(weights.values())
        kept, margin, before = {}, Decimal(1), Decimal(0)
        for token in ranking:
            if top_p < 1:
                if before:
                    margin = min(margin, abs(before - Decimal(top_p)))
                if before >= Decimal(top_p):
                    break
            kept[token] = weights[token]
            before += PRECISE.divide(weights[token], total)
    total = sum(kept.values())
    return Law(
        [PRECISE.divide(kept.get(token, Decimal(0)), total) for token in range(len(values))],
        margin,
    )


def check_distribution(call: Call, law: Law) -> None:
    expected = law.as_array()
    got = call.of_type(np.ndarray, f"a float64 array of shape {expected.shape}")
    call.close_to(expected, rtol=RTOL, atol=ATOL)
    if got.dtype != np.float64:
        call.fail("an array of dtype float64", f"an array of dtype {got.dtype}")
    removed = [token for token, one in enumerate(law.probabilities) if one == 0]
    for token in removed:
        if got[token] != 0:
            call.fail(f"token {token} to have probability 0 exactly", f"{got[token]}")
    call.leaves_arguments_alone()


def check_filter(
    solution: Solution, logits: np.ndarray, temperature: float, top_k: int, top_p: float
) -> None:
    law = exact_law(logits, temperature, top_k, top_p)
    assert law.margin > SAFE
    call = solution.call("filtered_probabilities", logits, temperature, top_k, top_p)
    check_distribution(call, law)


def logs(*weights: float) -> np.ndarray:
    """Logits whose softmax is the weights over their sum."""
    return np.log(np.array(weights))


QUARTERS = st.integers(-12, 12).map(lambda quarters: quarters / 4)
FEW = st.sampled_from([0.0, 1.0, 2.0])
EXTREME = st.sampled_from([-1e4, -500.0, 0.0, 0.5, 500.0, 9999.0, 1e4])


@st.composite
def logit_vectors(draw: st.DrawFn, min_size: int = 1, max_size: int = 7) -> np.ndarray:
    one = st.one_of(draw(st.sampled_from([FEW, QUARTERS, EXTREME])), st.just(NO_LOGIT))
    values = draw(st.lists(one, min_size=min_size, max_size=max_size))
    assume(any(value != NO_LOGIT for value in values))
    return np.array(values, dtype=draw(st.sampled_from([np.float64, np.float32])))


TEMPERATURES = st.sampled_from([1.0, 0.0, 0.01, 0.1, 0.7, 2.0, 100.0])
TOP_KS = st.integers(0, 9)
TOP_PS = st.one_of(st.just(1.0), st.integers(1, 99).map(lambda percent: percent / 100))
US = st.one_of(st.just(0.0), st.integers(0, 999).map(lambda n: n / 1000), st.just(LARGEST_U))


@states("with every filter off it is the softmax of the logits", "不启用任何过滤时就是 softmax")
def test_plain_softmax(solution: Solution) -> None:
    check_filter(solution, logs(1, 2, 5), 1.0, 0, 1.0)
    check_filter(solution, np.zeros(4), 1.0, 0, 1.0)


@states("one token has probability 1", "词表只有一个 token 时，它的概率为 1")
@pytest.mark.parametrize("temperature", [0.0, 0.5, 1.0])
def test_one_token(solution: Solution, temperature: float) -> None:
    check_filter(solution, np.array([-3.0]), temperature, 1, 0.5)
    solution.call("sample", np.array([-3.0]), temperature, 1, 0.5, 0.9).equals(0)


@states("temperature divides the logits", "temperature 是除数")
def test_temperature_divides(solution: Solution) -> None:
    check_filter(solution, logs(1, 2, 3), 0.5, 0, 1.0)  # 1, 4 and 9 of 14
    check_filter(solution, logs(1, 4, 9), 2.0, 0, 1.0)  # 1, 2 and 3 of 6


@states(
    "temperature 0 takes the highest logit, and of equal ones the lowest id",
    "temperature 为 0 时取 logit 最大者，并列时取 id 最小的",
)
@pytest.mark.parametrize(
    "values", [[1.0, 3.0, 2.0], [1.0, 2.0, 2.0], [0.0, 0.0], [NO_LOGIT, 1e4, 1e4], [2.0, 1.0]]
)
def test_greedy(solution: Solution, values: list[float]) -> None:
    logits = np.array(values)
    for top_k, top_p, u in ((0, 1.0, 0.0), (2, 0.9, 0.5), (1, 0.1, LARGEST_U)):
        check_filter(solution, logits, 0.0, top_k, top_p)
        expected = int(np.argmax(logits))
        solution.call("sample", logits, 0.0, top_k, top_p, u).equals(expected)


@states("top-k keeps the k highest logits", "top-k 保留 logit 最大的 k 个")
@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_top_k(solution: Solution, top_k: int) -> None:
    check_filter(solution, logs(2, 4, 1, 3), 1.0, top_k, 1.0)


@states(
    "top-k keeps exactly k where logits are equal, the lowest ids first",
    "logit 相等时 top-k 也恰好保留 k 个，id 小的优先",
)
@pytest.mark.parametrize("top_k", [1, 2, 3])
def test_top_k_ties(solution: Solution, top_k: int) -> None:
    check_filter(solution, np.array([1.0, 2.0, 2.0, 2.0]), 1.0, top_k, 1.0)


@states("ties are broken by id in a large vocabulary too", "词表很大时，并列者同样按 id 先后取舍")
@pytest.mark.parametrize("size", [40, 1000])
def test_many_ties(solution: Solution, size: int) -> None:
    logits = np.arange(size) % 3 / 2
    check_filter(solution, logits, 1.0, size // 2, 1.0)
    spread = np.arange(size) * 7 % size // 3 / 8
    check_filter(solution, spread, 8.0, 7, 1.0)
    check_filter(solution, spread, 8.0, size - 7, 1.0)
    check_filter(solution, logits, 1.0, 0, 0.3017)


@states(
    "top_k of 0, of the vocabulary size and beyond keep all",
    "top_k 为 0、等于或大于词表大小时全部保留",
)
@pytest.mark.parametrize("top_k", [0, 3, 4, 1000])
def test_top_k_off(solution: Solution, top_k: int) -> None:
    check_filter(solution, logs(3, 1, 2), 1.0, top_k, 1.0)


@states(
    "top-p keeps the token that crosses it, and no further one",
    "top-p 保留跨过阈值的那个 token，之后的都去掉",
)
@pytest.mark.parametrize("top_p", [0.3, 0.45, 0.55, 0.75, 0.85, 0.95])
def test_top_p(solution: Solution, top_p: float) -> None:
    check_filter(solution, logs(3, 2, 5), 1.0, 0, top_p)


@states("the first token stays, however small top_p", "top_p 再小，排名第一的 token 也保留")
def test_tiny_top_p(solution: Solution) -> None:
    check_filter(solution, logs(2, 3, 1), 1.0, 0, 1e-5)
    check_filter(solution, np.zeros(3), 1.0, 0, 1e-5)


@states("top-p keeps the lowest ids of equal logits", "logit 相等时，top-p 保留 id 小的")
@pytest.mark.parametrize("top_p", [0.1, 0.3, 0.6, 0.9])
def test_top_p_ties(solution: Solution, top_p: float) -> None:
    check_filter(solution, np.zeros(4), 1.0, 0, top_p)


@states(
    "top_p of 1 keeps every token, the least likely too", "top_p 为 1 时，再小概率的 token 也保留"
)
def test_top_p_off(solution: Solution) -> None:
    check_filter(solution, np.array([0.0, -60.0, -500.0]), 1.0, 0, 1.0)


@states("temperature comes before top-p", "先除 temperature，再做 top-p")
def test_temperature_before_top_p(solution: Solution) -> None:
    # At temperature 2 the weights 81 and 1 become 9 and 1: the first falls short of 0.95.
    check_filter(solution, logs(81, 1), 2.0, 0, 0.95)
    check_filter(solution, logs(3, 1), 0.5, 0, 0.8)


@states(
    "top-p sees the probabilities renormalised over what top-k left",
    "top-p 用的是 top-k 之后重新归一化的概率",
)
def test_top_k_before_top_p(solution: Solution) -> None:
    check_filter(solution, logs(4, 3, 2, 1), 1.0, 2, 0.5)  # 4 of 7 crosses 0.5, 4 of 10 does not
    check_filter(solution, logs(1, 1, 1, 1, 1), 1.0, 3, 0.65)


@states(
    "a logit of -inf has probability 0 and is never drawn",
    "logit 为 -inf 的 token 概率为 0，永不被采到",
)
def test_forbidden_tokens(solution: Solution) -> None:
    logits = np.array([NO_LOGIT, 0.0, NO_LOGIT, 1.0, NO_LOGIT])
    for top_k, top_p in ((0, 1.0), (3, 1.0), (4, 0.999), (0, 0.5)):
        check_filter(solution, logits, 1.0, top_k, top_p)
    solution.call("sample", logits, 1.0, 0, 1.0, 0.0).equals(1)
    solution.call("sample", logits, 1.0, 4, 1.0, LARGEST_U).equals(3)


@states("logits of 10,000 neither overflow nor vanish", "logits 达到 10,000 也不溢出、不下溢")
@pytest.mark.parametrize(
    "values", [[1e4, 1e4 - 1], [-1e4, -1e4 - 1], [1e4, -1e4], [-1e4, 1e4, 9999.5]]
)
@pytest.mark.parametrize("temperature", [0.01, 1.0, 100.0])
def test_huge_logits(solution: Solution, values: list[float], temperature: float) -> None:
    check_filter(solution, np.array(values), temperature, 0, 1.0)


@states("float32 logits are worked on in float64", "float32 的 logits 也用 float64 计算")
def test_float32_logits(solution: Solution) -> None:
    logits = np.array([812.34, 811.9, 813.07, 811.2], np.float32)
    check_filter(solution, logits, 0.7, 0, 1.0)
    check_filter(solution, logits, 0.7, 3, 0.9)


@states("the distribution agrees with 50-digit arithmetic", "分布与 50 位精度的计算一致")
@given(logits=logit_vectors(), temperature=TEMPERATURES, top_k=TOP_KS, top_p=TOP_PS)
def test_distribution(
    solution: Solution, logits: np.ndarray, temperature: float, top_k: int, top_p: float
) -> None:
    law = exact_law(logits, temperature, top_k, top_p)
    assume(law.margin > SAFE)
    call = solution.call("filtered_probabilities", logits, temperature, top_k, top_p)
    check_distribution(call, law)


@states("u is looked up in the order of token ids", "u 按 token id 的顺序查累积分布")
@pytest.mark.parametrize(
    ("u", "expected"),
    [(0.0, 0), (0.12, 0), (0.13, 1), (0.74, 1), (0.76, 2), (0.999, 2), (LARGEST_U, 2)],
)
def test_order_of_ids(solution: Solution, u: float, expected: int) -> None:
    solution.call("sample", logs(1, 5, 2), 1.0, 0, 1.0, u).equals(expected)


@states("u of 0 draws the first token that stayed", "u 为 0 时采到留下的第一个 token")
def test_u_of_zero(solution: Solution) -> None:
    solution.call("sample", logs(1, 2, 5), 1.0, 2, 1.0, 0.0).equals(1)
    solution.call("sample", logs(1, 2, 5), 1.0, 0, 0.5, 0.0).equals(2)


@states(
    "u close to 1 draws the last token that stayed, whatever rounding does",
    "u 接近 1 时，无论怎样舍入都采到留下的最后一个 token",
)
@pytest.mark.parametrize("kept", [2, 3, 6, 10, 20, 49, 100])
def test_u_close_to_one(solution: Solution, kept: int) -> None:
    # Sums of 1/10 and of many other fractions end below 1 in float64.
    logits = np.concatenate([np.zeros(kept), np.full(3, -1.0)])
    solution.call("sample", logits, 1.0, kept, 1.0, LARGEST_U).equals(kept - 1)
    forbidden = np.concatenate([np.zeros(kept), np.full(3, NO_LOGIT)])
    solution.call("sample", forbidden, 1.0, 0, 1.0, LARGEST_U).equals(kept - 1)


@states(
    "the token agrees with the inverse of the exact distribution", "采到的 token 与精确分布的逆一致"
)
@given(logits=logit_vectors(), temperature=TEMPERATURES, top_k=TOP_KS, top_p=TOP_PS, u=US)
def test_token(
    solution: Solution, logits: np.ndarray, temperature: float, top_k: int, top_p: float, u: float
) -> None:
    law = exact_law(logits, temperature, top_k, top_p)
    token, is_sure = law.draw(u)
    assume(law.margin > SAFE and is_sure)
    call = solution.call("sample", logits, temperature, top_k, top_p, u)
    call.equals(token).leaves_arguments_alone()


@states("arguments outside their ranges raise ValueError", "参数越界时抛出 ValueError")
@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(-0.5, 0, 1.0), (1.0, -1, 1.0), (1.0, 0, 0.0), (1.0, 0, -0.1), (1.0, 0, 1.1), (0.0, -1, 1.0)],
)
def test_refuses_parameters(
    solution: Solution, temperature: float, top_k: int, top_p: float
) -> None:
    logits = np.array([0.0, 1.0, 2.0])
    solution.call("filtered_probabilities", logits, temperature, top_k, top_p).raises(ValueError)
    solution.call("sample", logits, temperature, top_k, top_p, 0.5).raises(ValueError)


@states("u outside [0, 1) raises ValueError", "u 不在 [0, 1) 内时抛出 ValueError")
@pytest.mark.parametrize("u", [-0.1, 1.0, 1.5])
def test_refuses_u(solution: Solution, u: float) -> None:
    solution.call("sample", np.array([0.0, 1.0]), 1.0, 0, 1.0, u).raises(ValueError)


@states("the work grows with V log V at most", "运算量至多随 V log V 增长")
def test_work(solution: Solution) -> None:
    size = 2000
    logits = np.arange(size) * 7 % size / 100
    with solution.counting_lines() as lines:
        call = solution.call("sample", logits, 2.0, size - 1, 0.9983, 0.5)
    law = exact_law(logits, 2.0, size - 1, 0.9983)
    call.equals(law.draw(0.5)[0])
    solution.within("executed lines", lines.count, 4 * size * math.ceil(math.log2(size)), call)


@states("the memory grows with V at most", "内存至多随 V 增长")
def test_memory(solution: Solution) -> None:
    size = 4000
    logits = np.arange(size) * 7 % size / 100
    with solution.peak_memory() as peak:
        call = solution.call("filtered_probabilities", logits, 2.0, size - 1, 0.9983)
    call.array((size,))
    solution.within("bytes held at once", peak.bytes, 1000 * size, call)


@st.composite
def batches(draw: st.DrawFn) -> tuple[np.ndarray, ...]:
    size = draw(st.integers(1, 6))
    count = draw(st.integers(1, 4))
    rows = [draw(logit_vectors(size, size)).astype(np.float64) for _ in range(count)]
    columns = [
        [draw(one) for _ in range(count)]
        for one in (TEMPERATURES, TOP_KS, TOP_PS, st.integers(0, 998).map(lambda n: n / 999))
    ]
    return (np.stack(rows), *map(np.array, columns))


def check_batch(call: Call, expected: list[int]) -> None:
    got = call.of_type(np.ndarray, f"an integer array of shape {(len(expected),)}")
    if got.shape != (len(expected),) or got.dtype.kind not in "iu":
        call.fail(
            f"an integer array of shape {(len(expected),)}",
            f"an array of dtype {got.dtype} and shape {got.shape}",
        )
    if got.tolist() != expected:
        call.fail(str(expected), str(got.tolist()))
    call.leaves_arguments_alone()


@follow_up("sample_batch")
@states("follow-up: each row has its own parameters", "进阶：每一行使用自己的参数")
def test_batch_of_four(solution: Solution) -> None:
    logits = np.stack([logs(1, 2, 5)] * 5)
    call = solution.call(
        "sample_batch",
        logits,
        np.array([1.0, 0.0, 1.0, 1.0, 0.01]),
        np.array([0, 0, 2, 0, 3]),
        np.array([1.0, 1.0, 1.0, 0.5, 1.0]),
        np.array([0.0, 0.0, 0.0, 0.0, 0.5]),
    )
    check_batch(call, [0, 2, 1, 2, 2])


@follow_up("sample_batch")
@states("follow-up: rows agree with the exact distribution", "进阶：每一行都与精确分布一致")
@given(batch=batches())
def test_batch(solution: Solution, batch: tuple[np.ndarray, ...]) -> None:
    expected = []
    for logits, temperature, top_k, top_p, u in zip(*batch, strict=True):
        law = exact_law(logits, float(temperature), int(top_k), float(top_p))
        token, is_sure = law.draw(float(u))
        assume(law.margin > SAFE and is_sure)
        expected.append(token)
    check_batch(solution.call("sample_batch", *batch), expected)


@follow_up("sample_batch")
@states(
    "follow-up: ties are broken by id in a large vocabulary too",
    "进阶：词表很大时，并列者同样按 id 先后取舍",
)
@pytest.mark.parametrize("size", [40, 1000])
def test_batch_many_ties(solution: Solution, size: int) -> None:
    logits = np.arange(size) % 3 / 2
    law = exact_law(logits, 1.0, size // 2, 1.0)
    draws = [law.draw((row + 0.37) / 30) for row in range(30)]
    us = np.array([(row + 0.37) / 30 for row, (_, is_sure) in enumerate(draws) if is_sure])
    rows, ones = np.tile(logits, (len(us), 1)), np.ones(len(us))
    call = solution.call("sample_batch", rows, ones, np.full(len(us), size // 2), ones.copy(), us)
    check_batch(call, [token for token, is_sure in draws if is_sure])


@follow_up("sample_batch")
@states(
    "follow-up: u close to 1 draws the last token that stayed",
    "进阶：u 接近 1 时采到留下的最后一个 token",
)
def test_batch_u_close_to_one(solution: Solution) -> None:
    kept = [2, 3, 6, 10, 20, 49, 100]
    logits = np.array([[0.0] * n + [-1.0] * (103 - n) for n in kept])
    ones = np.ones(len(kept))
    call = solution.call(
        "sample_batch", logits, ones, np.array(kept), ones.copy(), np.full(len(kept), LARGEST_U)
    )
    check_batch(call, [n - 1 for n in kept])


@follow_up("sample_batch")
@states(
    "follow-up: top_p of 1 keeps every token, the least likely too",
    "进阶：top_p 为 1 时，再小概率的 token 也保留",
)
def test_batch_top_p_off(solution: Solution) -> None:
    logits = np.array([[-60.0, 0.0, 0.0], [-60.0, 0.0, 0.0], [-60.0, 0.0, 0.0]])
    call = solution.call(
        "sample_batch",
        logits,
        np.array([1.0, 1.0, 100.0]),
        np.array([0, 2, 0]),
        np.array([1.0, 1.0, 1.0]),
        np.array([0.0, 0.0, 0.0]),
    )
    check_batch(call, [0, 1, 0])


@follow_up("sample_batch")
@states("follow-up: no Python loop over rows or tokens", "进阶：没有遍历行或 token 的 Python 循环")
def test_batch_runs_few_lines(solution: Solution) -> None:
    rows, size = 200, 50
    logits = (np.arange(rows)[:, None] * 3 + np.arange(size) * 7) % size / 4
    top_k = 1 + np.arange(rows) % size
    with solution.counting_lines() as lines:
        call = solution.call(
            "sample_batch", logits, np.ones(rows), top_k, np.full(rows, 0.9), np.zeros(rows)
        )
    laws = [exact_law(logits[row], 1.0, int(top_k[row]), 0.9) for row in range(rows)]
    check_batch(call, [law.draw(0.0)[0] for law in laws])
    solution.within("executed lines", lines.count, 150, call)
