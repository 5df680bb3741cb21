"""Rounded inputs: W8A8, W4A8, W4A4, fp8, and the outliers of LLM.int8()."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infra_lab.errors import UsageError
from infra_lab.formats.quantized_weight import ActivationFormat
from infra_lab.quantization.activations import outlying_columns, quantized_product, round_input
from infra_lab.quantization.integer import IntegerScheme
from infra_lab.quantization.llm_int8 import INPUT_FORMAT, llm_int8_product, quantize_llm_int8
from infra_lab.quantization.rotation import random_rotation
from infra_lab.quantization.rtn import round_to_nearest
from tests.quantization.inputs import SEEDS, random_weight

FORMATS = st.builds(
    ActivationFormat,
    bits=st.sampled_from([4, 8]),
    granularity=st.sampled_from(["token", "tensor"]),
    symmetric=st.booleans(),
) | st.builds(
    ActivationFormat,
    kind=st.just("fp8"),
    granularity=st.sampled_from(["token", "tensor"]),
)


def inputs(seed: int, outlier: float = 1.0) -> torch.Tensor:
    x = random_weight(16, 96, seed, torch.float32)
    x[:, 7] *= outlier
    return x


@settings(max_examples=40)
@given(FORMATS, SEEDS)
def test_an_input_comes_back_within_half_a_step(form: ActivationFormat, seed: int) -> None:
    x = inputs(seed)
    x[3] = 0
    dim = -1 if form.granularity == "token" else (0, 1)
    high = x.amax(dim, keepdim=True).clamp(min=0)
    low = x.amin(dim, keepdim=True).clamp(max=0)
    reach = torch.maximum(high, -low)
    if form.kind == "fp8":
        step = torch.maximum(x.abs() / 8, reach / 448 * 2**-9)
    elif form.symmetric:
        step = reach / (2 ** (form.bits - 1) - 1)
    else:
        step = (high - low) / (2**form.bits - 1)
    rounded = round_input(x, form)
    assert ((rounded - x).abs() <= step / 2 * (1 + 1e-4) + reach * 1e-6).all()
    assert not rounded[3].any()


@settings(max_examples=40)
@given(FORMATS, SEEDS)
def test_a_token_is_rounded_without_regard_to_the_others(form: ActivationFormat, seed: int) -> None:
    x = inputs(seed)
    if form.granularity == "token":
        assert torch.equal(round_input(x, form)[3:5], round_input(x[3:5], form))


@settings(max_examples=30)
@given(FORMATS, SEEDS, st.sampled_from([float("nan"), float("inf")]))
def test_a_bad_number_shows_and_spoils_only_what_shares_its_scale(
    form: ActivationFormat, seed: int, bad: float
) -> None:
    x = inputs(seed)
    x[2, 5] = bad
    rounded = round_input(x, form)
    assert rounded[2].isnan().all()
    if form.granularity == "token":
        assert rounded[torch.arange(16) != 2].isfinite().all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_type_of_the_input_is_kept(dtype: torch.dtype) -> None:
    assert round_input(inputs(0).to(dtype), ActivationFormat()).dtype == dtype


def test_int8_tokens_are_those_of_the_kernels() -> None:
    kernel = pytest.importorskip("kernels.quantize_int8")
    x = inputs(3)
    codes, scales = kernel.quantize_per_token_reference(x)
    assert torch.equal(round_input(x, ActivationFormat()), codes.float() * scales[:, None])


def test_fp8_tokens_are_those_of_torchao() -> None:
    torchao = pytest.importorskip("torchao.quantization.quant_primitives")
    x = inputs(4)
    scales = torchao._choose_scale_float8(x, [1, 96], torch.float8_e4m3fn)
    codes = torchao._quantize_affine_float8(x, scales, torch.float8_e4m3fn)
    ours = round_input(x, ActivationFormat(kind="fp8"))
    torch.testing.assert_close(ours, codes.float() * scales, rtol=1e-6, atol=0)


def test_a_fixed_scale_clips_what_it_does_not_reach() -> None:
    x = torch.tensor([[0.26, -0.24, 100.0, -100.0]])
    form = ActivationFormat(granularity="tensor", scale=0.5)
    assert round_input(x, form).tolist() == [[0.5, 0.0, 63.5, -63.5]]
    floats = ActivationFormat(kind="fp8", granularity="tensor", scale=0.5)
    assert round_input(x * 10, floats)[0, 2:].tolist() == [224.0, -224.0]


def relative_error(x: torch.Tensor, weight: torch.Tensor, bits: int, form: Any) -> float:
    quantized = round_to_nearest(weight, IntegerScheme(bits, symmetric=True))
    wanted = x.double() @ weight.double().T
    return float((quantized_product(x, quantized, form) - wanted).norm() / wanted.norm())


def test_each_bit_less_costs_more() -> None:
    x, weight = inputs(0), random_weight(32, 96, 1, torch.float32)
    errors = [
        relative_error(x, weight, bits, form)
        for bits, form in [
            (8, None),
            (8, ActivationFormat(8)),
            (4, None),
            (4, ActivationFormat(8)),
            (4, ActivationFormat(4)),
        ]
    ]
    assert errors == sorted(errors)
    assert errors[1] < 0.015
    assert errors[3] < 1.02 * errors[2]  # W4A8 costs hardly more than W4A16


@pytest.mark.parametrize(("bits", "gain"), [(8, 3.0), (4, 1.5)])
def test_a_rotation_cures_activations_with_outliers(bits: int, gain: float) -> None:
    """W4A4 (and W4A8): the same product of rotated inputs and weights, which are even."""
    x, weight = inputs(2, outlier=60), random_weight(32, 96, 3, torch.float32)
    weight[:, 7] /= 20
    rotation = random_rotation(96, torch.Generator().manual_seed(1))
    form = ActivationFormat(bits)
    plain = relative_error(x, weight, 8, form)
    rotated = relative_error(rotation.apply(x), rotation.apply(weight), 8, form)
    assert rotated < plain / gain


def test_outliers_in_full_precision_cost_the_others_nothing() -> None:
    """LLM.int8(): the naive product, the split, and the split with a full copy of the columns."""
    x, weight = inputs(5, outlier=80), random_weight(32, 96, 6, torch.float32)
    wanted = x.double() @ weight.double().T
    quantized = quantize_llm_int8(weight)
    others = torch.arange(96) != 7

    def error(product: torch.Tensor) -> float:
        return float((product.double() - wanted).norm())

    naive = error(llm_int8_product(x, quantized, threshold=None))
    split = error(llm_int8_product(x, quantized))
    full = error(llm_int8_product(x, quantized, full=weight))
    without = error(
        llm_int8_product(x[:, others], quantize_llm_int8(weight[:, others]))
        + x[:, 7:8] @ weight[:, 7:8].T
    )
    assert full < split < naive
    assert full < naive / 5
    assert full == pytest.approx(without, rel=0.1)


@settings(max_examples=30)
@given(SEEDS, st.sampled_from([1.0, 60.0]))
def test_the_split_product_is_that_of_the_rounded_inputs(seed: int, outlier: float) -> None:
    x, weight = inputs(seed, outlier), random_weight(8, 96, seed + 1, torch.float32)
    quantized = quantize_llm_int8(weight)
    got = llm_int8_product(x.view(4, 4, 96), quantized).view(16, 8)
    wanted = quantized_product(x, quantized, INPUT_FORMAT)
    torch.testing.assert_close(
        got.double(), wanted, rtol=1e-5, atol=1e-5 * float(wanted.abs().max())
    )


@settings(max_examples=30)
@given(SEEDS)
def test_codes_scales_and_outliers_are_those_of_bitsandbytes(seed: int) -> None:
    bitsandbytes = pytest.importorskip("bitsandbytes.functional")
    x, weight = inputs(seed, 30).half(), random_weight(8, 96, seed + 1).half()
    codes, largest, columns = bitsandbytes.int8_vectorwise_quant(x, threshold=6.0)
    outlying = outlying_columns(x, 6.0)
    assert torch.equal(outlying.nonzero().flatten(), columns.flatten().long())
    quantized = quantize_llm_int8(weight)
    their_codes, their_largest, _ = bitsandbytes.int8_vectorwise_quant(weight)
    torch.testing.assert_close(quantized.scales[:, 0] * 127, their_largest, rtol=1e-6, atol=0)
    assert ((quantized.codes.int() - 128) - their_codes.int()).abs().max() <= 1  # at ties
    # What lies below the threshold in an outlying column counts for its token's scale there.
    same = x[:, ~outlying].abs().amax(1).float() == largest
    assert same.sum() > 8
    rounded = round_input(x.float(), INPUT_FORMAT)[same][:, ~outlying]
    theirs = (codes.float() * (largest / 127)[:, None])[same][:, ~outlying]
    assert ((rounded - theirs).abs() > 1e-5).float().mean() < 0.005  # ties


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: round_input(inputs(0), ActivationFormat(4, "fp8")), "8 bits, not 4"),
        (lambda: round_input(inputs(0), ActivationFormat(scale=1.0)), "one for the tensor"),
        (
            lambda: round_input(inputs(0), ActivationFormat(granularity="tensor", scale=0.0)),
            "positive number, not 0.0",
        ),
        (lambda: round_input(inputs(0), ActivationFormat(outlier_threshold=-1)), "above 0, not -1"),
        (
            lambda: llm_int8_product(
                inputs(0), round_to_nearest(torch.ones(2, 96), IntegerScheme())
            ),
            "symmetric int8 weights",
        ),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()
