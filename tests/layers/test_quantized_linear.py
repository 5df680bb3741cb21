"""Packed layers: to the bit the dequantized ones, in the bytes that their codes need."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st

from infra_lab.formats.quantized_weight import QuantizedWeight
from infra_lab.layers.linear import PackedLinear
from infra_lab.layers.quantized_linear import QuantizedLinear
from infra_lab.native import library
from infra_lab.native.quantized import Coding, Shift
from tests.layers.quantized_weights import TABLES, quantized_weight, quantized_weights

pytestmark = pytest.mark.skipif(not library.is_available(), reason="no compiled kernels here")


@settings(max_examples=300)
@given(weight=quantized_weights(), rows=st.integers(1, 70), with_bias=st.booleans())
def test_a_packed_product_is_to_the_bit_the_dequantized_one(
    weight: QuantizedWeight, rows: int, with_bias: bool
) -> None:
    torch.manual_seed(0)
    x = torch.randn(rows, weight.in_features)
    bias = torch.randn(weight.out_features) if with_bias else None
    packed, dense = QuantizedLinear(weight, bias), PackedLinear(weight.dequantize(), bias)
    assert torch.equal(packed(x), dense(x))


@settings(max_examples=30)
@given(weight=quantized_weights(), seed=st.integers(0, 9))
def test_a_packed_product_is_close_to_float64(weight: QuantizedWeight, seed: int) -> None:
    torch.manual_seed(seed)
    x, dense = torch.randn(3, weight.in_features), weight.dequantize()
    exact = x.double() @ dense.double().T
    error = (QuantizedLinear(weight)(x).double() - exact).abs().max()
    bound = 2 * (F.linear(x, dense).double() - exact).abs().max()
    assert error <= bound + 1e-5 * float(x.abs().max() * dense.abs().max()) * x.shape[1] ** 0.5


@pytest.mark.parametrize("rows", [511, 512, 513, 1100])
def test_prompts_longer_than_a_block_of_rows_are_multiplied_whole(rows: int) -> None:
    weight = quantized_weight("uint4", 70, 300, 32, "offsets")
    x = torch.randn(rows, 300)
    assert torch.equal(QuantizedLinear(weight)(x), PackedLinear(weight.dequantize())(x))


@settings(max_examples=60)
@given(weight=quantized_weights(), data=st.data())
def test_rows_of_a_packed_table_are_those_of_the_matrix(
    weight: QuantizedWeight, data: st.DataObject
) -> None:
    rows = st.lists(st.integers(0, weight.out_features - 1), min_size=1, max_size=9)
    indices = torch.tensor(data.draw(rows))
    assert torch.equal(QuantizedLinear(weight).rows(indices), weight.dequantize()[indices])


def test_rows_shared_among_threads_are_those_of_the_matrix() -> None:
    weight = quantized_weight("int8", 40, 600, 32)
    indices = torch.arange(80) % 40
    assert torch.equal(QuantizedLinear(weight).rows(indices), weight.dequantize()[indices])


def test_a_product_written_into_part_of_a_wider_row_leaves_the_rest() -> None:
    weight = quantized_weight("nf4", 48, 64, 64)
    x, wide = torch.randn(5, 64), torch.full((5, 100), 7.0)
    layer = QuantizedLinear(weight)
    layer.write(x, wide[:, 10:58])
    assert torch.equal(wide[:, 10:58], layer(x))
    assert (wide[:, :10] == 7).all()
    assert (wide[:, 58:] == 7).all()


@pytest.mark.parametrize(
    ("table", "shift", "half_scales", "coding", "kept"),
    [
        ("int4", "none", True, Coding.NIBBLES, Shift.NONE),
        ("int3", "none", True, Coding.NIBBLES, Shift.NONE),
        ("uint4", "offsets", True, Coding.NIBBLES, Shift.EXACT),
        ("uint4", "zeros", True, Coding.NIBBLES, Shift.EXACT),
        ("uint4", "means", True, Coding.NIBBLES, Shift.ZEROS),
        ("uint4", "zeros", False, Coding.NIBBLES, Shift.ZEROS),
        ("nf4", "offsets", True, Coding.NIBBLES, Shift.OFFSETS),
        ("int8", "none", True, Coding.SIGNED, Shift.NONE),
        ("int5", "none", True, Coding.SIGNED, Shift.NONE),
        ("uint8", "zeros", True, Coding.UNSIGNED, Shift.EXACT),
        ("uint6", "offsets", True, Coding.UNSIGNED, Shift.EXACT),
        ("between", "none", True, Coding.TABLE, Shift.NONE),
        ("between", "zeros", True, Coding.TABLE, Shift.OFFSETS),
        ("any6", "none", True, Coding.TABLE, Shift.NONE),
        ("e5m2", "zeros", True, Coding.TABLE, Shift.ZEROS),
    ],
)
def test_what_is_common_is_computed_and_the_rest_looked_up(
    table: str, shift: str, half_scales: bool, coding: Coding, kept: Shift
) -> None:
    weight = quantized_weight(table, 3, 64, 32, shift, half_scales=half_scales)
    matrix = QuantizedLinear(weight).matrix
    assert (matrix.coding, matrix.shift) == (coding, kept)


@pytest.mark.parametrize("scale", [float("inf"), 2.0**127, 2.0**-149, 0.0, -0.25])
@pytest.mark.parametrize("shift", ["zeros", "offsets"])
def test_any_scale_gives_what_it_gives_dequantized(scale: float, shift: str) -> None:
    weight = quantized_weight("uint4", 32, 32, 32, shift)
    weight.scales[1::2] = scale
    x = torch.eye(32)
    assert_same(QuantizedLinear(weight)(x), PackedLinear(weight.dequantize())(x))


def assert_same(found: torch.Tensor, wanted: torch.Tensor) -> None:
    assert torch.equal(found.isnan(), wanted.isnan())
    assert torch.equal(found.nan_to_num(), wanted.nan_to_num())


def test_fp8_codes_that_are_not_numbers_stay_so() -> None:
    weight = quantized_weight("e4m3", 2, 4, 4)
    weight.codes[1, 2] = 0x7F
    y = QuantizedLinear(weight)(torch.ones(1, 4))
    assert y[0, 0].isfinite()
    assert y[0, 1].isnan()


@pytest.mark.parametrize("table", sorted(TABLES))
@pytest.mark.parametrize("half_scales", [True, False])
def test_a_layer_takes_the_bytes_of_its_codes_and_scales(table: str, half_scales: bool) -> None:
    """Of a matrix that panels divide: nothing is kept beside them but a small table."""
    weight = quantized_weight(table, 128, 96, 32, "offsets", half_scales=half_scales)
    matrix = QuantizedLinear(weight).matrix
    codes = 128 * 96 // (2 if weight.bits <= 4 else 1)
    tables = 4 * {Coding.NIBBLES: 16, Coding.TABLE: 256}.get(matrix.coding, 0)
    scale_bytes = 2 if half_scales and library.load_library().reads_halves() else 4
    assert matrix.num_bytes == codes + 2 * scale_bytes * 128 * 3 + tables
