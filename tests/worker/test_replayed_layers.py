"""Replayed steps: bit for bit what the layers compute, or not replayed at all."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import AutoModelForCausalLM, LlamaConfig, PretrainedConfig, Qwen2Config

from infra_lab.attention.backend import AttentionMetadata
from infra_lab.attention.native_backend import NativeAttentionBackend
from infra_lab.models.decoder import DecoderForCausalLM
from infra_lab.models.loader import open_checkpoint
from infra_lab.models.registry import model_class
from infra_lab.models.weights import Weights
from infra_lab.native import library, ops
from infra_lab.native.recording import Recording
from infra_lab.worker.kv_cache import allocate_kv_cache
from infra_lab.worker.replayed_layers import MOST_TOKENS, ReplayedLayers

CPU = torch.device("cpu")
BLOCK_SIZE, NUM_BLOCKS = 4, 40
SIZES = {
    "vocab_size": 61,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
}

pytestmark = pytest.mark.skipif(not library.is_available(), reason="no compiled kernels here")


def load(config: PretrainedConfig, folder: Path) -> DecoderForCausalLM:
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(folder)
    checkpoint = open_checkpoint(folder)
    return model_class(checkpoint.config.architecture)(
        checkpoint.config, Weights(checkpoint, torch.float32, CPU)
    )


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> DecoderForCausalLM:
    return load(LlamaConfig(**SIZES), tmp_path_factory.mktemp("llama"))


class Both:
    """The same steps through a model's forward and through its replays, each on its own cache."""

    def __init__(self, model: DecoderForCausalLM) -> None:
        self.model = model
        self.backend = NativeAttentionBackend(model.attention_shape, BLOCK_SIZE)
        shape = (model.config, NUM_BLOCKS, BLOCK_SIZE, torch.float32, CPU)
        self.caches, self.replayed_caches = allocate_kv_cache(*shape), allocate_kv_cache(*shape)
        self.replayed = ReplayedLayers(model, self.backend, self.replayed_caches)

    @torch.inference_mode()
    def step(self, token_ids: list[int], query_lens: list[int], computed: list[int]) -> None:
        """Request i owns the blocks 10 i to 10 i + 9."""
        ends = np.cumsum([0, *query_lens])
        owners = np.repeat(np.arange(len(query_lens)), query_lens)
        positions = np.arange(ends[-1]) - np.repeat(ends[:-1] - computed, query_lens)
        tables = np.arange(10 * len(query_lens)).reshape(len(query_lens), 10)
        metadata = AttentionMetadata(
            query_start_loc=ends,
            seq_lens=np.array(computed) + query_lens,
            block_tables=tables,
            slot_mapping=tables[owners, positions // BLOCK_SIZE] * BLOCK_SIZE
            + positions % BLOCK_SIZE,
        )
        ids, places = torch.tensor(token_ids), torch.tensor(positions)
        plans = [self.backend.plan(metadata) for _ in range(2)]
        expected = self.model.forward(ids, places, self.backend, self.caches, plans[0])
        assert torch.equal(self.replayed.forward(ids, places, plans[1]), expected)
        for ours, theirs in zip(self.replayed_caches, self.caches, strict=True):
            assert torch.equal(ours.storage, theirs.storage)


@settings(max_examples=40, deadline=None)
@given(data=st.data())
def test_any_small_steps_are_bit_for_bit_those_of_the_layers(
    llama: DecoderForCausalLM, data: st.DataObject
) -> None:
    both = Both(llama)
    computed = [0, 0, 0]
    for _ in range(data.draw(st.integers(2, 6))):
        query_lens = data.draw(
            st.lists(st.integers(1, 4), min_size=1, max_size=3).filter(lambda a: sum(a) <= 8)
        )
        ids = st.lists(st.integers(0, 60), min_size=sum(query_lens), max_size=sum(query_lens))
        both.step(data.draw(ids), query_lens, computed[: len(query_lens)])
        for index, length in enumerate(query_lens):
            computed[index] += length


def test_one_recording_serves_every_step_of_as_many_tokens(
    llama: DecoderForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, runs = Both(llama), []
    run_layers = llama.run_layers

    def counted(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        runs.append(len(arguments[0]))
        return run_layers(*arguments)

    monkeypatch.setattr(llama, "run_layers", counted)
    both.step([1, 2, 3], [3], [0])
    both.step([4, 5, 6], [1, 2], [3, 0])
    both.step([7, 8], [1, 1], [4, 2])
    assert runs == [3, 3, 3, 2, 2]  # of the two sides, the replaying one computes a length once
    assert both.replayed.can_serve(MOST_TOKENS)
    assert not both.replayed.can_serve(MOST_TOKENS + 1)


def test_layers_that_compute_with_torch_are_not_replayed(tmp_path: Path) -> None:
    """Qwen2's bias is added by torch."""
    both = Both(load(Qwen2Config(**SIZES), tmp_path))
    assert both.replayed.can_serve(1)
    both.step([1], [1], [0])
    assert not both.replayed.can_serve(1)


@torch.inference_mode()
def test_a_recording_keeps_out_other_threads_and_sees_torch_at_work() -> None:
    weight, x = torch.ones(8), torch.ones(1, 8)

    def normalize() -> None:
        ops.rms_norm(x, None, weight, 1e-5)

    with Recording() as recording:
        thread = threading.Thread(target=normalize)
        thread.start()
        thread.join()
    assert recording.foreign is None
    recording.replay()  # nothing
    with Recording() as recording:
        out = ops.rms_norm(x, None, weight, 1e-5)
    x.copy_(torch.arange(8.0))
    expected = ops.rms_norm(x, None, weight, 1e-5)
    assert not torch.equal(out, expected)
    recording.replay()
    assert torch.equal(out, expected)
    with Recording() as recording:
        x.add_(1)
    assert recording.foreign == "add_"
