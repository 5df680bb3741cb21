"""The counting memory: what is moved by hand, and the passes' output against torch's."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.calculators.flash_attention import (
    first_version_io_elements,
    standard_io_elements,
    tiled_io_elements,
)
from infra_lab.claims.experiments import counted_memory as counted
from infra_lab.claims.experiments.fits import fitted_exponent
from infra_lab.errors import UsageError

shapes = st.tuples(st.integers(1, 40), st.integers(1, 12))
rows = st.integers(1, 50)


def memory_of(
    shape: tuple[int, int], sram_elements: int | None = None
) -> tuple[counted.CountedMemory, torch.Tensor, torch.Tensor]:
    """A memory, and attention's output without and with a causal mask."""
    generator = torch.Generator().manual_seed(shape[0] * 100 + shape[1])
    parts = [torch.randn(shape, generator=generator, dtype=torch.float64) for _ in range(3)]
    batched = [part[None] for part in parts]
    attention = torch.nn.functional.scaled_dot_product_attention
    memory = counted.attention_memory(*parts, sram_elements)
    return memory, attention(*batched)[0], attention(*batched, is_causal=True)[0]


def assert_output(memory: counted.CountedMemory, wanted: torch.Tensor) -> None:
    torch.testing.assert_close(memory.matrices["O"], wanted, rtol=1e-9, atol=1e-9)


@given(shapes)
def test_the_standard_way_moves_what_the_formula_says(shape: tuple[int, int]) -> None:
    memory, wanted, causal = memory_of(shape)
    counted.standard_attention(memory)
    assert_output(memory, wanted)
    assert memory.moved == standard_io_elements(*shape)
    memory, _, _ = memory_of(shape)
    counted.standard_attention(memory, causal=True)
    assert_output(memory, causal)


@given(shapes, rows, rows)
def test_queries_outside_move_what_the_formula_says(
    shape: tuple[int, int], query_rows: int, key_rows: int
) -> None:
    memory, wanted, _ = memory_of(shape)
    counted.tiled_by_queries(memory, query_rows, key_rows)
    assert_output(memory, wanted)
    assert memory.moved == tiled_io_elements(*shape, query_rows)


@given(shapes, rows, rows)
def test_keys_outside_move_what_the_formula_says(
    shape: tuple[int, int], query_rows: int, key_rows: int
) -> None:
    memory, wanted, _ = memory_of(shape)
    counted.tiled_by_keys(memory, query_rows, key_rows)
    assert_output(memory, wanted)
    assert memory.moved == first_version_io_elements(*shape, key_rows)


@given(shapes, rows, rows)
def test_causal_blocks_beyond_the_diagonal_are_never_read(
    shape: tuple[int, int], query_rows: int, key_rows: int
) -> None:
    memory, _, wanted = memory_of(shape)
    counted.tiled_by_queries(memory, query_rows, key_rows, causal=True)
    assert_output(memory, wanted)
    assert memory.moved <= tiled_io_elements(*shape, query_rows)


def test_four_tokens_of_two_numbers_by_hand() -> None:
    """Standard: Q, K, V, O of 8 and S, P of 16 written and read. Two blocks of queries: Q and O
    once, K and V twice; causal: K and V of the first half, then of all."""
    memory, _, _ = memory_of((4, 2))
    counted.standard_attention(memory)
    assert (memory.reads, memory.writes) == (8 + 8 + 16 + 16 + 8, 16 + 16 + 8)
    memory, _, _ = memory_of((4, 2))
    counted.tiled_by_queries(memory, 2, 2)
    assert (memory.reads, memory.writes) == (8 + 2 * 16, 8)
    memory, _, _ = memory_of((4, 2))
    counted.tiled_by_queries(memory, 2, 2, causal=True)
    assert (memory.reads, memory.writes) == (8 + 8 + 16, 8)


@given(st.integers(1, 16), st.integers(1, 8), st.integers(1, 4000))
def test_the_rows_that_fit_do_and_one_more_does_not(
    head_dim: int, key_rows: int, sram: int
) -> None:
    def held(query_rows: int) -> int:
        return 2 * query_rows * head_dim + 2 * key_rows * head_dim + query_rows * key_rows

    if held(1) > sram:
        with pytest.raises(UsageError, match="take fewer keys"):
            counted.query_rows_that_fit(sram, head_dim, key_rows)
        return
    fitting = counted.query_rows_that_fit(sram, head_dim, key_rows)
    assert held(fitting) <= sram < held(fitting + 1)


def test_a_tile_that_does_not_fit_is_refused() -> None:
    memory, _, _ = memory_of((8, 2), sram_elements=20)
    with pytest.raises(UsageError, match="a tile of 32 elements does not fit a fast memory of 20"):
        counted.tiled_by_queries(memory, 4, 2)
    memory, _, _ = memory_of((8, 2), sram_elements=32)
    counted.tiled_by_queries(memory, 4, 2)
    assert memory.peak == 32


@given(st.floats(-3, 3), st.floats(0.1, 100))
def test_a_power_law_is_fitted_exactly(exponent: float, factor: float) -> None:
    xs = [1.0, 2.0, 5.0, 30.0]
    assert fitted_exponent(xs, [factor * x**exponent for x in xs]) == pytest.approx(
        exponent, abs=1e-9
    )
