"""Beam search through the engine, against `transformers`, and what its branches do to the cache."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from infra_lab.config import EngineConfig
from infra_lab.engine.build import build_engine
from infra_lab.engine.engine_core import EngineCore
from infra_lab.errors import InvalidRequestError
from infra_lab.models.loader import open_checkpoint
from infra_lab.outputs import RequestOutput
from infra_lab.sampling_params import BeamSearchParams, SamplingParams

EOS = 5
VOCABULARY = 150
CONFIG = LlamaConfig(
    vocab_size=VOCABULARY,
    hidden_size=32,
    intermediate_size=48,
    num_hidden_layers=2,
    num_attention_heads=4,
    num_key_value_heads=2,
    max_position_embeddings=64,
    bos_token_id=None,
    eos_token_id=EOS,
    pad_token_id=0,
)
PROMPT = torch.randint(6, VOCABULARY, (21,), generator=torch.Generator().manual_seed(3)).tolist()


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[LlamaForCausalLM, Path]:
    """Likely to end: the end's logit is about as large as the largest of the others."""
    torch.manual_seed(0)
    model = LlamaForCausalLM(CONFIG).eval()
    with torch.no_grad():
        model.lm_head.weight.mul_(12.0)
        model.lm_head.weight[EOS].mul_(1.6)
    folder = tmp_path_factory.mktemp("beams")
    model.save_pretrained(folder)
    return model, folder


def engine_on(folder: Path, **config: Any) -> EngineCore:
    return build_engine(
        open_checkpoint(folder), None, EngineConfig(**{"num_blocks": 120, "device": "cpu"} | config)
    )


def run(engine: EngineCore, max_steps: int = 3000) -> dict[str, RequestOutput]:
    done = {}
    for _ in range(max_steps):
        if not engine.has_unfinished_requests:
            break
        for output in engine.step():
            if output.finished:
                done[output.request_id] = output
        engine.scheduler.check_integrity()
    assert not engine.has_unfinished_requests
    assert engine.scheduler.kv_cache.usage.used == 0
    return done


@torch.inference_mode()
def reference(
    model: LlamaForCausalLM, prompt: list[int], params: BeamSearchParams
) -> list[tuple[list[int], float]]:
    if params.beam_width == 1:  # transformers would call that greedy search, without a score
        return []
    out = model.generate(
        torch.tensor([prompt]),
        num_beams=params.beam_width,
        num_return_sequences=params.n,
        do_sample=False,
        max_new_tokens=params.max_tokens,
        length_penalty=params.length_penalty,
        early_stopping=params.early_stopping,
        eos_token_id=None if params.ignore_eos else EOS,
        return_dict_in_generate=True,
        output_scores=True,
    )
    found = []
    for row, score in zip(out.sequences.tolist(), out.sequences_scores.tolist(), strict=True):
        ids = row[len(prompt) :]
        if EOS in ids and not params.ignore_eos:
            ids = ids[: ids.index(EOS) + 1]
        found.append((ids, score))
    return found


def assert_as_reference(
    model: LlamaForCausalLM, output: RequestOutput, prompt: list[int], params: BeamSearchParams
) -> None:
    expected = reference(model, prompt, params)
    assert len(output.outputs) == params.n
    for sample, (ids, score) in zip(output.outputs, expected, strict=True):
        assert sample.score == pytest.approx(score, abs=1e-4)
        assert sample.token_ids == ids
        assert sample.finish_reason == ("stop" if ids[-1] == EOS else "length")
        assert sample.logprobs is not None
        total = sum(entry.logprob for entry in sample.logprobs)
        assert sample.cumulative_logprob == pytest.approx(total)
        assert score == pytest.approx(total / len(ids) ** params.length_penalty, abs=1e-4)


@pytest.mark.parametrize("width", [2, 4, 8])
@pytest.mark.parametrize("early_stopping", [True, False, "never"])
def test_beams_are_those_of_transformers(
    model: tuple[LlamaForCausalLM, Path], width: int, early_stopping: bool | str
) -> None:
    engine = engine_on(model[1], block_size=4)
    wanted = {}
    for number, penalty in enumerate([1.0, 0.0, 2.0, -1.0]):
        params = BeamSearchParams(width, None, 12, penalty, early_stopping)
        prompt = PROMPT[: 5 + 4 * number]
        wanted[str(number)] = (prompt, params)
        engine.add_request(str(number), prompt, params)
    done = run(engine)
    for name, (prompt, params) in wanted.items():
        assert_as_reference(model[0], done[name], prompt, params)


def test_the_end_is_passed_over_where_asked_for(model: tuple[LlamaForCausalLM, Path]) -> None:
    engine = engine_on(model[1])
    params = BeamSearchParams(3, 2, 9, ignore_eos=True)
    engine.add_request("a", PROMPT, params)
    output = run(engine)["a"]
    assert [len(sample.token_ids) for sample in output.outputs] == [9, 9]
    assert_as_reference(model[0], output, PROMPT, params)


def test_one_beam_is_greedy_decoding(model: tuple[LlamaForCausalLM, Path]) -> None:
    engine = engine_on(model[1])
    engine.add_request("beam", PROMPT, BeamSearchParams(1, max_tokens=12, early_stopping=True))
    engine.add_request("greedy", PROMPT, SamplingParams(temperature=0, max_tokens=12))
    done = run(engine)
    assert done["beam"].outputs[0].token_ids == done["greedy"].outputs[0].token_ids


@settings(
    max_examples=15, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    st.lists(
        st.tuples(st.integers(1, 21), st.integers(2, 5), st.integers(1, 14)),
        min_size=1,
        max_size=3,
    ),
    st.sampled_from([1, 3, 16]),
    st.integers(0, 30),
    st.sampled_from([2, 4, 20]),
    st.sampled_from([20, 64]),
    st.booleans(),
)
def test_no_setting_changes_the_beams(
    model: tuple[LlamaForCausalLM, Path],
    searches: list[tuple[int, int, int]],
    block_size: int,
    spare_blocks: int,
    max_num_seqs: int,
    budget: int,
    caching: bool,
) -> None:
    """Small pools, preemption of some branches, few places, chunks, plain requests beside."""
    config = {
        "block_size": block_size,
        "num_blocks": -(-36 // block_size) + spare_blocks // block_size,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": budget,
        "enable_prefix_caching": caching,
    }
    engine = engine_on(model[1], **config)
    wanted = {}
    for number, (length, width, max_tokens) in enumerate(searches):
        params = BeamSearchParams(width, None, max_tokens)
        wanted[str(number)] = (PROMPT[:length], params)
        engine.add_request(str(number), PROMPT[:length], params)
    engine.add_request("plain", PROMPT[:6], SamplingParams(temperature=0, max_tokens=5))
    done = run(engine)
    for name, (prompt, params) in wanted.items():
        assert_as_reference(model[0], done[name], prompt, params)


def test_beams_share_the_prompts_blocks_and_say_what_that_saved(
    model: tuple[LlamaForCausalLM, Path],
) -> None:
    engine = engine_on(model[1], block_size=4)
    engine.add_request("a", PROMPT, BeamSearchParams(4, max_tokens=8, ignore_eos=True))
    metrics = run(engine)["a"].metrics
    # Four branches of up to 28 tokens in 7 blocks each; 5 blocks of the prompt are whole.
    assert metrics.peak_kv_blocks_unshared == 28
    assert 5 + 2 <= metrics.peak_kv_blocks <= 5 + 4 * 2


def test_an_aborted_search_leaves_nothing_behind(model: tuple[LlamaForCausalLM, Path]) -> None:
    engine = engine_on(model[1])
    engine.add_request("a", PROMPT, BeamSearchParams(4, max_tokens=20, ignore_eos=True))
    engine.add_request("b", PROMPT, BeamSearchParams(2, max_tokens=3, ignore_eos=True))
    engine.step()
    engine.step()
    assert engine.abort("a")
    engine.scheduler.check_integrity()
    done = run(engine)
    assert done["a"].outputs[0].finish_reason == "abort"
    assert_as_reference(model[0], done["b"], PROMPT, BeamSearchParams(2, None, 3, ignore_eos=True))


@pytest.mark.parametrize(
    ("parameters", "said"),
    [
        ({"beam_width": 0}, "beam_width must be an integer from 1 to 64, not 0"),
        ({"beam_width": 2, "n": 3}, "n must be an integer from 1 to 2, not 3; raise beam_width"),
        ({"early_stopping": "soon"}, "early_stopping must be true, false or"),
        ({"length_penalty": float("nan")}, "length_penalty must be a finite number"),
        ({"max_tokens": 0}, "max_tokens must be an integer of at least 1"),
        ({"temperature": 0.7}, "beam search takes no temperature"),
        ({"top_k": 5}, "beam search takes no top_k"),
        ({"beam_widht": 3}, "unknown sampling parameter 'beam_widht': did you mean 'beam_width'"),
    ],
)
def test_parameters_that_make_no_sense_are_refused(parameters: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidRequestError, match=said):
        BeamSearchParams.from_dict(parameters)


def test_a_search_wider_than_the_vocabulary_is_refused_alone(
    model: tuple[LlamaForCausalLM, Path], tmp_path: Path
) -> None:
    engine = engine_on(model[1])
    small = LlamaConfig(**{**CONFIG.to_dict(), "vocab_size": 20})
    LlamaForCausalLM(small).save_pretrained(tmp_path)
    tiny = engine_on(tmp_path)
    with pytest.raises(InvalidRequestError, match="looks at 32 tokens a step and the vocabulary"):
        tiny.add_request("a", [6, 7], BeamSearchParams(16))
    tiny.add_request("a", [6, 7], BeamSearchParams(4, max_tokens=2))
    assert run(tiny)["a"].finished
    with pytest.raises(InvalidRequestError, match="max_model_len"):
        engine.add_request("a", [6] * 64, BeamSearchParams(2))
