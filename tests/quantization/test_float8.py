"""8-bit floats as ml_dtypes has them on every code and tie; scales as torchao's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infra_lab.errors import UsageError
from infra_lab.quantization.float8 import LARGEST, float8_codes, float8_table, quantize_float8
from tests.quantization.inputs import SEEDS, random_weight

ml_dtypes = pytest.importorskip("ml_dtypes")
THEIRS: dict[Any, Any] = {"e4m3": ml_dtypes.float8_e4m3fn, "e5m2": ml_dtypes.float8_e5m2}
KINDS = pytest.mark.parametrize("kind", ["e4m3", "e5m2"])


def encoded_by_theirs(numbers: torch.Tensor, kind: str) -> torch.Tensor:
    """Clamped first: ml_dtypes makes NaN or infinity of what is too large."""
    clamped = numbers.clamp(-LARGEST[kind], LARGEST[kind])
    return torch.from_numpy(clamped.numpy().astype(THEIRS[kind]).view(np.uint8))


@KINDS
def test_all_256_codes_are_the_numbers_of_ml_dtypes(kind: Any) -> None:
    wanted = np.arange(256, dtype=np.uint8).view(THEIRS[kind]).astype(np.float32)
    torch.testing.assert_close(
        float8_table(kind), torch.from_numpy(wanted), rtol=0, atol=0, equal_nan=True
    )


@KINDS
def test_every_number_goes_back_to_its_code(kind: Any) -> None:
    table = float8_table(kind)
    finite = table.isfinite()
    codes = torch.arange(256, dtype=torch.uint8)
    assert torch.equal(float8_codes(table, kind)[finite], codes[finite])


@KINDS
def test_every_tie_and_its_neighbours_round_as_in_ml_dtypes(kind: Any) -> None:
    table = float8_table(kind)
    numbers = table[table.isfinite()].unique()
    ties = (numbers[1:] + numbers[:-1]) / 2  # exact in fp32
    far = torch.full_like(ties, 1e9)
    around = torch.cat([ties, torch.nextafter(ties, far), torch.nextafter(ties, -far)])
    assert torch.equal(float8_codes(around, kind), encoded_by_theirs(around, kind))


@KINDS
@given(seed=SEEDS, exponent=st.integers(-12, 6))
def test_any_number_rounds_as_in_ml_dtypes(kind: Any, seed: int, exponent: int) -> None:
    numbers = random_weight(4, 64, seed, torch.float32) * 10.0**exponent
    assert torch.equal(float8_codes(numbers, kind), encoded_by_theirs(numbers, kind))


@pytest.mark.parametrize(
    ("number", "code"),
    [
        *((448.0, 0x7E), (464.0, 0x7E), (480.0, 0x7E), (float("inf"), 0x7E)),
        *((-464.0, 0xFE), (float("-inf"), 0xFE), (-0.0, 0x80), (0.0, 0)),
        *((float("nan"), 0x7F), (2**-10, 0), (3 * 2**-10, 2), (1.9375, 0x40)),
    ],
)
def test_e4m3_saturates_keeps_nan_and_the_sign_of_zero(number: float, code: int) -> None:
    """ml_dtypes#400, sglang PR#40581."""
    assert int(float8_codes(torch.tensor([number]))) == code


def test_e5m2_saturates_as_a_gpu_does() -> None:
    """torch on a CPU gives infinity."""
    numbers = torch.tensor([57344.0, 61440.0, 1e6, float("inf"), -1e6])
    codes = float8_codes(numbers, "e5m2")
    assert float8_table("e5m2")[codes.long()].tolist() == [57344.0] * 4 + [-57344.0]


@KINDS
@pytest.mark.parametrize("granularity", ["tensor", "channel", "block"])
@settings(max_examples=10)
@given(seed=SEEDS, exponent=st.integers(-30, 30), shape=st.sampled_from([(3, 5), (130, 257)]))
def test_a_weight_comes_back_within_half_a_unit_of_its_mantissa(
    kind: Any, granularity: Any, seed: int, exponent: int, shape: tuple[int, int]
) -> None:
    weight = random_weight(*shape, seed, torch.float32) * 10.0**exponent
    weight[0] = 0
    weight[:, 1] *= 100
    quantized = quantize_float8(weight, kind, granularity)
    scales = quantized.scales.repeat_interleave(quantized.group_size, 1)[:, : shape[1]].double()
    bits, smallest = {"e4m3": (3, 2.0**-9), "e5m2": (2, 2.0**-16)}[kind]
    error = (quantized.dequantize().double() - weight.double()).abs()
    bound = torch.maximum(weight.double().abs() * 2.0 ** -(bits + 1), scales * smallest / 2)
    assert (error <= bound * (1 + 1e-5)).all()
    rows, columns = {"tensor": shape, "channel": (1, shape[1]), "block": (128, 128)}[granularity]
    for row in range(0, shape[0], rows):
        for column in range(0, shape[1], columns):
            square = weight[row : row + rows, column : column + columns]
            wanted = square.abs().max() / LARGEST[kind]
            got = scales[row : row + rows, column : column + columns].unique()
            assert got.tolist() == pytest.approx([float(wanted) or 1.0], rel=1e-6)


@settings(max_examples=20)
@given(SEEDS)
def test_scales_and_codes_are_those_of_torchao(seed: int) -> None:
    torchao = pytest.importorskip("torchao.quantization.quant_primitives")
    weight = random_weight(128, 256, seed, torch.float32)
    for granularity, block in (
        ("tensor", [128, 256]),
        ("channel", [1, 256]),
        ("block", [128, 128]),
    ):
        ours = quantize_float8(weight, "e4m3", granularity)  # type: ignore[arg-type]
        scales = torchao._choose_scale_float8(weight, block, torch.float8_e4m3fn)
        spread = scales.repeat_interleave(128 // scales.shape[0], 0)
        torch.testing.assert_close(ours.scales, spread.expand_as(ours.scales), rtol=2**-22, atol=0)
        codes = torchao._quantize_affine_float8(weight, scales, torch.float8_e4m3fn)
        different = ours.codes != codes.view(torch.uint8)
        assert different.float().mean() < 1e-3  # of scales that differ in the last bit


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: quantize_float8(torch.ones(2, 2), "e3m4"), "e4m3 or e5m2, not 'e3m4'"),  # type: ignore[arg-type]
        (lambda: quantize_float8(torch.ones(2, 2), "e4m3", "row"), "not 'row'"),  # type: ignore[arg-type]
        (lambda: quantize_float8(torch.ones(2, 2) / 0), "not finite"),
    ],
)
def test_what_makes_no_sense_is_refused(make: Any, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        make()
