"""What the experiments on prefixes, copy-on-write and drafts count, on small cases by hand."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.calculators.prefix import computed_tokens, memory_saved_share
from infra_lab.calculators.speculation import expected_tokens
from infra_lab.claims.experiments.copy_on_write import Shared, sample_group
from infra_lab.claims.experiments.prefix_cache import (
    computed,
    memory_saved,
    prefix_left_after_eviction,
)
from infra_lab.claims.experiments.speculation import (
    maximum_likelihood_acceptance,
    published_factor,
)
from infra_lab.claims.experiments.verified_drafts import simulated_tokens_per_step


@pytest.mark.parametrize(
    ("shared", "prompt", "wanted"),
    [(1500, 2000, 512), (2000, 2000, 16), (15, 100, 100), (16, 100, 84), (100, 100, 4)],
)
def test_the_engine_computes_what_whole_blocks_leave(shared: int, prompt: int, wanted: int) -> None:
    assert computed(shared, prompt) == wanted


@given(prompt=st.integers(1, 120), shared=st.integers(0, 120), block=st.sampled_from([1, 4, 16]))
def test_the_engine_and_the_formula_agree_on_every_prefix(
    prompt: int, shared: int, block: int
) -> None:
    shared = min(shared, prompt)
    assert computed(shared, prompt, block) == computed_tokens(shared, prompt, block)


@pytest.mark.parametrize("number", [1, 2, 5])
def test_running_sharers_save_as_the_formula_says(number: int) -> None:
    assert memory_saved(number) == pytest.approx(memory_saved_share(0.5, number))


def test_eviction_takes_the_end_first() -> None:
    assert prefix_left_after_eviction() == 3


def test_samples_of_one_prompt_by_hand() -> None:
    # Two samples of a prompt of one whole block: the first token comes with the prompt's step,
    # the second needs a block of each one's own.
    assert sample_group(16, [2, 2]) == Shared(held=1 + 3, unshared=1 + 4, copies=0)


def test_who_shares_an_unfilled_block_copies_it_but_for_the_last() -> None:
    for width in (1, 2, 5):
        assert sample_group(20, [6] * width).copies == width - 1
        assert sample_group(32, [6] * width).copies == 0


def test_acceptance_is_accepted_over_verified_places() -> None:
    # 5 drafted and 2 stood: 3 places were verified; 4 drafted and all stood: 4.
    assert maximum_likelihood_acceptance([(5, 2), (4, 4)]) == 6 / 7


def test_the_published_factor_passes_what_drafts_can_give() -> None:
    assert published_factor(0.9, 5) == pytest.approx(8.333, abs=1e-3)
    assert expected_tokens(0.9, 5) < 6 < published_factor(0.9, 5)


@pytest.mark.parametrize("acceptance", [0.0, 0.5, 0.9, 1.0])
def test_the_rejection_sampler_keeps_to_leviathans_formula(acceptance: float) -> None:
    found = simulated_tokens_per_step(acceptance, 3, 800, seed=1)
    # The standard deviation of a trial is below 1.5: four of them of the mean.
    assert abs(found - expected_tokens(acceptance, 3)) < 4 * 1.5 / 800**0.5
