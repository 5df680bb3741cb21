"""Requests with a KV budget through the whole engine: what they may use, and what they change."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from infra_lab.config import EngineConfig
from infra_lab.engine.build import build_engine
from infra_lab.engine.engine_core import EngineCore
from infra_lab.errors import InvalidRequestError, UsageError
from infra_lab.models.loader import open_checkpoint
from infra_lab.sampling_params import BeamSearchParams, SamplingParams

TOKENS = torch.randint(0, 61, (90,), generator=torch.Generator().manual_seed(7)).tolist()
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("llama")
    config = LlamaConfig(
        vocab_size=61,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        max_position_embeddings=256,
        bos_token_id=None,
        eos_token_id=None,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def build(folder: Path, **settings: Any) -> EngineCore:
    settings = {"num_blocks": 64, "device": "cpu", "sparse_kv": True, "block_size": 4} | settings
    return build_engine(open_checkpoint(folder), None, EngineConfig(**settings))


def run(engine: EngineCore, requests: list[tuple[list[int], int | None]]) -> list[list[int]]:
    """The ids of prompts with their budgets, handed over at once; no request holds more blocks
    than its budget needs."""
    ids: dict[str, list[int]] = {}
    for number, (prompt, budget) in enumerate(requests):
        engine.add_request(str(number), prompt, replace(GREEDY, kv_budget=budget))
    kv_cache = engine.scheduler.kv_cache
    while engine.has_unfinished_requests:
        for output in engine.step():
            assert output.error is None
            ids[output.request_id] = list(output.outputs[0].token_ids)
        engine.scheduler.check_integrity()
        for number, (_, budget) in enumerate(requests):
            if budget is not None:
                assert len(kv_cache.block_ids(str(number))) <= kv_cache.num_blocks_for(budget)
    assert kv_cache.usage.used == 0
    return [ids[str(number)] for number in range(len(requests))]


def test_a_budget_as_large_as_the_sequence_gives_the_ids_of_the_full_cache(folder: Path) -> None:
    prompts = [TOKENS[:40], TOKENS[40:43]]
    full = run(build(folder), [(prompt, None) for prompt in prompts])
    assert run(build(folder, sparse_kv=False), [(prompt, None) for prompt in prompts]) == full
    assert run(build(folder), [(prompt, 52) for prompt in prompts]) == full


@pytest.mark.parametrize("kv_cache_dtype", ["auto", "int8_per_token_head", "fp8_per_token_head"])
def test_no_setting_changes_a_token(folder: Path, kv_cache_dtype: str) -> None:
    """Beside requests without a budget, which are not changed either."""
    requests = [(TOKENS[:40], 9), (TOKENS[:40], None), (TOKENS[20:50], 16), (TOKENS[:9], 1)]
    settings: list[dict[str, Any]] = [
        {"max_num_batched_tokens": 7, "max_num_seqs": 7, "block_size": 16},
        {"max_num_seqs": 1},
        {"num_blocks": 17, "enable_prefix_caching": False},
    ]
    expected = run(build(folder, kv_cache_dtype=kv_cache_dtype), requests)
    full = run(build(folder, kv_cache_dtype=kv_cache_dtype), [(TOKENS[:40], None)])
    assert expected[1] == full[0] != expected[0]
    for setting in settings:
        assert run(build(folder, kv_cache_dtype=kv_cache_dtype, **setting), requests) == expected


def test_preempted_requests_keep_the_same_tokens_when_they_come_back(folder: Path) -> None:
    requests = [(TOKENS[:7], None), (TOKENS[:10], 11), (TOKENS[:9], 5)]
    expected = run(build(folder), requests)
    engine = build(folder, num_blocks=7, enable_prefix_caching=False)
    preempted = []
    preemption = engine.scheduler._preemption
    preempt = preemption.preempt
    preemption.preempt = lambda victim, step: (  # type: ignore[method-assign]
        preempted.append(victim.request_id),
        preempt(victim, step),
    )[1]
    assert run(engine, requests) == expected
    assert preempted


def test_a_prompt_longer_than_the_pool_runs_within_a_budget_that_fits(folder: Path) -> None:
    engine = build(folder, num_blocks=4)
    with pytest.raises(InvalidRequestError, match="40 tokens, which needs 10 KV blocks of 4"):
        engine.add_request("all", TOKENS[:40], GREEDY)
    with pytest.raises(InvalidRequestError, match="needs 5 KV blocks"):
        engine.add_request("most", TOKENS[:40], replace(GREEDY, kv_budget=17))
    ids = run(engine, [(TOKENS[:40], 16)])
    assert ids == run(build(folder), [(TOKENS[:40], 16)])
    assert len(ids[0]) == 12  # not cut short by a full pool


def test_a_request_with_a_budget_neither_uses_nor_fills_the_prefix_cache(folder: Path) -> None:
    """What its tokens received of each other's attention is known only where they are computed,
    and its slots change their tokens."""
    engine = build(folder)
    run(engine, [(TOKENS[:40], 9)])
    assert engine.scheduler.kv_cache.usage.cached == 0
    full = run(engine, [(TOKENS[:40], None)])
    assert full == run(build(folder), [(TOKENS[:40], None)])
    cached = engine.scheduler.kv_cache.usage.cached
    assert cached > 0
    assert run(engine, [(TOKENS[:40], 9)]) == run(build(folder), [(TOKENS[:40], 9)])
    assert run(engine, [(TOKENS[:40], None)]) == full  # its cached blocks are as they were
    engine.add_request("again", TOKENS[:40], GREEDY)
    while engine.has_unfinished_requests:
        outputs = engine.step()
    assert outputs[0].num_cached_tokens == 36


def test_the_log_probabilities_of_a_prompt_are_those_within_the_budget(folder: Path) -> None:
    def logprobs(budget: int | None) -> list[float]:
        params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, kv_budget=budget)
        engine = build(folder)
        engine.add_request("r", TOKENS[:40], params)
        while engine.has_unfinished_requests:
            outputs = engine.step()
        assert outputs[0].prompt_logprobs is not None
        return [entry.logprob for entry in outputs[0].prompt_logprobs[1:] if entry]

    full, within = logprobs(None), logprobs(10)
    assert within[:10] == pytest.approx(full[:10], abs=1e-5)  # the first that sees less is the 12th
    assert max(abs(a - b) for a, b in zip(full[11:], within[11:], strict=True)) > 1e-3


@pytest.mark.parametrize("num_blocks", [64, 5])
def test_samples_of_one_prompt_each_keep_their_own(folder: Path, num_blocks: int) -> None:
    """Each exchanges tokens in all its blocks, so it copies all of them before it writes; in the
    small pool samples give way to each other and come back."""
    params = SamplingParams(n=3, seed=4, max_tokens=8, ignore_eos=True, kv_budget=6)

    def samples(wanted: SamplingParams) -> list[list[int]]:
        engine = build(folder, num_blocks=num_blocks)
        engine.add_request("r", TOKENS[:20], wanted)
        while engine.has_unfinished_requests:
            outputs = engine.step()
            engine.scheduler.check_integrity()
        return [sample.token_ids for sample in outputs[0].outputs]

    alone = [samples(replace(params, n=1, seed=4 + number))[0] for number in range(3)]
    assert samples(params) == alone
    assert len({tuple(ids) for ids in alone}) == 3


def test_beam_search_takes_no_budget() -> None:
    with pytest.raises(InvalidRequestError, match="beam search takes no kv_budget"):
        BeamSearchParams.from_dict({"beam_width": 2, "kv_budget": 5})


@pytest.mark.parametrize("budget", [0, -1, 2.5, True, "half"])
def test_a_budget_that_is_none_is_refused_for_that_request_alone(
    folder: Path, budget: object
) -> None:
    message = "kv_budget must be an integer of at least 1, not .*; leave it at None to keep every"
    with pytest.raises(InvalidRequestError, match=message):
        SamplingParams.from_dict({"kv_budget": budget})


def test_an_engine_that_keeps_every_token_refuses_a_budget_and_goes_on(folder: Path) -> None:
    engine = build(folder, sparse_kv=False)
    with pytest.raises(InvalidRequestError, match="kv_budget=8, but this engine keeps every token"):
        engine.add_request("r", TOKENS[:20], replace(GREEDY, kv_budget=8))
    assert len(run(engine, [(TOKENS[:20], None)])[0]) == 12


@pytest.mark.parametrize("attention", ["native", "triton"])
def test_backends_that_keep_every_token_say_so(folder: Path, attention: str) -> None:
    with pytest.raises(UsageError, match=f"'{attention}' keeps every token, and sparse_kv"):
        build(folder, attention=attention)


def test_scores_are_counted_in_the_pool(folder: Path) -> None:
    """Two layers, two KV heads of 16 in fp32: 512 bytes a token, and 2 * 2 * 8 for H2O."""
    settings = {"num_blocks": None, "kv_cache_bytes": 1_000_000, "max_num_seqs": 512}
    engine = build(folder, **settings)
    assert engine.scheduler.kv_cache.num_usable_blocks == 1_000_000 // (4 * (512 + 32))
