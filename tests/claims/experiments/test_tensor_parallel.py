"""Layers in shards: the ring adds up, and a split layer is the layer."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infra_lab.claims.experiments.sharded_layers import LayerShape, Ring
from infra_lab.claims.experiments.tensor_parallel import measure, without_one_all_reduce


@settings(max_examples=40)
@given(ranks=st.integers(1, 6), rows=st.integers(1, 5), columns=st.integers(1, 9))
def test_the_ring_gives_every_rank_the_sum(ranks: int, rows: int, columns: int) -> None:
    parts = [torch.randn(rows, columns, dtype=torch.float64) for _ in range(ranks)]
    kept = [part.clone() for part in parts]
    ring = Ring(ranks)
    found = ring.all_reduce(parts)
    wanted = torch.stack(kept).sum(0)
    assert len(found) == ranks
    for one in found:
        torch.testing.assert_close(one, wanted)
    assert all(torch.equal(part, before) for part, before in zip(parts, kept, strict=True))


def test_a_rank_sends_two_n_minus_one_nths_of_the_message() -> None:
    ring = Ring(4)
    ring.all_reduce([torch.ones(16, dtype=torch.float64)] * 4)
    assert ring.sent == 2 * 3 * 4
    alone = Ring(1)
    alone.all_reduce([torch.ones(16)])
    assert alone.sent == 0


@pytest.mark.parametrize("ranks", [2, 4])
@pytest.mark.parametrize("layers", [1, 2])
def test_a_split_layer_is_the_layer_with_two_all_reduces_each_way(ranks: int, layers: int) -> None:
    found = measure(ranks, seed=5, shape=LayerShape(num_layers=layers))
    assert (found.forward_per_layer, found.backward_per_layer) == (2, 2)
    assert found.output_error < 1e-13
    assert found.gradient_error < 1e-12


def test_with_one_all_reduce_a_layer_something_else_comes_out() -> None:
    assert without_one_all_reduce(2, seed=5) > 0.05
