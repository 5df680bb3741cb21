"""Putting an engine together: what it takes from where, on a tiny random model."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM

from infra_lab.config import EngineConfig
from infra_lab.engine.build import (
    build_engine,
    choose_device,
    choose_dtype,
    choose_num_blocks,
    choose_num_host_blocks,
)
from infra_lab.errors import UsageError
from infra_lab.models.config import ModelConfig
from infra_lab.models.loader import open_checkpoint
from infra_lab.models.tokenizer import Tokenizer
from infra_lab.sampling_params import SamplingParams

EOS = 5


@pytest.fixture
def folder_without_eos(tmp_path: Path) -> Path:
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=11,
        hidden_size=16,
        intermediate_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        max_position_embeddings=64,
        bos_token_id=None,
        eos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("eos", "reason"), [((EOS,), "stop"), ((), "length")])
def test_a_checkpoint_that_names_no_eos_ends_at_the_tokenizers(
    folder_without_eos: Path, eos: tuple[int, ...], reason: str
) -> None:
    checkpoint = open_checkpoint(folder_without_eos)
    assert checkpoint.config.eos_token_ids == ()
    backend = Backend(WordLevel({f"w{index}": index for index in range(11)}, unk_token="w0"))
    engine = build_engine(
        checkpoint, Tokenizer(backend, eos_token_ids=eos), EngineConfig(num_blocks=4)
    )
    params = SamplingParams(temperature=0, max_tokens=3, logit_bias={EOS: 100.0})
    engine.add_request("r", [1, 2], params)
    outputs = []
    while engine.has_unfinished_requests:
        outputs += engine.step()
    assert outputs[-1].outputs[0].finish_reason == reason


GIB = 1 << 30
# 2 * 32 layers * 8 heads * 128 * 2 bytes: 128 KiB a token in half precision, 2 MiB a block of 16.
LLAMA_3_8B = ModelConfig(
    architecture="llama",
    vocab_size=128_256,
    hidden_size=4096,
    intermediate_size=14_336,
    num_hidden_layers=32,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    max_position_embeddings=8192,
    rms_norm_eps=1e-5,
    rope_theta=500_000.0,
    dtype="bfloat16",
)


def blocks_on_a_gpu(
    monkeypatch: pytest.MonkeyPatch, free: int, **settings: Any
) -> tuple[int, torch.dtype]:
    """What is chosen for Llama 3 8B where `free` bytes of a GPU's memory are free."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda device: (free, 80 * GIB))
    config = EngineConfig(block_size=16, **settings)
    device = choose_device("auto")
    assert device.type == "cuda"
    dtype = choose_dtype("auto", LLAMA_3_8B, device)
    return choose_num_blocks(config, LLAMA_3_8B, 8192, dtype, device), dtype


def test_on_a_gpu_the_pool_takes_most_of_the_free_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """85 % of 20 GiB are 8704 blocks of 2 MiB; the rest is for activations."""
    settings = {"max_num_seqs": 64}
    assert blocks_on_a_gpu(monkeypatch, 20 * GIB, **settings) == (8704, torch.bfloat16)


def test_a_pool_is_never_larger_than_all_requests_together(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two requests of 8192 tokens have 512 blocks each."""
    assert blocks_on_a_gpu(monkeypatch, 70 * GIB, max_num_seqs=2)[0] == 2 * 512


def test_a_pool_larger_than_the_free_memory_of_a_gpu_is_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(UsageError, match=r"needs 4\.00 GiB, but 3\.00 GiB are free: lower num_bl"):
        blocks_on_a_gpu(monkeypatch, 3 * GIB, num_blocks=2048)


@pytest.mark.parametrize(("spoken_for", "fits"), [(0, True), (2 * GIB, True), (3 * GIB, False)])
def test_a_swap_space_fits_beside_the_pool_that_lies_in_the_same_memory(
    monkeypatch: pytest.MonkeyPatch, spoken_for: int, fits: bool
) -> None:
    """Four GiB are free, and the swap space wants two."""
    memory = psutil.virtual_memory()._replace(available=4 * GIB)
    monkeypatch.setattr(psutil, "virtual_memory", lambda: memory)
    config = EngineConfig(block_size=16, swap_space_bytes=2 * GIB)
    if fits:
        blocks = choose_num_host_blocks(config, LLAMA_3_8B, torch.bfloat16, spoken_for)
        assert blocks == 1024  # of 2 MiB
    else:
        with pytest.raises(UsageError, match=r"1\.00 GiB of free host memory that the KV pool"):
            choose_num_host_blocks(config, LLAMA_3_8B, torch.bfloat16, spoken_for)


def test_a_gpu_that_is_not_there_is_said_to_be_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(UsageError, match='torch sees no GPU: use device "cpu"'):
        choose_device("cuda")
    assert choose_device("auto").type == "cpu"
