"""top_k, top_p and min_p against the definition, by brute force over all tokens."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infra_lab.sampling import filters
from infra_lab.sampling.filters import keep_candidates
from infra_lab.sampling_params import SamplingParams

# Halves of small integers: many exact ties.
rows = st.lists(st.integers(-8, 8).map(lambda n: n / 2), min_size=1, max_size=40)


def by_definition(logits: list[float], params: SamplingParams) -> list[int]:
    """Sort by (logit descending, id ascending); cut by min_p, then top_k, then top_p."""
    order = sorted(range(len(logits)), key=lambda i: (-logits[i], i))
    largest = logits[order[0]]
    if params.min_p > 0:
        order = [i for i in order if math.exp(logits[i] - largest) >= params.min_p * (1 - 1e-9)]
    if params.top_k > 0:
        order = order[: params.top_k]
    if params.top_p < 1:
        total = sum(math.exp(logits[i] - largest) for i in order)
        kept, mass = [], 0.0
        for i in order:
            if kept and mass / total >= params.top_p:
                break
            kept.append(i)
            mass += math.exp(logits[i] - largest)
        order = kept
    return order


@settings(max_examples=300)
@given(
    logits=rows,
    top_k=st.integers(0, 45),
    top_p=st.sampled_from([0.05, 0.31, 0.77, 0.9173, 0.99901, 1.0]),
    min_p=st.sampled_from([0.0, 0.013, 0.11, 0.45, 1.0]),
)
def test_the_survivors_are_those_of_the_definition(
    logits: list[float], top_k: int, top_p: float, min_p: float
) -> None:
    params = SamplingParams(top_k=top_k, top_p=top_p, min_p=min_p)
    ids, values = keep_candidates(torch.tensor(logits), params)
    expected = by_definition(logits, params)
    if top_k == 0 and top_p == 1.0 and min_p == 0.0:
        expected = sorted(expected)
    assert ids.tolist() == expected
    assert values.tolist() == [logits[i] for i in expected]


def test_top_p_acts_on_what_top_k_left() -> None:
    logits = torch.tensor([0.1, 0.2, 0.3, 0.4]).log()
    assert keep_candidates(logits, SamplingParams(top_k=2, top_p=0.5))[0].tolist() == [3]
    assert keep_candidates(logits, SamplingParams(top_k=2, top_p=0.6))[0].tolist() == [3, 2]


def test_of_equal_logits_the_lower_ids_stay() -> None:
    ids, _ = keep_candidates(torch.zeros(4), SamplingParams(top_k=2))
    assert ids.tolist() == [0, 1]


@pytest.mark.parametrize("top_p", [0.2, 0.9, 0.999, 0.9999999])
def test_a_nucleus_wider_than_the_first_look_is_found_whole(top_p: float) -> None:
    torch.manual_seed(0)
    logits = torch.randn(5000)
    ids, _ = keep_candidates(logits, SamplingParams(top_p=top_p))
    kept = logits.double().softmax(-1)[ids].sum().item()
    assert kept >= top_p - 1e-5
    assert kept - logits.double().softmax(-1)[ids[-1]].item() < top_p
    assert top_p < 0.9 or len(ids) > filters.FIRST_CANDIDATES
