"""Drafts and documents of a given form: a draft that would break or outrun the document falls."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from jsonschema import Draft202012Validator
from transformers import LlamaConfig, LlamaForCausalLM

from infra_lab.config import EngineConfig
from infra_lab.engine.build import build_engine
from infra_lab.engine.engine_core import EngineCore
from infra_lab.models.loader import open_checkpoint
from infra_lab.outputs import RequestOutput
from infra_lab.sampling_params import SamplingParams
from infra_lab.speculative_config import SpeculativeConfig
from infra_lab.structured_outputs import StructuredOutputsParams
from tests.sampling.grammar_helpers import EOS, byte_level_tokenizer

TOKENIZER = byte_level_tokenizer()
SCHEMA = {
    "type": "object",
    "properties": {"n": {"type": "integer", "minimum": 0, "maximum": 99}, "s": {"enum": ["ab"]}},
    "required": ["n", "s"],
    "additionalProperties": False,
}
JSON = StructuredOutputsParams(json=SCHEMA, disable_any_whitespace=True)
NGRAM = SpeculativeConfig("ngram", num_speculative_tokens=8, prompt_lookup_min=1, adaptive=False)
EARLY_EXIT = SpeculativeConfig(
    "draft_model", num_speculative_tokens=3, draft_layers=1, adaptive=False
)
# Whole documents and what follows one: look-up drafts them, their end and beyond.
PROMPTS = ('{"n":1,"s":"ab"}<eos>{"n":12,"s":"ab"} and more', "ab ab ab", 'say {"n":')


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("tiny")
    config = LlamaConfig(
        vocab_size=TOKENIZER.vocab_size + 3,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        eos_token_id=EOS,
        initializer_range=0.3,
    )
    LlamaForCausalLM(config).save_pretrained(path)
    return path


def make_engine(folder: Path, speculative: SpeculativeConfig | None) -> EngineCore:
    config = EngineConfig(num_blocks=128, block_size=4, speculative=speculative)
    return build_engine(open_checkpoint(folder), TOKENIZER, config)


def run(engine: EngineCore, **params: Any) -> list[RequestOutput]:
    for place, prompt in enumerate(PROMPTS):
        given = {"structured_outputs": JSON, "max_tokens": 60, "seed": place} | params
        engine.add_request(f"r{place}", prompt, SamplingParams(**given))
    finished: dict[str, RequestOutput] = {}
    while engine.has_unfinished_requests:
        for output in engine.step():
            if output.finished:
                finished[output.request_id] = output
        engine.scheduler.check_integrity()
    return [finished[f"r{place}"] for place in range(len(PROMPTS))]


def seen(output: RequestOutput) -> Any:
    (sample,) = output.outputs
    ranks = [(entry.token_id, entry.rank) for entry in sample.logprobs or []]
    return sample.token_ids, sample.text, sample.finish_reason, ranks, output.error


@pytest.mark.parametrize("speculative", [NGRAM, EARLY_EXIT], ids=["ngram", "early exit"])
def test_a_greedy_document_is_the_same_with_drafts(
    folder: Path, speculative: SpeculativeConfig
) -> None:
    for more in ({}, {"frequency_penalty": 0.5}, {"max_tokens": 5}, {"logprobs": 1}):
        plain, drafted = (
            run(make_engine(folder, one), temperature=0, **more) for one in (None, speculative)
        )
        assert [seen(one) for one in drafted] == [seen(one) for one in plain]
        assert sum(one.metrics.num_draft_tokens for one in drafted) > 0


@pytest.mark.parametrize("speculative", [NGRAM, EARLY_EXIT], ids=["ngram", "early exit"])
def test_a_random_document_is_valid_with_drafts(
    folder: Path, speculative: SpeculativeConfig
) -> None:
    engine = make_engine(folder, speculative)
    for seed in range(8):
        for output in run(engine, temperature=1.2, seed=seed):
            assert output.error is None
            assert output.outputs[0].finish_reason == "stop"
            Draft202012Validator(SCHEMA).validate(json.loads(output.outputs[0].text))


def test_a_draft_stands_up_to_the_documents_end(folder: Path) -> None:
    """Everything the model may say is fixed, and the prompt says it and more: all of it stands."""
    form = StructuredOutputsParams(choice=["ab12ab"])
    engine = make_engine(folder, NGRAM)
    prompt = "xab12ab<eos>ab12ab"
    engine.add_request("r", prompt, SamplingParams(temperature=0, structured_outputs=form))
    outputs = []
    while engine.has_unfinished_requests:
        outputs += engine.step()
    assert outputs[-1].outputs[0].text == "ab12ab"
    assert outputs[-1].outputs[0].finish_reason == "stop"
    assert outputs[-1].error is None
