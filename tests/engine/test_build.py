"""Putting an engine together: what it takes from where, on a tiny random model."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from tokenizers import Tokenizer as Backend
from tokenizers.models import WordLevel
from transformers import LlamaConfig, LlamaForCausalLM

from infra_lab.config import EngineConfig
from infra_lab.engine.build import build_engine
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
