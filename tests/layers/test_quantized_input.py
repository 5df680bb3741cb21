"""Layers that round their input: against the kernels' references, exact laws and bitsandbytes."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.errors import UsageError
from infra_lab.formats.quantized_weight import ActivationFormat
from infra_lab.layers.linear import make_linear
from infra_lab.layers.quantized_input import QuantizedInput, rounded_input
from kernels.quantize_fp8 import quantize_fp8_reference
from kernels.quantize_int8 import quantize_per_token_reference

inputs = st.builds(
    lambda rows, columns, seed, size: (
        torch.randn(rows, columns, generator=torch.Generator().manual_seed(seed)) * size
    ),
    st.integers(1, 9),
    st.integers(1, 40),
    st.integers(0, 99),
    st.sampled_from([1e-30, 1e-3, 1.0, 1e4]),
)


@given(inputs)
def test_int8_tokens_are_those_of_the_kernel(x: torch.Tensor) -> None:
    codes, scales = quantize_per_token_reference(x)
    assert torch.equal(rounded_input(x, ActivationFormat()), codes.float() * scales[:, None])


@given(inputs)
def test_fp8_tokens_are_those_of_the_kernel(x: torch.Tensor) -> None:
    codes, scales = quantize_fp8_reference(x)
    assert torch.equal(rounded_input(x, ActivationFormat(kind="fp8")), codes.float() * scales)


@given(
    inputs,
    st.sampled_from([2, 4, 8]),
    st.booleans(),
    st.sampled_from(["token", "tensor"]),
)
def test_an_input_moves_by_half_a_step_at_most_and_zeros_stay(
    x: torch.Tensor, bits: int, symmetric: bool, granularity: str
) -> None:
    x = x * (torch.rand(x.shape) > 0.2)
    activation = ActivationFormat(bits=bits, symmetric=symmetric, granularity=granularity)  # type: ignore[arg-type]
    rounded = rounded_input(x, activation)
    rows = x if granularity == "token" else x.reshape(1, -1)
    if symmetric:
        step = rows.abs().amax(-1) / (2 ** (bits - 1) - 1)
    else:
        step = (rows.amax(-1).clamp(min=0) - rows.amin(-1).clamp(max=0)) / (2**bits - 1)
    # Of the least and the largest number, one may lie half a step outside the codes.
    bound = step * (0.5 if symmetric else 1.0) * 1.0001
    assert ((rounded - x).abs() <= bound[:, None]).all()
    assert (rounded[x == 0] == 0).all()


@given(inputs)
def test_a_row_alone_is_rounded_as_in_its_batch(x: torch.Tensor) -> None:
    for activation in (ActivationFormat(), ActivationFormat(bits=4, symmetric=False)):
        together = rounded_input(x, activation)
        assert torch.equal(rounded_input(x[:1], activation), together[:1])


def test_a_scale_fixed_beforehand_holds_for_every_token_and_clips() -> None:
    activation = ActivationFormat(granularity="tensor", scale=0.5)
    x = torch.tensor([[0.2, 0.3, -0.75], [100.0, -100.0, 0.25]])
    expected = torch.tensor([[0.0, 0.5, -1.0], [63.5, -63.5, 0.0]])
    assert torch.equal(rounded_input(x, activation), expected)


@pytest.mark.parametrize("kind", ["int", "fp8"])
def test_zeros_and_no_rows_at_all_are_rounded_to_themselves(kind: str) -> None:
    for x in (torch.zeros(2, 3), torch.empty(0, 3)):
        for granularity in ("token", "tensor"):
            activation = ActivationFormat(kind=kind, granularity=granularity)  # type: ignore[arg-type]
            assert torch.equal(rounded_input(x, activation), x)


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
@pytest.mark.parametrize("symmetric", [True, False])
def test_a_token_that_is_not_finite_becomes_nan_and_no_other(bad: float, symmetric: bool) -> None:
    x = torch.randn(3, 40)
    x[1, 7] = bad
    rounded = rounded_input(x, ActivationFormat(symmetric=symmetric))
    assert rounded[1].isnan().all()
    assert rounded[[0, 2]].isfinite().all()


def test_columns_with_an_outlier_stay_in_full_precision_and_set_no_scale() -> None:
    x = torch.tensor([[0.5, 70.0, -1.27], [0.003, 0.1, 0.2]])
    rounded = rounded_input(x, ActivationFormat(outlier_threshold=6.0))
    assert torch.equal(rounded[:, 1], x[:, 1])
    others = rounded_input(x[:, [0, 2]], ActivationFormat())
    assert torch.equal(rounded[:, [0, 2]], others)


def test_outliers_are_split_off_as_bitsandbytes_does() -> None:
    functional = pytest.importorskip("bitsandbytes.functional")
    torch.manual_seed(0)
    x = torch.randn(6, 32).half()
    x[2, 5], x[4, 20] = 9.0, -30.0
    codes, scales, outliers = functional.int8_vectorwise_quant(x, threshold=6.0)
    assert outliers.tolist() == [5, 20]
    rounded = rounded_input(x.float(), ActivationFormat(outlier_threshold=6.0))
    expected = codes.float() * scales[:, None] / 127
    expected[:, outliers] = x[:, outliers].float()
    torch.testing.assert_close(rounded, expected, rtol=1e-3, atol=1e-3)


def test_a_layer_rounds_its_input_in_its_own_type() -> None:
    base = make_linear(torch.randn(4, 8).bfloat16())
    layer, x = QuantizedInput(base, ActivationFormat()), torch.randn(3, 8).bfloat16()
    assert torch.equal(layer(x), base(rounded_input(x, ActivationFormat())))
    assert layer(x).dtype == torch.bfloat16
    indices = torch.tensor([2, 0])
    assert torch.equal(layer.rows(indices), base.rows(indices))


@pytest.mark.parametrize(
    ("activation", "message"),
    [
        (ActivationFormat(bits=4, kind="fp8"), "fp8 have 8 bits and no zero point, not 4 bits"),
        (ActivationFormat(kind="fp8", symmetric=False), "not 8 bits and one"),
        (ActivationFormat(bits=16), "2 to 8 bits here, not 16"),
        (ActivationFormat(scale=0.5), "one for the tensor"),
        (ActivationFormat(scale=0.5, granularity="tensor", symmetric=False), "symmetric"),
    ],
)
def test_formats_that_nothing_here_computes_are_refused(
    activation: ActivationFormat, message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        QuantizedInput(make_linear(torch.ones(2, 2)), activation)
