"""The sampler: its law, its repeatability, its penalties and its log-probabilities."""

from __future__ import annotations

import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import RepetitionPenaltyLogitsProcessor

from infra_lab.sampling.filters import keep_candidates
from infra_lab.sampling.logits_processors import process_logits
from infra_lab.sampling.request_state import SamplingState
from infra_lab.sampling.sampler import pick, sample, token_logprobs, uniform
from infra_lab.sampling_params import SamplingParams
from infra_lab.step import NewRequest

VOCAB = 11


def make_state(
    params: SamplingParams,
    prompt: tuple[int, ...] = (1,),
    output: tuple[int, ...] = (),
    seed: int = 0,
    eos: frozenset[int] = frozenset({2}),
) -> SamplingState:
    state = SamplingState(NewRequest("r", prompt, params, seed, eos))
    for token_id in output:
        state.append(token_id)
    return state


@given(
    st.lists(st.floats(-5, 5, width=32), min_size=1, max_size=9), st.floats(0, 1, exclude_max=True)
)
def test_a_pick_is_where_the_cumulative_probability_passes_u(logits: list[float], u: float) -> None:
    row = torch.tensor(logits)
    index = pick(row, u)
    cumulative = row.double().softmax(-1).cumsum(-1)
    assert cumulative[index] >= u - 1e-9
    assert index == 0 or cumulative[index - 1] <= u + 1e-9


@given(st.integers(0, VOCAB - 1), st.floats(0, 1, exclude_max=True))
def test_a_token_of_no_probability_is_never_picked(banned: int, u: float) -> None:
    row = torch.zeros(VOCAB)
    row[banned] = float("-inf")
    assert pick(row, u) != banned


def test_the_largest_u_still_picks_a_possible_token() -> None:
    row = torch.tensor([0.0, 0.0, float("-inf")])
    assert pick(row, math.nextafter(1.0, 0.0)) == 1


def test_samples_follow_the_tempered_softmax() -> None:
    torch.manual_seed(0)
    logits = torch.randn(VOCAB) * 2
    params = SamplingParams(temperature=0.7)
    draws = 20_000
    counts = Counter(
        sample(logits[None], [make_state(params, seed=seed)])[0] for seed in range(draws)
    )
    expected = (logits.double() / 0.7).softmax(-1) * draws
    chi_square = sum((counts[i] - e) ** 2 / e for i, e in enumerate(expected.tolist()))
    # 99.9th percentile of chi-square with 10 degrees of freedom.
    assert chi_square < 29.6


@given(st.integers(0, 2**63 - 1), st.integers(0, 1000))
def test_the_uniform_stream_is_a_pure_function(seed: int, index: int) -> None:
    u = uniform(seed, index)
    assert 0 <= u < 1
    assert u == uniform(seed, index)
    assert u != uniform(seed, index + 1)


@settings(max_examples=40)
@given(
    seeds=st.lists(st.integers(0, 99), min_size=2, max_size=8),
    top_k=st.sampled_from([0, 2]),
    top_p=st.sampled_from([0.8, 1.0]),
)
def test_a_token_does_not_depend_on_who_shares_the_batch(
    seeds: list[int], top_k: int, top_p: float
) -> None:
    torch.manual_seed(1)
    logits = torch.randint(-2, 3, (len(seeds), VOCAB)).float()
    params = [SamplingParams(temperature=0.5 + 0.1 * i, top_k=top_k, top_p=top_p) for i in range(8)]
    states = [make_state(params[i], seed=seed) for i, seed in enumerate(seeds)]
    together = sample(logits, states)
    alone = [sample(logits[i : i + 1], [state])[0] for i, state in enumerate(states)]
    assert together == alone


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-45, 5e-324])
@pytest.mark.parametrize("filters", [{}, {"top_k": 3}, {"top_p": 0.5}, {"min_p": 0.1}])
def test_a_temperature_next_to_nothing_is_greedy(
    temperature: float, filters: dict[str, float]
) -> None:
    torch.manual_seed(0)
    logits = torch.randn(1, VOCAB) * 20
    state = make_state(SamplingParams(temperature=temperature, **filters))  # type: ignore[arg-type]
    assert sample(logits, [state]) == [int(logits.argmax())]


def test_greedy_takes_the_lowest_of_equal_tokens_at_any_batch() -> None:
    state = make_state(SamplingParams(temperature=0))
    for batch in (1, 8):
        assert sample(torch.zeros(batch, VOCAB), [state] * batch) == [0] * batch


@given(
    penalty=st.sampled_from([0.5, 1.3, 2.0]),
    prompt=st.lists(st.integers(0, VOCAB - 1), min_size=1, max_size=5),
    output=st.lists(st.integers(0, VOCAB - 1), max_size=5),
)
def test_repetition_penalty_equals_transformers(
    penalty: float, prompt: list[int], output: list[int]
) -> None:
    torch.manual_seed(2)
    logits = torch.randn(VOCAB)
    params = SamplingParams(repetition_penalty=penalty)
    ours = process_logits(logits, make_state(params, tuple(prompt), tuple(output)))
    oracle = RepetitionPenaltyLogitsProcessor(penalty)
    theirs = oracle(torch.tensor([prompt + output]), logits[None].clone())[0]
    torch.testing.assert_close(ours, theirs)


@given(
    presence=st.sampled_from([-2.0, 0.0, 0.5]),
    frequency=st.sampled_from([-1.0, 0.0, 0.25]),
    output=st.lists(st.integers(0, VOCAB - 1), max_size=8),
)
def test_presence_counts_once_and_frequency_each_time_over_output_only(
    presence: float, frequency: float, output: list[int]
) -> None:
    logits = torch.zeros(VOCAB)
    params = SamplingParams(presence_penalty=presence, frequency_penalty=frequency)
    got = process_logits(logits, make_state(params, (3, 3, 4), tuple(output)))
    for token_id in range(VOCAB):
        count = output.count(token_id)
        assert got[token_id] == -(presence * (count > 0) + frequency * count)


def test_logit_bias_can_force_and_forbid() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 3] = 5.0
    forced = make_state(SamplingParams(temperature=0, logit_bias={7: 100.0}))
    forbidden = make_state(SamplingParams(temperature=0, logit_bias={3: -100.0}))
    assert sample(logits, [forced]) == [7]
    assert sample(logits, [forbidden]) == [0]


def test_end_tokens_are_out_of_reach_until_min_tokens() -> None:
    logits = torch.zeros(1, VOCAB)
    logits[0, 2], logits[0, 5] = 9.0, 8.0
    params = SamplingParams(temperature=0, min_tokens=2, max_tokens=9, stop_token_ids=(5,))
    assert sample(logits, [make_state(params)]) == [0]
    assert sample(logits, [make_state(params, output=(0,))]) == [0]
    assert sample(logits, [make_state(params, output=(0, 0))]) == [2]


def test_processing_leaves_the_row_of_the_batch_untouched() -> None:
    logits = torch.zeros(VOCAB)
    process_logits(logits, make_state(SamplingParams(logit_bias={1: 3.0})))
    assert torch.equal(logits, torch.zeros(VOCAB))


@given(token_id=st.integers(0, VOCAB - 1), num_top=st.integers(0, VOCAB), seed=st.integers(0, 9))
def test_logprobs_are_the_log_softmax_of_the_raw_logits(
    token_id: int, num_top: int, seed: int
) -> None:
    torch.manual_seed(seed)
    logits = torch.randn(1, VOCAB)
    exact = logits[0].double().log_softmax(-1)
    (entry,) = token_logprobs(logits, [token_id], [num_top])
    assert entry.token_id == token_id
    assert entry.logprob == pytest.approx(exact[token_id].item(), abs=1e-5)
    assert entry.rank == 1 + int((exact > exact[token_id]).sum())
    order = exact.argsort(descending=True)[:num_top].tolist()
    assert [token for token, _ in entry.top] == order
    assert [value for _, value in entry.top] == pytest.approx(exact[order].tolist(), abs=1e-5)


class AllowsOnly:
    """Stands in for a grammar's state."""

    def __init__(self, token_ids: set[int]) -> None:
        self.mask = np.array([index in token_ids for index in range(VOCAB)])

    def allowed(self) -> np.ndarray:
        return self.mask


@given(
    allowed=st.sets(st.integers(0, VOCAB - 1), min_size=1),
    params=st.builds(
        SamplingParams,
        temperature=st.sampled_from([0.0, 0.7, 1.5]),
        top_k=st.sampled_from([0, 1, 3]),
        top_p=st.sampled_from([0.4, 1.0]),
        min_p=st.sampled_from([0.0, 0.3]),
        repetition_penalty=st.sampled_from([0.5, 1.0, 1.8]),
        presence_penalty=st.sampled_from([0.0, 1.0]),
        logit_bias=st.dictionaries(st.integers(0, VOCAB - 1), st.sampled_from([-100, 100])),
        min_tokens=st.sampled_from([0, 5]),
    ),
    seed=st.integers(0, 99),
)
def test_a_document_is_sampled_as_if_the_vocabulary_held_only_what_it_allows(
    allowed: set[int], params: SamplingParams, seed: int
) -> None:
    torch.manual_seed(seed)
    logits = torch.randn(VOCAB) * 3
    state = make_state(params, output=(3,), seed=seed)
    state.grammar = AllowsOnly(allowed)  # type: ignore[assignment]
    chosen = sample(logits[None], [state])[0]
    kept = sorted(allowed)
    processed = process_logits(logits, state)
    assert torch.isinf(processed).nonzero().squeeze(-1).tolist() == [
        index for index in range(VOCAB) if index not in allowed
    ]
    if params.temperature == 0:
        assert chosen == kept[int(processed[kept].argmax())]
        return
    scaled = (processed[kept] - processed[kept].max()) / params.temperature
    ids, values = keep_candidates(scaled, params)
    assert chosen == kept[int(ids[pick(values, uniform(seed, 1))])]
