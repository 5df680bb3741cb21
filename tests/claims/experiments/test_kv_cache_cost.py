"""What passes through attention with and without a cache, on a model of two small layers."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infra_lab.attention.torch_backend import TorchAttentionBackend
from infra_lab.attention.whole_sequence_backend import WholeSequenceBackend
from infra_lab.claims.experiments.attention_probes import (
    BLOCK_SIZE,
    Counted,
    Rounded,
    SeesAll,
    generate_with_cache,
    generate_without_cache,
    read_whole,
)
from infra_lab.models.decoder import DecoderForCausalLM
from infra_lab.models.registry import model_class
from infra_lab.models.weights import Weights
from tests.claims.experiments.random_model import RandomNumbers, tiny_config

CPU = torch.device("cpu")
prompts = st.lists(st.integers(0, 63), min_size=1, max_size=20)


@pytest.fixture(scope="module")
def model() -> DecoderForCausalLM:
    config = tiny_config(num_hidden_layers=2)
    return model_class("llama")(config, Weights(RandomNumbers(config), torch.float32, CPU))


def whole(model: DecoderForCausalLM, keep: bool = False) -> Counted:
    return Counted(WholeSequenceBackend(model.attention_shape), keep)


def paged(model: DecoderForCausalLM) -> Counted:
    backend = TorchAttentionBackend(model.attention_shape, BLOCK_SIZE, model.dtype, CPU)
    return Counted(backend)


@settings(max_examples=20)
@given(prompt=prompts, num_steps=st.integers(1, 12))
def test_a_cache_changes_the_cost_and_not_the_tokens(
    model: DecoderForCausalLM, prompt: list[int], num_steps: int
) -> None:
    cached = generate_with_cache(model, paged(model), prompt, num_steps)
    plain = generate_without_cache(model, whole(model), prompt, num_steps)
    assert cached.token_ids == plain.token_ids
    lengths = range(len(prompt), len(prompt) + num_steps)
    assert plain.scored[-1] == sum(length**2 for length in lengths)
    assert plain.rows[-1] == sum(lengths)
    assert cached.scored[-1] == len(prompt) ** 2 + sum(lengths[1:])
    assert cached.rows[-1] == len(prompt) + num_steps - 1


def test_the_last_step_with_a_cache_has_one_query_and_all_keys(model: DecoderForCausalLM) -> None:
    probe = paged(model)
    generate_with_cache(model, probe, [1, 2, 3], 5)
    assert probe.query_shape == (1, model.config.head_dim)
    assert probe.keys_seen == 7


def test_keys_are_kept_for_every_layer_of_the_last_step(model: DecoderForCausalLM) -> None:
    probe = whole(model, keep=True)
    read_whole(model, probe, [1, 2, 3])
    read_whole(model, probe, [1, 2, 3, 4])
    assert [one.shape for one in probe.keys_and_values] == [(4, 2, 2, 16)] * 2


def test_an_encoder_lets_early_tokens_see_late_ones(model: DecoderForCausalLM) -> None:
    shape = model.attention_shape
    sees_all = SeesAll(shape.num_kv_heads, shape.scale)
    first, second = (read_whole(model, sees_all, [1, 2, last])[0] for last in (3, 4))
    assert not torch.allclose(first, second)
    first, second = (read_whole(model, whole(model), [1, 2, last])[0] for last in (3, 4))
    torch.testing.assert_close(first, second)
    alone = [read_whole(model, probe, [5])[0] for probe in (sees_all, whole(model))]
    torch.testing.assert_close(alone[0], alone[1])


def test_what_is_rounded_on_its_way_in_is_what_queries_see(model: DecoderForCausalLM) -> None:
    backend = WholeSequenceBackend(model.attention_shape)
    plain = read_whole(model, whole(model), [1, 2, 3])
    same = read_whole(model, Rounded(backend, lambda numbers: numbers), [1, 2, 3])
    torch.testing.assert_close(same, plain)
    nothing = read_whole(model, Rounded(backend, torch.zeros_like), [1, 2, 3])
    assert not torch.allclose(nothing, plain)
