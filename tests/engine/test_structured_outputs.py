"""Structured outputs through the whole engine, on a tiny random model: whatever else a request
asks for and whatever the scheduler does, the document is valid or the end says why not."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator
from transformers import LlamaConfig, LlamaForCausalLM

from infra_lab.config import EngineConfig
from infra_lab.engine.build import build_engine
from infra_lab.engine.engine_core import EngineCore
from infra_lab.errors import InvalidRequestError, StructuredOutputError
from infra_lab.models.loader import open_checkpoint
from infra_lab.outputs import CompletionOutput, RequestOutput
from infra_lab.sampling.grammar_state import GrammarState
from infra_lab.sampling_params import SamplingParams
from infra_lab.structured_outputs import StructuredOutputsParams
from tests.models.lora_helpers import save_adapter
from tests.sampling.grammar_helpers import END_OF_TURN, EOS, byte_level_tokenizer

TOKENIZER = byte_level_tokenizer()
SCHEMA = {
    "type": "object",
    "properties": {
        "n": {"type": "integer", "minimum": -5, "maximum": 500},
        "s": {"type": "string", "maxLength": 4},
        "l": {"type": "array", "items": {"enum": ["x", None]}, "maxItems": 2},
    },
    "required": ["n", "l"],
    "additionalProperties": False,
}
JSON = StructuredOutputsParams(json=SCHEMA, disable_any_whitespace=True)


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


def make_engine(folder: Path, has_tokenizer: bool = True, **config: Any) -> EngineCore:
    settings = {"num_blocks": 128, "block_size": 4, "max_num_seqs": 8} | config
    tokenizer = TOKENIZER if has_tokenizer else None
    return build_engine(open_checkpoint(folder), tokenizer, EngineConfig(**settings))


@pytest.fixture(scope="module")
def engine(folder: Path) -> EngineCore:
    return make_engine(folder)


def drain(engine: EngineCore) -> dict[str, RequestOutput]:
    finished = {}
    while engine.has_unfinished_requests:
        for output in engine.step():
            if output.finished:
                finished[output.request_id] = output
        engine.scheduler.check_integrity()
    return finished


def run(engine: EngineCore, prompt: list[int] | str = "say: ", **params: Any) -> CompletionOutput:
    params = {"max_tokens": 200, "structured_outputs": JSON, "seed": 0} | params
    engine.add_request("r", prompt, SamplingParams(**params))
    (output,) = drain(engine)["r"].outputs
    return output


def check(output: CompletionOutput) -> None:
    assert output.finish_reason == "stop"
    Draft202012Validator(SCHEMA).validate(json.loads(output.text))


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    temperature=st.sampled_from([0.0, 0.8, 1.5]),
    seed=st.integers(0, 999),
    top_k=st.sampled_from([0, 2]),
    top_p=st.sampled_from([0.5, 1.0]),
    frequency_penalty=st.sampled_from([0.0, 2.0]),
    logit_bias=st.dictionaries(st.integers(0, 260), st.sampled_from([-100.0, 100.0]), max_size=3),
    min_tokens=st.sampled_from([0, 30]),
    stop=st.sampled_from([(), ("}",), ("n", ",")]),
)
def test_every_setting_leaves_the_document_valid(engine: EngineCore, **params: Any) -> None:
    check(run(engine, **params))


def test_samples_of_one_request_each_make_their_own_document(engine: EngineCore) -> None:
    params = SamplingParams(n=4, seed=3, temperature=1.5, max_tokens=200, structured_outputs=JSON)
    engine.add_request("r", "p", params)
    outputs = drain(engine)["r"].outputs
    assert len({output.text for output in outputs}) > 1
    for output in outputs:
        check(output)


def test_an_answer_cut_by_max_tokens_says_length(engine: EngineCore) -> None:
    whole = run(engine)
    check(whole)
    for cut in (1, len(whole.token_ids) // 2, len(whole.token_ids) - 1):
        output = run(engine, max_tokens=cut)
        assert output.finish_reason == "length"
        assert output.token_ids == whole.token_ids[:cut]


def test_a_stop_string_ends_only_a_whole_document(engine: EngineCore) -> None:
    form = StructuredOutputsParams(regex="(ab|cd)(,(ab|cd))*")
    params = {"structured_outputs": form, "min_tokens": 40, "max_tokens": 60}
    free = run(engine, **params)
    assert free.text.count(",") > 3
    # Before the first comma stands a document; inside "ab" or "cd" none begins.
    stopped = run(engine, **params | {"min_tokens": 0}, stop=["b", "d", ","])
    assert re.fullmatch("ab|cd", stopped.text)
    assert (stopped.finish_reason, stopped.stop_reason) in (("stop", ","), ("stop", None))
    second = run(engine, **params | {"min_tokens": 6}, stop=[","])
    assert re.fullmatch("(ab|cd)(,(ab|cd))*", second.text)
    kept = run(engine, **params | {"min_tokens": 6}, stop=[","], include_stop_str_in_output=True)
    assert kept.text == second.text + ","


def test_a_special_stop_token_ends_a_whole_document_only(engine: EngineCore) -> None:
    bias = {END_OF_TURN: 100.0, EOS: -100.0}
    output = run(engine, stop_token_ids=[END_OF_TURN], logit_bias=bias)
    assert output.stop_reason == END_OF_TURN
    check(output)


def test_min_tokens_gives_way_to_a_document_that_cannot_go_on(engine: EngineCore) -> None:
    form = StructuredOutputsParams(choice=["ab", "abab"])
    output = run(engine, structured_outputs=form, min_tokens=50)
    assert (output.text, output.finish_reason) == ("abab", "stop")


def test_log_probabilities_are_those_of_the_model_itself(engine: EngineCore) -> None:
    form = StructuredOutputsParams(choice=["a"])
    output = run(engine, structured_outputs=form, logprobs=3, temperature=0)
    assert output.logprobs is not None
    assert [entry.token_id for entry in output.logprobs] == output.token_ids
    assert len(output.logprobs[0].top) == 3
    assert output.logprobs[0].rank > 1  # a random model has no reason to say "a"
    assert output.logprobs[0].logprob < -0.1


PROMPTS = {
    f"{kind}{index}": f"prompt {index} " * (index + 1) for kind in "jf" for index in range(4)
}


def all_ids(engine: EngineCore) -> dict[str, list[int]]:
    """Half of the requests must give JSON, half are free."""
    for index, (name, prompt) in enumerate(PROMPTS.items()):
        form = JSON if name.startswith("j") else None
        params = SamplingParams(
            temperature=[0, 1.2][index % 2], seed=index, max_tokens=40, structured_outputs=form
        )
        engine.add_request(name, prompt, params)
    outputs = drain(engine)
    return {name: outputs[name].outputs[0].token_ids for name in PROMPTS}


@pytest.mark.parametrize(
    "config",
    [
        {"max_num_seqs": 1},
        {"num_blocks": 30},  # preemptions
        {"max_num_batched_tokens": 8},  # chunks
        {"enable_prefix_caching": False},
    ],
    ids=str,
)
def test_neither_neighbours_nor_preemption_nor_chunks_change_a_token(
    folder: Path, engine: EngineCore, config: dict[str, Any]
) -> None:
    expected = all_ids(engine)
    other = make_engine(folder, **config)
    assert all_ids(other) == expected
    assert all_ids(other) == expected  # again, with what the prefix cache has kept
    assert other.scheduler.kv_cache.usage.used == 0


def test_a_small_pool_really_preempts_documents(folder: Path, engine: EngineCore) -> None:
    small = make_engine(folder, num_blocks=20)
    names = ["a", "b", "c"]
    outputs = {}
    for one in (engine, small):
        for index, name in enumerate(names):
            params = SamplingParams(seed=index, max_tokens=60, structured_outputs=JSON)
            one.add_request(name, "a prompt of some length", params)
        outputs[one] = drain(one)
    ids = [[outputs[one][name].outputs[0].token_ids for name in names] for one in (engine, small)]
    assert ids[0] == ids[1]
    assert sum(outputs[small][name].metrics.num_preemptions for name in names) > 0


def test_documents_are_whole_and_the_same_with_adapters_in_the_batch(
    folder: Path, tmp_path: Path
) -> None:
    engine = make_engine(folder)
    for seed, name in enumerate(("a", "b")):
        modules = ["q_proj", "up_proj", "down_proj"]
        engine.load_lora(name, save_adapter(folder, tmp_path / name, seed, target_modules=modules))
    names = [None, "a", "b"]

    def run_with(indices: list[int]) -> dict[str, CompletionOutput]:
        for index in indices:
            params = SamplingParams(seed=index, max_tokens=200, structured_outputs=JSON)
            engine.add_request(str(index), "say: ", params, lora=names[index % 3])
        return {name: output.outputs[0] for name, output in drain(engine).items()}

    together = run_with(list(range(6)))
    assert len({output.text for output in together.values()}) > 3
    for index in range(6):
        check(together[str(index)])
        assert run_with([index])[str(index)].token_ids == together[str(index)].token_ids


def test_the_best_of_several_documents_is_a_document(engine: EngineCore) -> None:
    params = SamplingParams(best_of=3, seed=1, max_tokens=200, structured_outputs=JSON)
    engine.add_request("r", "say: ", params)
    outputs = drain(engine)["r"].outputs
    assert len(outputs) == 1
    check(outputs[0])


def test_a_form_that_cannot_be_met_is_refused_alone(folder: Path, engine: EngineCore) -> None:
    engine.add_request("good", "x", SamplingParams(max_tokens=200, structured_outputs=JSON))
    bad = SamplingParams(structured_outputs=StructuredOutputsParams(json={"enum": []}))
    for call in (engine.validate, lambda *given: engine.add_request("bad", *given)):
        with pytest.raises(InvalidRequestError, match="cannot be used"):
            call("x", bad)
    outputs = drain(engine)
    assert list(outputs) == ["good"]
    check(outputs["good"].outputs[0])
    bare = make_engine(folder, has_tokenizer=False)
    with pytest.raises(InvalidRequestError, match="needs a tokenizer"):
        bare.add_request("r", [5], SamplingParams(structured_outputs=JSON))


def test_a_document_that_cannot_go_on_ends_its_request_alone(
    engine: EngineCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    compute = GrammarState._compute_allowed

    def limited(state: GrammarState) -> Any:
        if state.num_tokens == 3:
            raise StructuredOutputError("the document cannot be continued: ParserTooComplex")
        return compute(state)

    monkeypatch.setattr(GrammarState, "_compute_allowed", limited)
    engine.add_request("json", "x", SamplingParams(max_tokens=20, structured_outputs=JSON))
    engine.add_request("free", "x", SamplingParams(max_tokens=20, seed=0, ignore_eos=True))
    outputs = drain(engine)
    assert outputs["json"].error == "the document cannot be continued: ParserTooComplex"
    assert outputs["json"].outputs[0].finish_reason == "error"
    assert len(outputs["json"].outputs[0].token_ids) == 3
    assert outputs["free"].outputs[0].finish_reason == "length"
    assert engine.scheduler.kv_cache.usage.used == 0
