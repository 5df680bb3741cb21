"""GGUF blocks as quantized weights, against the official package bit for bit."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
from hypothesis import given, settings
from hypothesis import strategies as st

from infra_lab.errors import UsageError
from infra_lab.formats.gguf_blocks import READABLE, WRITABLE, GGUFFormat, read_blocks
from tests.formats.quantized_weights import integer_weight, same, weight_for


def official(rows: torch.Tensor, kind: str) -> torch.Tensor:
    """What the gguf package dequantizes them to, fp32."""
    found = quants.dequantize(rows.numpy(), GGMLQuantizationType[kind])
    return torch.from_numpy(np.ascontiguousarray(found, np.float32))


@pytest.mark.parametrize("kind", READABLE)
@settings(max_examples=10)
@given(num_rows=st.integers(1, 5), num_blocks=st.integers(1, 4), seed=st.integers(0, 2**32 - 1))
def test_any_bytes_dequantize_to_the_official_bits(
    kind: str, num_rows: int, num_blocks: int, seed: int
) -> None:
    block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType[kind]][1]
    shape = (num_rows, num_blocks * block_bytes)
    rows = torch.from_numpy(np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8))
    with np.errstate(all="ignore"):
        wanted = official(rows, kind)
    ours = read_blocks(rows, kind).dequantize()
    finite = wanted.isfinite()  # random scales may be NaN or infinite
    assert torch.equal(ours.isfinite(), finite)
    assert torch.equal(ours[finite], wanted[finite])


@pytest.mark.parametrize("kind", WRITABLE)
@settings(max_examples=10)
@given(num_rows=st.integers(1, 5), num_blocks=st.integers(1, 4), seed=st.integers(0, 99))
def test_the_official_package_reads_what_was_to_be_stored(
    kind: str, num_rows: int, num_blocks: int, seed: int
) -> None:
    weight_format = GGUFFormat(kind)
    weight = weight_for(weight_format, num_rows, 32 * num_blocks, seed)
    rows, stored = weight_format.write(weight), weight_format.as_stored(weight)
    assert torch.equal(official(rows, kind), stored.dequantize())
    assert same(read_blocks(rows, kind), stored)
    assert torch.equal(stored.codes, weight.codes)


@pytest.mark.parametrize("kind", WRITABLE)
def test_what_the_official_package_quantized_is_written_as_it_was(kind: str) -> None:
    numbers = np.random.default_rng(0).normal(size=(6, 96)).astype(np.float32)
    numbers[2, 32:64] = 0
    rows = torch.from_numpy(quants.quantize(numbers, GGMLQuantizationType[kind]))
    assert torch.equal(GGUFFormat(kind).write(read_blocks(rows, kind)), rows)


def test_zero_points_become_offsets_in_q4_1() -> None:
    weight = integer_weight(4, 64, 4, 32, symmetric=False)
    stored = GGUFFormat("Q4_1").as_stored(weight)
    assert stored.zeros is None
    error = (stored.dequantize() - weight.dequantize()).abs().max()
    assert error <= 2.0**-11 * 2 * 15 * weight.scales.max()  # a scale and an offset in fp16


@pytest.mark.parametrize("group_size", [64, 128, 200])
def test_larger_groups_become_blocks_of_the_same_scale(group_size: int) -> None:
    weight = integer_weight(4, 128, 4, group_size)
    stored = GGUFFormat("Q4_0").as_stored(weight)
    assert stored.group_size == 32
    half = replace(weight, scales=weight.scales.half().float())
    assert torch.equal(stored.dequantize(), half.dequantize())


@pytest.mark.parametrize(
    ("weight", "kind", "message"),
    [
        (integer_weight(4, 64, 4, 16), "Q4_0", "every 32 columns, and this weight has 64 in gro"),
        (integer_weight(4, 48, 4, 48), "Q4_0", "every 32 columns, and this weight has 48"),
        (integer_weight(4, 64, 8, 32), "Q4_0", "integers of 4 bits"),
        (integer_weight(4, 64, 4, 32), "Q8_0", "integers of 8 bits"),
        (integer_weight(4, 64, 4, 32, symmetric=False), "Q4_0", "symmetric"),
        (integer_weight(4, 64, 4, 32, act_order=True), "Q4_1", "not consecutive"),
    ],
)
def test_what_blocks_cannot_hold_is_refused(weight: object, kind: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        GGUFFormat(kind).as_stored(weight)  # type: ignore[arg-type]


def test_types_that_are_only_read_are_refused_for_writing() -> None:
    with pytest.raises(UsageError, match="Q4_0, Q4_1, Q8_0 are written, not Q4_K"):
        GGUFFormat("Q4_K")
