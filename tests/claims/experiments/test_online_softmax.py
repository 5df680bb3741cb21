"""Tiled attention against all scores at once, and the published slip by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.claims.experiments import tiled_attention as tiled

seeds = st.integers(0, 2**31)


def inputs(seed: int, num_tokens: int, head_dim: int) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(num_tokens, head_dim, generator=generator, dtype=torch.float64)
        for _ in range(3)
    ]


@given(seeds, st.integers(1, 40), st.integers(1, 16), st.integers(1, 50))
def test_both_right_updates_are_attention_whatever_the_tile(
    seed: int, num_tokens: int, head_dim: int, tile: int
) -> None:
    queries, keys, values = inputs(seed, num_tokens, head_dim)
    wanted = torch.nn.functional.scaled_dot_product_attention(
        queries[None], keys[None], values[None]
    )[0]
    torch.testing.assert_close(tiled.dense_attention(queries, keys, values), wanted)
    for update in ("undivided", "divided"):
        found = tiled.tiled_attention(queries, keys, values, tile, update)
        torch.testing.assert_close(found, wanted, rtol=1e-10, atol=1e-10)


@given(seeds, st.integers(1, 20))
def test_the_wrong_updates_are_right_while_there_is_one_tile(seed: int, num_tokens: int) -> None:
    queries, keys, values = inputs(seed, num_tokens, 4)
    wanted = tiled.dense_attention(queries, keys, values)
    for update in tiled.UPDATES:
        found = tiled.tiled_attention(queries, keys, values, num_tokens, update)
        torch.testing.assert_close(found, wanted)


def test_the_published_update_of_three_equal_keys_by_hand() -> None:
    """Their mean is 6. Without l_old: 6, then 6/2 + 6/2 = 6, then 6/3 + 6/3 = 4."""
    queries, keys = torch.ones(1, 1).double(), torch.ones(3, 1).double()
    values = torch.full((3, 1), 6.0).double()
    found = {
        update: float(tiled.tiled_attention(queries, keys, values, 1, update))
        for update in ("divided", "published")
    }
    assert found == pytest.approx({"divided": 6, "published": 4})


def test_a_maximum_that_is_not_carried_loses_the_tiles_weight_by_hand() -> None:
    """Scores 0 and log 3 are weights 1 and 3; each alone in its tile weighs 1."""
    queries, values = torch.ones(1, 1).double(), torch.tensor([[0.0], [8.0]]).double()
    keys = torch.tensor([[0.0], [math.log(3)]]).double()
    assert float(tiled.tiled_attention(queries, keys, values, 1, "undivided")) == pytest.approx(6)
    assert float(tiled.tiled_attention(queries, keys, values, 1, "no-rescaling")) == pytest.approx(
        4
    )


@given(seeds, st.integers(1, 30), st.integers(1, 7), st.randoms(use_true_random=False))
def test_a_walk_of_the_block_table_is_attention_over_its_tokens(
    seed: int, num_tokens: int, block_size: int, chance: object
) -> None:
    queries, keys, values = inputs(seed, num_tokens, 8)
    num_blocks = -(-num_tokens // block_size)
    table = list(range(num_blocks))
    chance.shuffle(table)  # type: ignore[attr-defined]
    pools = []
    for part in (keys, values):
        pool = torch.full((num_blocks, block_size, 8), float("nan"), dtype=torch.float64)
        for place, block in enumerate(table):
            rows = part[place * block_size : (place + 1) * block_size]
            pool[block, : len(rows)] = rows
        pools.append(pool)
    found = tiled.paged_attention(queries[:1], *pools, table, num_tokens)
    torch.testing.assert_close(found, tiled.dense_attention(queries[:1], keys, values))


@given(st.lists(st.floats(-50, 50), min_size=1, max_size=30))
def test_every_softmax_is_the_same_and_reads_as_often_as_it_says(scores: list[float]) -> None:
    passes = {}
    wanted = torch.tensor(scores, dtype=torch.float64).softmax(0).tolist()
    for softmax in (tiled.naive_softmax, tiled.safe_softmax, tiled.online_softmax):
        row = tiled.CountedRow(scores)
        assert softmax(row) == pytest.approx(wanted, abs=1e-12)
        passes[softmax.__name__] = row.passes
    assert passes == {"naive_softmax": 2, "safe_softmax": 3, "online_softmax": 2}


def test_only_the_naive_softmax_overflows() -> None:
    scores = [1000.0, 1000.0]
    with pytest.raises(OverflowError):
        tiled.naive_softmax(tiled.CountedRow(scores))
    assert tiled.online_softmax(tiled.CountedRow(scores)) == [0.5, 0.5]
