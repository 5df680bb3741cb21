from __future__ import annotations

import numpy as np
import pytest
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, quants
from hypothesis import given, settings
from hypothesis import strategies as st

from infra_lab.models.gguf_dequant import SUPPORTED_QUANTIZATIONS, dequantize_rows

KINDS = sorted(SUPPORTED_QUANTIZATIONS)


def dequantized(rows: np.ndarray, kind: GGMLQuantizationType, columns: int) -> np.ndarray:
    out = np.full((len(rows), columns), np.nan, np.float32)
    with np.errstate(all="ignore"):
        dequantize_rows(rows, kind, out)
    return out


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
@settings(max_examples=15, deadline=None)
@given(num_rows=st.integers(1, 40), num_blocks=st.integers(1, 5), seed=st.integers(0, 2**32 - 1))
def test_every_bit_is_that_of_the_official_dequantizer(
    kind: GGMLQuantizationType, num_rows: int, num_blocks: int, seed: int
) -> None:
    block_size, block_bytes = GGML_QUANT_SIZES[kind]
    shape = (num_rows, num_blocks * block_bytes)
    rows = np.random.default_rng(seed).integers(0, 256, shape, dtype=np.uint8)
    with np.errstate(all="ignore"):
        wanted = np.ascontiguousarray(quants.dequantize(rows, kind), np.float32)
    ours = dequantized(rows, kind, num_blocks * block_size)
    finite = np.isfinite(wanted)  # random scales may be NaN, which has many bit patterns
    assert np.array_equal(np.isfinite(ours), finite)
    assert np.array_equal(ours.view(np.uint32)[finite], wanted.view(np.uint32)[finite])


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)
def test_rows_come_out_the_same_alone_as_together(kind: GGMLQuantizationType) -> None:
    block_size, block_bytes = GGML_QUANT_SIZES[kind]
    columns = 256
    shape = (7, columns // block_size * block_bytes)
    rows = np.random.default_rng(0).integers(0, 256, shape, dtype=np.uint8)
    together = dequantized(rows, kind, columns)
    alone = np.concatenate([dequantized(row[None], kind, columns) for row in rows])
    assert np.array_equal(together, alone, equal_nan=True)


def test_a_q4_1_block_is_scale_minimum_and_nibbles_low_half_first() -> None:
    scale_and_min = np.array([0.5, -1.0], np.float16).view(np.uint8)
    nibbles = np.array([0x21] + [0] * 15, np.uint8)
    block = np.concatenate([scale_and_min, nibbles])[None]
    weights = dequantized(block, GGMLQuantizationType.Q4_1, 32)[0]
    assert weights[0] == 0.5 * 1 - 1.0
    assert weights[16] == 0.5 * 2 - 1.0
    assert set(weights[1:16]) == {-1.0}
