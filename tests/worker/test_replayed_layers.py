"""Replayed steps: bit for bit what the layers compute, or not replayed at all."""

from __future__ import annotations

import threading
from collections.abc import Callable
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
from infra_lab.native.memory import Workspace
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
        assert self.replayed.can_serve(len(token_ids))
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


def test_one_recording_serves_steps_of_every_size(
    llama: DecoderForCausalLM, monkeypatch: pytest.MonkeyPatch
) -> None:
    both, runs = Both(llama), []
    run_layers = llama.run_layers

    def counted(*arguments: Any) -> tuple[torch.Tensor, torch.Tensor]:
        runs.append(len(arguments[0]))
        return run_layers(*arguments)

    monkeypatch.setattr(llama, "run_layers", counted)
    both.step([1, 2, 3], [3], [0])
    both.step([4, 5, 6, 7], [1, 3], [3, 0])
    both.step([7], [1], [4])
    assert runs == [MOST_TOKENS, 3, 4, 1]  # the recording, and the three of the other side
    assert both.replayed.can_serve(MOST_TOKENS)
    assert not both.replayed.can_serve(MOST_TOKENS + 1)


def test_the_largest_step_is_bit_for_bit_that_of_the_layers(llama: DecoderForCausalLM) -> None:
    both = Both(llama)
    both.step(list(range(60)), [30, 30], [0, 0])
    both.step([*range(20), 1, 1, 2], [20, 1, 2], [0, 30, 0])


def test_layers_that_compute_with_torch_are_not_replayed(tmp_path: Path) -> None:
    """Qwen2's bias is added by torch."""
    assert not Both(load(Qwen2Config(**SIZES), tmp_path)).replayed.can_serve(1)


def recorded(rows: int, work: Callable[[], object]) -> tuple[Recording, object]:
    with Recording(rows, Workspace(1 << 20)) as recording:
        result = work()
    return recording, result


@torch.inference_mode()
def test_a_replay_computes_the_rows_it_is_told_to_and_no_more() -> None:
    weight, x = torch.rand(8), torch.zeros(3, 8)
    recording, out = recorded(3, lambda: ops.rms_norm(x, None, weight, 1e-5))
    assert isinstance(out, torch.Tensor)
    assert recording.foreign is None
    out.fill_(-1.0)
    x.copy_(torch.arange(24.0).view(3, 8))
    expected = ops.rms_norm(x, None, weight, 1e-5)
    recording.replay(2)
    assert torch.equal(out[:2], expected[:2])
    assert torch.equal(out[2], torch.full((8,), -1.0))
    recording.replay(3)
    assert torch.equal(out, expected)


@torch.inference_mode()
def test_a_recording_keeps_out_other_threads() -> None:
    x, outs = torch.ones(1, 8), []

    def normalize() -> None:
        outs.append(ops.rms_norm(x, None, torch.ones(8), 0.0))

    def elsewhere() -> None:
        thread = threading.Thread(target=normalize)
        thread.start()
        thread.join()

    recording, _ = recorded(1, elsewhere)
    assert torch.equal(outs[0], x)
    assert recording.foreign is None
    outs[0].fill_(3.0)
    recording.replay(1)  # nothing
    assert outs[0][0, 0] == 3.0


@torch.inference_mode()
def test_what_a_replay_would_leave_out_is_named() -> None:
    x = torch.ones(2, 8)
    assert recorded(2, lambda: x.add_(1))[0].foreign == "add_"
    assert recorded(2, lambda: x[[0, 1]])[0].foreign == "__getitem__"
    assert recorded(2, lambda: x.t().contiguous())[0].foreign == "contiguous"
    assert recorded(2, lambda: torch.zeros(2, 8))[0].foreign == "zeros"
    assert recorded(2, lambda: x.contiguous().view(16)[3:, None].shape)[0].foreign is None
    assert recorded(1, lambda: ops.rms_norm(x, None, x[0], 0.0))[0].foreign == "RMS_NORM of 2 rows"
