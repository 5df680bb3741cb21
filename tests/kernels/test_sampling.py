"""Sampling without a sort, against sorting in float64 and against the engine's own sampler."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infra_lab.sampling.filters import keep_candidates
from infra_lab.sampling.sampler import pick
from infra_lab.sampling_params import SamplingParams
from kernels.errors import KernelInputError
from kernels.sampling import Sampled, choose_launch, sample, sample_kernel, sample_reference
from tests.kernels.on_device import first_grid, rows_on, spread, watched
from tests.kernels.strategies import SEEDS

INF, NAN = float("inf"), float("nan")
VOCABULARIES = st.sampled_from([1, 2, 3, 7, 50, 256, 257, 1000, 2049, 4100])
TEMPERATURES = st.sampled_from([0.0, 1e-38, 0.01, 0.7, 1.0, 2.5, 1e38, INF])
TOP_KS = st.sampled_from([-1, 0, 1, 2, 3, 20, 50, 300, 10_000])
TOP_PS = st.sampled_from([0.0, 1e-6, 0.1, 0.5, 0.9, 0.999, 1.0])
MIN_PS = st.sampled_from([0.0, 1e-4, 0.05, 0.5, 1.0])
UNIFORMS = st.one_of(
    st.sampled_from([0.0, 0.5, 1 - 2**-24]), st.floats(0, 1, exclude_max=True, width=32)
)


def draw(
    device: str,
    logits: torch.Tensor,
    *,
    temperature: float | Sequence[float] = 1.0,
    top_k: int | Sequence[int] | None = None,
    top_p: float | Sequence[float] | None = None,
    min_p: float | Sequence[float] | None = None,
    uniform: float | Sequence[float] = 0.5,
) -> Sampled:
    """`sample` with probabilities, under the sanitizer; one number is the same for every row."""

    def each(value: float | Sequence[float] | None, dtype: torch.dtype) -> torch.Tensor | None:
        if value is None:
            return None
        values = torch.tensor(value, dtype=dtype)
        return values.expand(len(logits)).contiguous().to(device)

    temperatures = each(temperature, torch.float32)
    assert temperatures is not None
    with watched(device) as watch:
        sampled = sample(
            logits,
            temperatures,
            top_k=each(top_k, torch.int32),
            top_p=each(top_p, torch.float32),
            min_p=each(min_p, torch.float32),
            uniform=each(uniform, torch.float32),
            return_probabilities=True,
        )
        assert sampled.probabilities is not None
        watch.require_written(token_ids=sampled.token_ids, probabilities=sampled.probabilities)
    return sampled


def tolerance(vocabulary: int) -> float:
    """As `sample` documents it."""
    return (vocabulary / 2048 + 40) * 2**-23


def assert_right(
    logits: torch.Tensor,
    token: int,
    probabilities: torch.Tensor,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    uniform: float,
) -> None:
    """Between what sorting gives for slightly smaller and slightly larger parameters."""
    logits = logits.cpu()
    slack, factor = tolerance(len(logits)), 1 + 2**-20
    temperature = min(max(temperature, 1e-30), 1e30) if temperature > 0 else 0.0
    # As the kernel gets them: in fp32.
    top_p, min_p, temperature = (float(np.float32(v)) for v in (top_p, min_p, temperature))
    filtered = top_k > 0 or top_p < 1 or min_p > 0

    def reference(sign: int) -> tuple[int, torch.Tensor]:
        return sample_reference(
            logits,
            temperature,
            top_k=top_k,
            top_p=min(1.0, top_p + sign * slack) if top_p < 1 else 1.0,
            min_p=min_p * factor**-sign if 0 < min_p < 1 else min_p,
            uniform=min(max(uniform + sign * slack, 0.0), 1 - 2**-30),
        )

    (first, fewest), (last, most) = reference(-1), reference(1)
    kept = set(probabilities.nonzero().squeeze(-1).tolist())
    clean = logits.float().nan_to_num(-INF, INF, -INF)
    distance = torch.where(clean == clean.max(), 0.0, clean.max() - clean)
    if temperature > 0:
        # A token may be kept and yet have a mass that is no fp32 number.
        weightless = set((distance / temperature > 80).nonzero().squeeze(-1).tolist())
    else:
        weightless = set()
    assert set(fewest.tolist()) - weightless <= kept <= set(most.tolist())
    assert token in kept
    order = most.tolist()
    if filtered or temperature == 0:
        assert order.index(first) <= order.index(token) <= order.index(last)
    else:
        assert first <= token <= last
    if temperature > 0:
        mass = torch.zeros(len(logits), dtype=torch.float64)
        inside = torch.tensor(sorted(kept))
        mass[inside] = (-distance[inside].double() / temperature).exp()
        error = (probabilities.double().cpu() - mass / mass.sum()).abs().max()
        assert error <= slack, f"probabilities are off by {error}"
    else:
        assert probabilities[token] == 1


@st.composite
def logits_of_rows(draw: st.DrawFn) -> torch.Tensor:
    """Smooth ones, ones full of ties, masked ones, and ones with a NaN."""
    vocabulary = draw(VOCABULARIES)
    dtype = draw(st.sampled_from([torch.float32, torch.bfloat16, torch.float16]))
    generator = torch.Generator().manual_seed(draw(SEEDS))
    logits = torch.randn(2, vocabulary, generator=generator) * draw(
        st.sampled_from([0.0, 1.0, 5.0])
    )
    if draw(st.booleans()):
        logits = (logits * 2).round() / 2
    if draw(st.booleans()):
        masked = torch.rand(2, vocabulary, generator=generator) < 0.5
        masked[:, vocabulary // 2] = False
        logits[masked] = -INF
    if vocabulary > 1 and draw(st.booleans()):
        logits[0, vocabulary // 3 if vocabulary // 3 != vocabulary // 2 else 0] = NAN
    logits += draw(st.sampled_from([0.0, 20.0, -300.0]))
    return logits.to(dtype)


@settings(max_examples=50)
@given(
    logits=logits_of_rows(),
    temperature=TEMPERATURES,
    top_k=TOP_KS,
    top_p=TOP_PS,
    min_p=MIN_PS,
    uniform=UNIFORMS,
    padding=st.sampled_from([0, 1, 8]),
)
def test_tokens_and_what_is_kept_are_those_of_sorting_in_float64(
    device: str,
    logits: torch.Tensor,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    uniform: float,
    padding: int,
) -> None:
    sampled = draw(
        device,
        spread(logits.to(device), padding),
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        uniform=uniform,
    )
    assert sampled.probabilities is not None
    for row, token, probabilities in zip(
        logits, sampled.token_ids.tolist(), sampled.probabilities, strict=True
    ):
        assert_right(row, token, probabilities, temperature, top_k, top_p, min_p, uniform)


def test_the_vocabulary_of_qwen(device: str) -> None:
    logits = rows_on(device, (1, 151_936), torch.bfloat16, 0, padding=3, scale=3.0)
    sampled = sample(
        logits,
        torch.tensor([0.8], device=device),
        top_p=torch.tensor([0.9], device=device),
        uniform=torch.tensor([0.77], device=device),
        return_probabilities=True,
    )
    assert sampled.probabilities is not None
    assert_right(
        logits[0], int(sampled.token_ids), sampled.probabilities[0], 0.8, 0, 0.9, 0.0, 0.77
    )


@pytest.mark.slow
@settings(max_examples=40)
@given(
    vocabulary=st.sampled_from([49_152, 128_256, 151_936, 262_144]),
    seed=SEEDS,
    scale=st.sampled_from([0.1, 2.0, 6.0]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    temperature=TEMPERATURES,
    top_k=TOP_KS,
    top_p=TOP_PS,
    min_p=MIN_PS,
    uniform=UNIFORMS,
)
def test_large_vocabularies_are_those_of_sorting_in_float64(
    device: str,
    vocabulary: int,
    seed: int,
    scale: float,
    dtype: torch.dtype,
    temperature: float,
    top_k: int,
    top_p: float,
    min_p: float,
    uniform: float,
) -> None:
    logits = rows_on(device, (1, vocabulary), dtype, seed, scale=scale)
    sampled = sample(  # without the sanitizer, which would double a minute
        logits,
        torch.tensor([temperature], device=device),
        top_k=torch.tensor([top_k], dtype=torch.int32, device=device),
        top_p=torch.tensor([top_p], device=device),
        min_p=torch.tensor([min_p], device=device),
        uniform=torch.tensor([uniform], device=device),
        return_probabilities=True,
    )
    assert sampled.probabilities is not None
    assert_right(
        logits[0],
        int(sampled.token_ids),
        sampled.probabilities[0],
        temperature,
        top_k,
        top_p,
        min_p,
        uniform,
    )


@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(temperature=0.7),
        SamplingParams(temperature=1.0, top_k=7),
        SamplingParams(temperature=0.9, top_p=0.8),
        SamplingParams(temperature=1.3, min_p=0.05),
        SamplingParams(temperature=1.5, top_k=40, top_p=0.9, min_p=0.01),
    ],
    ids=["plain", "top_k", "top_p", "min_p", "all"],
)
def test_the_same_uniform_gives_the_token_of_the_engine(
    device: str, params: SamplingParams
) -> None:
    """Quarters as logits: many ties. The uniforms are far from the boundaries of float sums."""
    vocabulary, rows = 300, 12
    generator = torch.Generator().manual_seed(7)
    logits = (torch.randn(rows, vocabulary, generator=generator) * 8).round() / 4
    uniforms = [(row + 0.37) / rows for row in range(rows)]
    wanted = []
    for row, u in zip(logits, uniforms, strict=True):
        ids, values = keep_candidates((row - row.max()) / params.temperature, params)
        wanted.append(int(ids[pick(values, u)]))
    sampled = draw(
        device,
        logits.to(device),
        temperature=params.temperature,
        top_k=params.top_k,
        top_p=params.top_p,
        min_p=params.min_p,
        uniform=uniforms,
    )
    assert sampled.token_ids.tolist() == wanted


def test_rows_have_parameters_of_their_own_and_do_not_touch_each_other(device: str) -> None:
    logits = rows_on(device, (4, 300), torch.float32, 1, scale=2.0)
    temperature, top_k = [0.0, 1.0, 0.5, 2.0], [0, 5, 0, 1]
    top_p, min_p, uniform = [1.0, 1.0, 0.6, 0.3], [0.0, 0.0, 0.1, 0.0], [0.1, 0.9, 0.4, 0.7]
    together = draw(
        device, logits, temperature=temperature, top_k=top_k, top_p=top_p, min_p=min_p,
        uniform=uniform,
    )  # fmt: skip
    assert together.probabilities is not None
    for row in range(4):
        alone = draw(
            device, logits[row : row + 1], temperature=temperature[row], top_k=top_k[row],
            top_p=top_p[row], min_p=min_p[row], uniform=uniform[row],
        )  # fmt: skip
        assert alone.probabilities is not None
        assert alone.token_ids[0] == together.token_ids[row]
        assert torch.equal(alone.probabilities[0], together.probabilities[row])


def test_filters_that_are_off_change_nothing(device: str) -> None:
    """Not the token, not a bit of the probabilities: given as off, or not given."""
    logits = rows_on(device, (2, 257), torch.float32, 2, scale=2.0)
    given_off = draw(device, logits, top_k=0, top_p=1.0, min_p=0.0, uniform=0.3)
    not_given = draw(device, logits, uniform=0.3)
    assert torch.equal(given_off.token_ids, not_given.token_ids)
    assert given_off.probabilities is not None
    assert not_given.probabilities is not None
    assert torch.equal(given_off.probabilities, not_given.probabilities)


@settings(max_examples=15)
@given(logits=logits_of_rows())
def test_greedy_is_the_lowest_id_of_the_largest_logit(device: str, logits: torch.Tensor) -> None:
    sampled = draw(device, logits.to(device), temperature=0.0, top_k=3, top_p=0.1)
    wanted = torch.where(logits.isnan(), -INF, logits.float()).numpy().argmax(-1)
    assert sampled.token_ids.tolist() == wanted.tolist()


def test_a_temperature_that_is_no_number_is_greedy(device: str) -> None:
    logits = torch.tensor([[1.0, 2.0, 2.0]], device=device)
    for temperature in (0.0, -1.0, NAN, -INF):
        sampled = draw(device, logits, temperature=temperature, uniform=0.9)
        assert sampled.probabilities is not None
        assert sampled.probabilities.tolist() == [[0.0, 1.0, 0.0]]


def test_a_uniform_just_below_1_gives_a_token_however_sums_are_rounded(device: str) -> None:
    """The whole mass, summed by lanes, may exceed the sum of tiles that the token is sought in."""
    logits = rows_on(device, (6, 9000), torch.float32, 0)
    logits[:, 8995:] = -INF
    for filters in ({}, {"top_k": 8999}):
        token_ids = draw(device, logits, uniform=1 - 2**-24, **filters).token_ids
        assert logits.gather(1, token_ids[:, None]).isfinite().all()


def test_top_k_keeps_exactly_k_of_equal_logits_the_lowest_ids(device: str) -> None:
    logits = torch.tensor([[1.0, 3.0, 2.0, 2.0, 2.0, 3.0, 2.0]], device=device)
    for k, kept in [(1, [1]), (2, [1, 5]), (3, [1, 2, 5]), (5, [1, 2, 3, 4, 5])]:
        sampled = draw(device, logits, top_k=k)
        assert sampled.probabilities is not None
        assert sampled.probabilities[0].nonzero().squeeze(-1).tolist() == kept


def test_top_p_acts_on_what_top_k_left(device: str) -> None:
    """Of 8 equal tokens 4 stay, and of those half: top_p of all 8 would keep all four."""
    sampled = draw(device, torch.zeros(1, 8, device=device), top_k=4, top_p=0.5)
    assert sampled.probabilities is not None
    assert sampled.probabilities[0].tolist() == [0.5, 0.5, 0, 0, 0, 0, 0, 0]


def test_top_k_acts_on_what_min_p_left(device: str) -> None:
    logits = torch.tensor([[0.0, 0.0, -1.0, -5.0]], device=device)
    sampled = draw(device, logits, top_k=4, min_p=0.3)
    assert sampled.probabilities is not None
    assert sampled.probabilities[0].gt(0).tolist() == [True, True, True, False]


def test_a_tiny_top_p_keeps_one_token(device: str) -> None:
    logits = torch.zeros(1, 300, device=device)
    for top_p in (0.0, 1e-30, -1.0):
        sampled = draw(device, logits, top_p=top_p, uniform=0.99)
        assert sampled.token_ids.tolist() == [0]


def test_a_uniform_on_a_boundary_takes_the_token_after_it(device: str) -> None:
    """Masses of 1, 1/2 and 1/2: top_p of a half is reached by the first, a draw must exceed it."""
    logits = torch.tensor([[0.0, -math.log(2), -math.log(2)]], device=device)
    assert draw(device, logits).probabilities.tolist() == [[0.5, 0.25, 0.25]]  # type: ignore[union-attr]
    for uniform, token in [(0.0, 0), (0.499, 0), (0.5, 1), (0.749, 1), (0.75, 2)]:
        assert draw(device, logits, uniform=uniform).token_ids.tolist() == [token]
        assert draw(device, logits, top_k=3, uniform=uniform).token_ids.tolist() == [token]
    assert draw(device, logits, top_p=0.5, uniform=0.99).token_ids.tolist() == [0]


@settings(max_examples=6)
@given(
    seed=SEEDS,
    shift=st.integers(-1000, 1000),
    power=st.integers(-3, 3),
    top_p=st.sampled_from([0.5, 0.95, 1.0]),
)
def test_shift_and_scale_do_not_matter(
    device: str, seed: int, shift: int, power: int, top_p: float
) -> None:
    """Exactly: logits + c, and logits * 2^k at temperature 2^k, for numbers that do not round."""
    generator = torch.Generator().manual_seed(seed)
    logits = (torch.randint(-40, 40, (2, 300), generator=generator) / 8).to(device)
    plain = draw(device, logits, top_p=top_p, top_k=200, uniform=[0.2, 0.8])
    for changed, temperature in ((logits + shift, 1.0), (logits * 2.0**power, 2.0**power)):
        other = draw(
            device, changed, temperature=temperature, top_p=top_p, top_k=200, uniform=[0.2, 0.8]
        )
        assert torch.equal(other.token_ids, plain.token_ids)
        assert other.probabilities is not None
        assert plain.probabilities is not None
        assert torch.equal(other.probabilities, plain.probabilities)


@pytest.mark.parametrize("top_k", [None, 6])
def test_draws_over_a_grid_of_uniforms_have_the_probabilities(
    device: str, top_k: int | None
) -> None:
    """An exact law, not a statistic: of N evenly spaced uniforms a token gets N p, but for one."""
    count = 64
    row = torch.tensor([0.5, -1.0, 2.0, 0.0, -INF, 1.5, -3.0, 0.25])
    sampled = draw(
        device,
        row.expand(count, -1).contiguous().to(device),
        top_k=top_k,
        uniform=[(i + 0.5) / count for i in range(count)],
    )
    counts = torch.bincount(sampled.token_ids.cpu(), minlength=len(row))
    assert sampled.probabilities is not None
    assert (counts - count * sampled.probabilities[0].cpu()).abs().max() <= 1


@pytest.mark.slow
def test_the_distribution_passes_a_chi_square_test(device: str) -> None:
    """10,000 draws by seed and offset over 12 tokens; 31.26 is exceeded once in a thousand."""
    count = 10_000
    row = torch.linspace(-2, 2, 12)
    sampled = sample(
        row.expand(count, -1).to(device),
        torch.full((count,), 1.3, device=device),
        top_p=torch.full((count,), 0.999, device=device),
        seeds=torch.full((count,), 42, device=device),
        offsets=torch.arange(count, device=device),
    )
    wanted = count * torch.softmax(row.double() / 1.3, -1)
    counts = torch.bincount(sampled.token_ids.cpu(), minlength=12)
    assert float(((counts - wanted).square() / wanted).sum()) < 31.26


def philox_4x32(key: int, counter: int) -> int:
    """The first word of Philox 4x32-10, from the paper (Salmon et al. 2011, section 4)."""
    mask = 2**32 - 1
    words = [counter & mask, counter >> 32 & mask, 0, 0]
    keys = [key & mask, key >> 32 & mask]
    for _ in range(10):
        left, right = 0xD2511F53 * words[0], 0xCD9E8D57 * words[2]
        words = [
            (right >> 32) ^ words[1] ^ keys[0],
            right & mask,
            (left >> 32) ^ words[3] ^ keys[1],
            left & mask,
        ]
        keys = [(keys[0] + 0x9E3779B9) & mask, (keys[1] + 0xBB67AE85) & mask]
    return words[0]


def test_seeds_and_offsets_are_philox(device: str) -> None:
    """A token of 256 equal ones is the top eight bits of the row's number."""
    assert philox_4x32(0, 0) == 0x6627E8D5  # the known answer of the authors' own tests
    seeds = [0, 1, 2**40 + 3, 2**63 - 1, 5, 5, 5, 5]
    offsets = [0, 0, 17, 4, 0, 1, 2**32, 2**40]
    sampled = sample(
        torch.zeros(8, 256, device=device),
        torch.ones(8, device=device),
        seeds=torch.tensor(seeds, device=device),
        offsets=torch.tensor(offsets, device=device),
    )
    wanted = []
    for seed, offset in zip(seeds, offsets, strict=True):
        word = philox_4x32(seed, offset)
        wanted.append((word if word < 2**31 else 2**32 - 1 - word) >> 23)
    assert sampled.token_ids.tolist() == wanted


def test_nan_counts_as_masked(device: str) -> None:
    for culprit in (NAN, -NAN):
        row = torch.tensor([[1.0, 5.0, 2.0, 0.0]], device=device)
        row[0, 1] = culprit
        masked = row.clone()
        masked[0, 1] = -INF
        for temperature in (0.0, 1.0):
            for filters in ({}, {"top_k": 3, "top_p": 0.99}):
                got = draw(device, row, temperature=temperature, uniform=0.6, **filters)
                wanted = draw(device, masked, temperature=temperature, uniform=0.6, **filters)
                assert torch.equal(got.token_ids, wanted.token_ids)
                assert got.probabilities is not None
                assert wanted.probabilities is not None
                assert torch.equal(got.probabilities, wanted.probabilities)


@pytest.mark.parametrize("nothing", [NAN, -INF])
def test_a_row_without_a_token_to_draw_gives_token_0_and_no_probability(
    device: str, nothing: float
) -> None:
    row = torch.full((1, 300), nothing, device=device)
    for temperature in (0.0, 1.0):
        for filters in ({}, {"top_k": 3, "top_p": 0.5, "min_p": 0.1}):
            sampled = draw(device, row, temperature=temperature, uniform=0.9, **filters)
            assert sampled.token_ids.tolist() == [0]
            assert sampled.probabilities is not None
            assert sampled.probabilities.eq(0).all()


def test_infinite_logits_share_all_mass(device: str) -> None:
    row = torch.tensor([[1.0, INF, 3e38, INF]], device=device)
    for filters in ({}, {"top_k": 4}, {"top_p": 0.9}):
        sampled = draw(device, row, uniform=0.6, **filters)
        assert sampled.token_ids.tolist() == [3]
        assert sampled.probabilities is not None
        assert sampled.probabilities[0].tolist() == [0.0, 0.5, 0.0, 0.5]


@pytest.mark.parametrize("strange", [NAN, INF, -INF, -1.0, 1e9])
def test_whatever_the_parameters_the_token_is_in_the_vocabulary_and_not_masked(
    device: str, strange: float
) -> None:
    row = torch.tensor([[-INF, 1.0, -INF, 2.0, NAN]], device=device)
    for name in ("temperature", "top_p", "min_p", "uniform"):
        parameters = {"temperature": 1.0, "top_p": 0.9, "min_p": 0.01, "uniform": 0.5}
        sampled = draw(device, row, **{**parameters, name: strange})
        assert int(sampled.token_ids) in (1, 3), name
    for filters in ({}, {"top_k": 5}):
        assert int(draw(device, row, uniform=strange, **filters).token_ids) in (1, 3)
    for top_k in (-(2**31), 2**31 - 1):
        assert int(draw(device, row, top_k=top_k).token_ids) in (1, 3)


@pytest.mark.parametrize("filters", [{}, {"top_k": 2000}, {"top_p": 0.9999}])
def test_masked_tokens_are_never_drawn_at_the_ends_of_the_uniforms(
    device: str, filters: dict[str, float]
) -> None:
    """Tokens of no mass first, last and in between."""
    row = torch.full((2, 700), -INF, device=device)
    row[:, 100:600:2] = 0.0
    sampled = draw(device, row, uniform=[0.0, 1 - 2**-24], **filters)  # type: ignore[arg-type]
    assert row[0, sampled.token_ids].eq(0).all()
    if "top_p" not in filters:
        assert sampled.token_ids.tolist() == [100, 598]


def test_what_lies_between_rows_is_not_read(device: str) -> None:
    logits = rows_on(device, (2, 301), torch.float16, 5, scale=3.0)
    for fill in (NAN, INF):
        sampled = draw(device, spread(logits, 11, fill), top_k=9, uniform=0.4)
        assert torch.equal(sampled.token_ids, draw(device, logits, top_k=9, uniform=0.4).token_ids)


def test_an_empty_batch_launches_nothing(device: str) -> None:
    sampled = draw(device, torch.zeros(0, 50, device=device))
    assert sampled.token_ids.shape == (0,)
    assert sampled.probabilities is not None
    assert sampled.probabilities.shape == (0, 50)


def test_more_than_65535_rows_fit_the_grid() -> None:
    """They lie along its x axis: y and z end at 65,535."""
    ones = torch.ones(65_537)
    grid = first_grid(lambda: sample(torch.zeros(1, 9).expand(65_537, -1), ones, uniform=ones))
    assert grid == (65_537, 1, 1)


def test_row_offsets_are_64_bit(device: str) -> None:
    """The third row begins 2^32 elements on; no element of it is read."""
    ones, ids = torch.ones(3, device=device), torch.ones(3, dtype=torch.int64, device=device)
    with watched(device):
        sample_kernel[(3,)](
            torch.zeros(8, device=device), ones, ones, ones, ones, ones, ones, ones, ids, ones,
            2**31 - 1, 0, HAS_TOP_K=False, HAS_TOP_P=False, HAS_MIN_P=False, SEEDED=False,
            PROBABILITIES=False, BLOCK=256, WAYS=8,
        )  # fmt: skip
    assert ids.eq(0).all()


def test_probabilities_are_only_made_when_asked_for(device: str) -> None:
    ones = torch.ones(1, device=device)
    assert sample(torch.zeros(1, 9, device=device), ones, uniform=ones / 2).probabilities is None


@pytest.mark.parametrize("vocabulary", [1, 128, 257, 49_152, 151_936, 262_144])
def test_a_launch_has_four_tokens_a_thread(vocabulary: int) -> None:
    launch = choose_launch(vocabulary)
    assert launch.block == 32 * 4 * launch.num_warps
    assert launch.num_warps in (2, 4, 8, 16)
    assert math.ceil(31 / math.log2(launch.ways)) == 11


def test_wrong_tensors_are_refused_with_what_was_wanted(device: str) -> None:
    logits, ones = torch.zeros(2, 64, device=device), torch.ones(2, device=device)
    with pytest.raises(KernelInputError, match="logits is float64, wanted float16 or bfloat16"):
        sample(logits.double(), ones, uniform=ones)
    with pytest.raises(KernelInputError, match=r"logits has shape \(64,\), wanted \[rows, vocab"):
        sample(logits[0], ones, uniform=ones)
    with pytest.raises(KernelInputError, match="a vocabulary of 0, wanted 1 to 16777216 tokens"):
        sample(logits[:, :0], ones, uniform=ones)
    with pytest.raises(KernelInputError, match="must be adjacent"):
        sample(torch.zeros(64, 2, device=device).t(), ones, uniform=ones)
    with pytest.raises(KernelInputError, match=r"temperature has shape \(1,\), wanted \(2,\)"):
        sample(logits, ones[:1], uniform=ones)
    with pytest.raises(KernelInputError, match="top_k is int64, wanted int32"):
        sample(logits, ones, top_k=ones.long(), uniform=ones)
    with pytest.raises(KernelInputError, match="top_p is float16, wanted float32"):
        sample(logits, ones, top_p=ones.half(), uniform=ones)
    with pytest.raises(KernelInputError, match="give either uniform, or seeds and offsets"):
        sample(logits, ones)
    with pytest.raises(KernelInputError, match="give either uniform, or seeds and offsets"):
        sample(logits, ones, uniform=ones, seeds=ones.long(), offsets=ones.long())
    with pytest.raises(KernelInputError, match="give either uniform, or seeds and offsets"):
        sample(logits, ones, seeds=ones.long())
    with pytest.raises(KernelInputError, match=r"one device, not logits on .*uniform on meta"):
        sample(logits, ones, uniform=ones.to("meta"))
