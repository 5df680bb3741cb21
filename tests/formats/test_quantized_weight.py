"""The common form of quantized weights: what it means, and what it refuses."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.formats.quantized_weight import QuantizedWeight


@st.composite
def weights(draw: st.DrawFn, out_features: int | None = None) -> QuantizedWeight:
    bits = draw(st.integers(2, 8))
    rows = draw(st.integers(1, 5)) if out_features is None else out_features
    columns, group_size = draw(st.integers(1, 13)), draw(st.integers(1, 14))
    groups = -(-columns // group_size)
    generator = torch.Generator().manual_seed(draw(st.integers(0, 99)))

    def numbers(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    shift = draw(st.sampled_from(["none", "zeros", "offsets"]))
    return QuantizedWeight(
        codes=torch.randint(2**bits, (rows, columns), generator=generator, dtype=torch.uint8),
        values=numbers(2**bits),
        scales=numbers(rows, groups),
        bits=bits,
        group_size=group_size,
        zeros=numbers(rows, groups) if shift == "zeros" else None,
        offsets=numbers(rows, groups) if shift == "offsets" else None,
        g_idx=torch.randint(groups, (columns,), generator=generator)
        if draw(st.booleans())
        else None,
    )


@given(weights())
def test_a_weight_is_its_codes_value_shifted_and_scaled(weight: QuantizedWeight) -> None:
    dense = weight.dequantize()
    for row in range(weight.out_features):
        for column in range(weight.in_features):
            group = column // weight.group_size
            if weight.g_idx is not None:
                group = int(weight.g_idx[column])
            expected = weight.values[int(weight.codes[row, column])]
            if weight.zeros is not None:
                expected = expected - weight.zeros[row, group]
            expected = expected * weight.scales[row, group]
            if weight.offsets is not None:
                expected = expected + weight.offsets[row, group]
            assert dense[row, column] == expected


@given(weights(), st.data())
def test_rows_taken_and_stacked_are_those_of_the_matrix(
    weight: QuantizedWeight, data: st.DataObject
) -> None:
    count = weight.out_features
    chosen = torch.tensor(data.draw(st.lists(st.integers(0, count - 1), min_size=1, max_size=6)))
    assert torch.equal(weight.rows(chosen).dequantize(), weight.dequantize()[chosen])
    both = QuantizedWeight.stacked([weight, weight.rows(chosen)])
    expected = torch.cat([weight.dequantize(), weight.dequantize()[chosen]])
    assert torch.equal(both.dequantize(), expected)


def test_weights_whose_table_has_nan_in_it_are_stacked() -> None:
    """fp8's has: 0x7f of e4m3."""
    weight = replace(make(), values=torch.tensor([float("nan"), *range(15)]))
    assert weight.fits(weight)
    assert QuantizedWeight.stacked([weight, weight]).out_features == 4


def test_weights_of_other_tables_or_groups_are_not_stacked() -> None:
    plain = make()
    others: list[dict[str, Any]] = [
        {"values": torch.arange(16.0)},
        {"group_size": 3, "scales": torch.ones(2, 2)},
        {"zeros": torch.ones(2, 1)},
        {"g_idx": torch.zeros(4, dtype=torch.int64)},
    ]
    for changed in others:
        other = replace(plain, **changed)
        assert not plain.fits(other)
        with pytest.raises(ValueError, match="cannot be stacked"):
            QuantizedWeight.stacked([plain, other])


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"bits": 1}, "bits must be from 2 to 8, not 1"),
        ({"bits": 3}, "3 bits have 8 values"),
        ({"codes": torch.zeros(2, 4)}, "codes must be uint8"),
        ({"group_size": 0}, "group_size must be at least 1, not 0"),
        ({"scales": torch.ones(2, 2)}, "scales must be fp32 .2, 1., not .2, 2."),
        ({"zeros": torch.ones(2, 1), "offsets": torch.ones(2, 1)}, "not both"),
        ({"g_idx": torch.zeros(3, dtype=torch.int64)}, "a group for each column"),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(
    changed: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        replace(make(), **changed)


def make() -> QuantizedWeight:
    codes = torch.tensor([[0, 1, 2, 3], [4, 5, 6, 15]], dtype=torch.uint8)
    return QuantizedWeight(codes, torch.arange(16.0) - 8, torch.ones(2, 1), 4, group_size=4)
