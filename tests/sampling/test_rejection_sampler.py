"""Verification: id for id what sampling without drafts gives where the draft was certain, and the
same law where it was drawn; the same tokens whether row by row or by the kernels."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from functools import cache
from itertools import chain, product

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.sampling.rejection_sampler import (
    distribution,
    draw_draft_tokens,
    sample_and_verify,
)
from infra_lab.sampling.request_state import SamplingState
from infra_lab.sampling.sampler import sample_row, speculation_uniforms, uniform
from infra_lab.sampling_params import SamplingParams
from infra_lab.step import NO_DRAFT, Draft, NewRequest

VOCAB = 7
GREEDY = SamplingParams(temperature=0)

params = st.builds(
    SamplingParams,
    temperature=st.sampled_from([0.0, 0.7, 1.0, 2.0]),
    top_k=st.sampled_from([0, 0, 3]),
    top_p=st.sampled_from([1.0, 1.0, 0.7]),
    min_p=st.sampled_from([0.0, 0.0, 0.1]),
    repetition_penalty=st.sampled_from([1.0, 1.3]),
    presence_penalty=st.sampled_from([0.0, 0.5]),
    frequency_penalty=st.sampled_from([0.0, 0.7]),
    logit_bias=st.sampled_from([None, {2: 3.0}]),
    min_tokens=st.sampled_from([0, 3]),
)


def make_state(sampling: SamplingParams, seed: int = 0, num_output: int = 0) -> SamplingState:
    state = SamplingState(NewRequest("r", (1, 3), sampling, seed, frozenset({2})))
    return state.after([5] * num_output)


def rows(seed: int, count: int) -> torch.Tensor:
    return torch.randn(count, VOCAB, generator=torch.Generator().manual_seed(seed)) * 2


@cache
def next_logits(seed: int, tokens: tuple[int, ...]) -> torch.Tensor:
    """A model's logits behind `tokens`: any fixed function of them."""
    return rows(seed + sum((1 + token) * 31**place for place, token in enumerate(tokens)), 1)[0]


def along(seed: int, tokens: tuple[int, ...]) -> torch.Tensor:
    """The rows behind the known tokens and behind each of `tokens`."""
    return torch.stack([next_logits(seed, tokens[:place]) for place in range(len(tokens) + 1)])


def test_the_published_vectors_of_greedy_verification() -> None:
    """vLLM's rejection sampler: the first wrong token is replaced, a right draft gets a bonus."""
    target = [[1, 5, 6], [3, 4, 7]]
    logits = torch.zeros(6, 10)
    for row, token_id in enumerate(chain(*target)):
        logits[row, token_id] = 1.0
    drafts = [Draft([1, 2]), Draft([3, 4])]
    assert sample_and_verify(logits, [make_state(GREEDY)] * 2, drafts) == [[1, 5], [3, 4, 7]]


@given(
    requests=st.lists(
        st.tuples(params, st.lists(st.integers(0, VOCAB - 1), max_size=4)), max_size=4
    ),
    right=st.booleans(),
    seed=st.integers(0, 99),
)
def test_a_certain_draft_leaves_every_token_as_it_is_without(
    requests: list[tuple[SamplingParams, list[int]]], right: bool, seed: int
) -> None:
    states = [make_state(one, seed + place, place) for place, (one, _) in enumerate(requests)]
    logits, drafts, expected = [], [], []
    for place, ((_, drafted), state) in enumerate(zip(requests, states, strict=True)):
        alone: tuple[int, ...] = ()
        while len(alone) <= len(drafted):
            alone += (sample_row(next_logits(place, alone), state.after(alone)),)
        # Right ones up to the last, or whatever was drawn.
        draft = [*alone[: len(drafted)]] if right else drafted
        wrong = next((i for i, one in enumerate(draft) if one != alone[i]), len(draft))
        logits.append(along(place, tuple(draft)))
        drafts.append(Draft(draft))
        expected.append(list(alone[: wrong + 1]))
    if requests:
        assert sample_and_verify(torch.cat(logits), states, drafts) == expected


def test_a_states_tokens_are_counted_by_a_copy_only() -> None:
    state = make_state(SamplingParams(frequency_penalty=1.0, repetition_penalty=1.5))
    later = state.after([4, 4])
    assert (later.num_output_tokens, later.output_counts[4]) == (2, 2)
    assert (state.num_output_tokens, state.output_counts[4]) == (0, 0)
    assert 4 not in state.seen_token_ids


@given(st.integers(0, 2**63 - 1), st.integers(0, 1000))
def test_the_numbers_of_speculation_are_others_than_the_one_that_draws_a_token(
    seed: int, index: int
) -> None:
    numbers = np.random.Generator(np.random.Philox(key=seed, counter=index)).random(3)
    assert uniform(seed, index) == numbers[0]
    assert speculation_uniforms(seed, index) == (numbers[1], numbers[2])


def chi_square_p(counts: Counter[tuple[int, ...]], expected: dict[tuple[int, ...], float]) -> float:
    """p-value; cells expected less than 5 times are taken together."""
    assert set(counts) <= {key for key, one in expected.items() if one > 0}
    large = [key for key, one in expected.items() if one >= 5]
    pairs = [(counts[key], expected[key]) for key in large]
    rest = sum(one for key, one in expected.items() if key not in large)
    if rest > 0:
        pairs.append((sum(counts[key] for key in counts if key not in large), rest))
    statistic = sum((seen - one) ** 2 / one for seen, one in pairs)
    half_freedom = torch.tensor((len(pairs) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(half_freedom, torch.tensor(statistic / 2).double()))


LAWS = [
    SamplingParams(temperature=1.0),
    SamplingParams(temperature=0.6, top_k=4),
    SamplingParams(temperature=1.3, top_p=0.8, frequency_penalty=1.0, repetition_penalty=1.4),
    SamplingParams(temperature=1.0, min_p=0.15, logit_bias={1: 1.5}, min_tokens=2),
]


@pytest.mark.slow
@pytest.mark.parametrize("sampling", LAWS, ids=range(len(LAWS)))
@pytest.mark.parametrize("draft_is", ["another model", "the model itself", "certain"])
def test_two_tokens_together_follow_the_models_own_law(
    sampling: SamplingParams, draft_is: str
) -> None:
    check_law(sampling, draft_is, draws=4000)


@pytest.mark.parametrize("law", [0, 2])
def test_a_drawn_draft_does_not_show_in_the_law_of_what_comes_out(law: int) -> None:
    check_law(LAWS[law], "another model", draws=800)


def check_law(sampling: SamplingParams, draft_is: str, draws: int) -> None:
    """Drafts of two; what comes out first, and second if it comes out, has the joint law of
    sampling from the model token by token. Where only one comes, the second is sampled alone."""
    counts: Counter[tuple[int, ...]] = Counter()
    for seed in range(draws):
        state = make_state(sampling, seed)
        drafted: tuple[int, ...] = ()
        probabilities = []
        for _ in range(2):
            source = 0 if draft_is == "the model itself" else 1000
            logits = next_logits(source, drafted)[None]
            token_id, q = draw_draft_tokens(logits, [state.after(drafted)])[0]
            drafted += (token_id,)
            probabilities.append(q)
        stacked = None if draft_is == "certain" else torch.stack(probabilities)  # type: ignore[arg-type]
        if draft_is == "certain":
            drafted = (3, 0)
        (out,) = sample_and_verify(along(0, drafted), [state], [Draft(drafted, stacked)])
        if draft_is == "the model itself":
            assert out[:2] == list(drafted), "what p itself has drawn always stands"
        if len(out) == 1:
            out.append(sample_row(next_logits(0, tuple(out)), state.after(out)))
        counts[tuple(out[:2])] += 1
    expected = {}
    first = distribution(next_logits(0, ()), make_state(sampling))
    for one, two in product(range(VOCAB), repeat=2):
        state = make_state(sampling).after([one])
        second = distribution(next_logits(0, (one,)), state)
        expected[one, two] = draws * float(first[one] * second[two])
    assert chi_square_p(counts, expected) > 1e-4


@pytest.mark.slow
def test_more_samples_come_nearer_to_the_target_and_not_to_anything_else() -> None:
    """vLLM's test of convergence: the distance to the target shrinks with the number of samples,
    that to an unrelated distribution does not."""
    logits = next_logits(0, ())
    target = distribution(logits, make_state(SamplingParams()))
    other = next_logits(77, ()).double().softmax(-1)
    draws = []
    for seed in range(20_000):
        state = make_state(SamplingParams(), seed)
        token_id, q = draw_draft_tokens(next_logits(1000, ())[None], [state])[0]
        assert q is not None
        (out,) = sample_and_verify(
            torch.stack([logits, logits]), [state], [Draft([token_id], q[None])]
        )
        draws.append(out[0])
    few, many = (
        torch.bincount(torch.tensor(draws[:count]), minlength=VOCAB).double() / count
        for count in (10, len(draws))
    )
    towards_target = float((few - target).norm() / (many - target).norm())
    towards_other = float((few - other).norm() / (many - other).norm())
    assert towards_target > 20 * towards_other


def test_a_draft_token_that_cannot_be_drawn_never_stands() -> None:
    logits = torch.zeros(2, VOCAB)
    logits[0, 4] = float("-inf")
    q = torch.zeros(1, VOCAB, dtype=torch.float64)
    q[0, 4] = 1.0
    for seed in range(50):
        state = make_state(SamplingParams(), seed)
        (out,) = sample_and_verify(logits, [state], [Draft([4], q)])
        assert len(out) == 1
        assert out[0] != 4


def test_requests_with_and_without_drafts_share_a_batch() -> None:
    q = distribution(next_logits(1000, ()), make_state(SamplingParams()))[None]
    drafts = [NO_DRAFT, Draft([3, 0]), Draft([2], q), NO_DRAFT]
    sampling = [GREEDY, GREEDY, SamplingParams(), SamplingParams(temperature=0.5)]
    states = [make_state(one, place) for place, one in enumerate(sampling)]
    logits = [along(place, tuple(draft.token_ids)) for place, draft in enumerate(drafts)]
    together = sample_and_verify(torch.cat(logits), states, drafts)
    for place in range(4):
        alone = sample_and_verify(logits[place], [states[place]], [drafts[place]])
        assert together[place] == alone[0]


@pytest.fixture
def interpreted() -> Iterator[None]:
    interpreter = pytest.importorskip("kernels.testing.interpreter")
    with interpreter.use_faithful_interpreter():
        yield


@pytest.mark.usefixtures("interpreted")
def test_the_kernels_give_the_tokens_of_row_by_row() -> None:
    """Drawing and verifying, on the path that a GPU takes."""
    torch.manual_seed(0)
    sampling = [*LAWS, GREEDY, SamplingParams(temperature=0, frequency_penalty=1.0)]
    for turn in range(4):
        states = [make_state(one, 10 * turn + place) for place, one in enumerate(sampling)]
        drawn = _drafts_in_launches(states)
        logits = torch.cat([along(0, tuple(draft.token_ids)) for draft in drawn])
        in_launches = sample_and_verify(logits, states, drawn)
        one_by_one = [
            _row_by_row(along(0, tuple(d.token_ids)), s, d)
            for d, s in zip(drawn, states, strict=True)
        ]
        assert in_launches == one_by_one


def _drafts_in_launches(states: list[SamplingState]) -> list[Draft]:
    """Two tokens for each request; every second one keeps its draft as certain."""
    drafted = [()] * len(states)
    kept: list[list[torch.Tensor | None]] = [[] for _ in states]
    for _ in range(2):
        logits = torch.stack([next_logits(1000, tokens) for tokens in drafted])
        later = [state.after(tokens) for state, tokens in zip(states, drafted, strict=True)]
        for place, (token_id, q) in enumerate(draw_draft_tokens(logits, later)):
            drafted[place] += (token_id,)
            kept[place].append(q)
    drafts = []
    for place, (tokens, rows_of) in enumerate(zip(drafted, kept, strict=True)):
        is_certain = rows_of[0] is None or place == 1
        drafts.append(Draft(tokens, None if is_certain else torch.stack(rows_of)))  # type: ignore[arg-type]
    return drafts


def _row_by_row(logits: torch.Tensor, state: SamplingState, draft: Draft) -> list[int]:
    from infra_lab.sampling.rejection_sampler import _verify

    q = None if draft.probabilities is None else draft.probabilities.double()
    return _verify(logits, state, Draft(draft.token_ids, q))
