"""Attention without a cache, against the formula in float64."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.attention.backend import AttentionMetadata, AttentionShape
from infra_lab.attention.whole_sequence_backend import (
    NO_CACHE,
    WholeSequenceBackend,
    whole_sequences,
)


def by_the_formula(
    query: torch.Tensor, key_value: torch.Tensor, shape: AttentionShape
) -> torch.Tensor:
    """One sequence; softmax over the visible keys of each query, head by head."""
    keys, values = (
        part.double().repeat_interleave(shape.group_size, 1) for part in key_value.unbind(1)
    )
    scores = torch.einsum("qhd,khd->hqk", query.double(), keys) * shape.scale
    distance = torch.arange(len(query))[:, None] - torch.arange(len(query))
    hidden = (distance < 0) | (distance >= (shape.sliding_window or len(query)))
    weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
    return torch.einsum("hqk,khd->qhd", weights, values)


@given(
    st.lists(st.integers(1, 9), min_size=1, max_size=4),
    st.sampled_from([(4, 4), (4, 2), (3, 1)]),
    st.sampled_from([None, 1, 3, 20]),
)
def test_each_sequence_attends_to_itself_up_to_each_token(
    lengths: list[int], heads: tuple[int, int], window: int | None
) -> None:
    shape = AttentionShape(*heads, head_dim=8, scale=0.3, sliding_window=window)
    generator = torch.Generator().manual_seed(sum(lengths))
    query = torch.randn(sum(lengths), heads[0], 8, generator=generator)
    key_value = torch.randn(sum(lengths), 2, heads[1], 8, generator=generator)
    backend, out = WholeSequenceBackend(shape), torch.empty_like(query)
    backend.forward(query, key_value, NO_CACHE, backend.plan(whole_sequences(lengths)), out)
    expected = [
        by_the_formula(q, kv, shape)
        for q, kv in zip(query.split(lengths), key_value.split(lengths), strict=True)
    ]
    torch.testing.assert_close(out.double(), torch.cat(expected), rtol=1e-5, atol=1e-6)


def test_a_sequence_with_a_past_is_refused() -> None:
    nothing = np.empty((1, 0), dtype=np.int64)
    metadata = AttentionMetadata(np.array([0, 2]), np.array([3]), nothing, nothing[0])
    with pytest.raises(ValueError, match="no tokens from earlier steps"):
        WholeSequenceBackend(AttentionShape(1, 1, 8, 1.0)).plan(metadata)
