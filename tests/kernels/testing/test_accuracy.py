"""The rule that judges kernels, judged."""

from __future__ import annotations

import pytest
import torch

from kernels.testing.accuracy import assert_as_accurate_as_torch

TRUTH = torch.tensor([1.0, -2.0, 3.0, 100.0], dtype=torch.float64)
PEER = (TRUTH + 0.01).bfloat16()


def test_the_truth_itself_passes() -> None:
    assert_as_accurate_as_torch(TRUTH.bfloat16(), TRUTH, TRUTH.bfloat16())


def test_twice_torchs_error_passes_and_more_does_not() -> None:
    peer = (TRUTH + 0.125).float()
    assert_as_accurate_as_torch((TRUTH + 0.25).float(), TRUTH, peer)
    wrong = TRUTH.float()
    wrong[2] += 0.26
    with pytest.raises(AssertionError, match=r"error 0.26 at \(2,\).*torch in torch.float32 errs"):
        assert_as_accurate_as_torch(wrong, TRUTH, peer)


@pytest.mark.parametrize("special", [float("nan"), float("inf"), float("-inf")])
def test_special_values_must_be_where_the_truth_has_them(special: float) -> None:
    spoiled = TRUTH.clone()
    spoiled[1] = special
    assert_as_accurate_as_torch(spoiled.bfloat16(), spoiled, PEER)
    with pytest.raises(AssertionError, match=r"1 of 4, the first at \(1,\) \(too much\)"):
        assert_as_accurate_as_torch(spoiled.bfloat16(), TRUTH, PEER)
    with pytest.raises(AssertionError, match=r"\(missing\)"):
        assert_as_accurate_as_torch(TRUTH.bfloat16(), spoiled, PEER)


def test_beyond_the_range_of_the_dtype_infinity_is_right() -> None:
    truth = torch.tensor([1e6, 1.0], dtype=torch.float64)
    peer = truth.half()
    assert_as_accurate_as_torch(truth.half(), truth, peer)
    with pytest.raises(AssertionError, match=r"\+inf"):
        assert_as_accurate_as_torch(torch.tensor([65504.0, 1.0]).half(), truth, peer)


def test_empty_tensors_pass() -> None:
    empty = torch.zeros(0)
    assert_as_accurate_as_torch(empty, empty.double(), empty)


def test_a_truth_in_float32_is_refused() -> None:
    with pytest.raises(AssertionError, match="wanted float64"):
        assert_as_accurate_as_torch(TRUTH.float(), TRUTH.float(), TRUTH.float())
