"""SmolLM2-135M through the whole engine against transformers, and against itself under every
setting: what the cache, the scheduler and the batch do must never show in the tokens."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from infra_lab.engine.event_log import EventLog, StepEvent
from infra_lab.engine.llm import LLM
from infra_lab.errors import InvalidRequestError, UsageError
from infra_lab.native import library
from infra_lab.sampling_params import SamplingParams
from tests.engine.smollm2_oracle import llama_of_transformers

pytestmark = pytest.mark.model

PROMPTS = (
    "The capital of France is",
    "Once upon a time there was a",
    "def fibonacci(n):\n",
    "The three primary colours are",
    "Water boils at",
    "In 1969, the first",
    "A list of prime numbers: 2, 3, 5,",
    "Dear Sir or Madam,",
    "The opposite of hot is",
    "import numpy as np\n",
    "She opened the door and",
    "The mitochondria is",
    "1 + 1 = 2, 2 + 2 = 4, 4 + 4 =",
    "北京是",
    "El sol es",
    "To be or not to be,",
    "The recipe needs flour, sugar and",
    "An operating system is",
    "The quick brown fox jumps over the lazy dog. " * 4,
    "😀 is an emoji that",
)
GREEDY = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)


@pytest.fixture(scope="module")
def oracle(smollm2_path: Path) -> LlamaForCausalLM:
    """transformers' own Llama over the same weights."""
    return llama_of_transformers(smollm2_path)


@pytest.fixture(scope="module")
def llm(smollm2_path: Path) -> LLM:
    return LLM(smollm2_path, kv_cache_bytes=256 << 20)


@pytest.fixture(scope="module")
def expected(llm: LLM) -> list[list[int]]:
    """Greedy ids under the default settings, themselves compared with transformers below."""
    return token_ids(llm, PROMPTS)


def token_ids(llm: LLM, prompts: Sequence[Any], params: SamplingParams = GREEDY) -> list[list[int]]:
    outputs = [output.outputs[0].token_ids for output in llm.generate(prompts, params)]
    llm.engine.scheduler.check_integrity()
    return outputs


def test_logits_are_within_a_thousandth_of_transformers(llm: LLM, oracle: LlamaForCausalLM) -> None:
    ids = llm.tokenizer.encode(PROMPTS[18] + PROMPTS[1])
    captured: list[torch.Tensor] = []
    model = llm.engine.executor.model  # type: ignore[attr-defined]
    logits = model.logits
    model.logits = lambda x: captured.append(logits(x).clone()) or captured[-1]
    try:
        params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)
        llm.generate([ids], params)
    finally:
        model.logits = logits
    ours = torch.cat(captured)
    with torch.no_grad():
        theirs = oracle(torch.tensor([ids])).logits[0]
    assert ours.shape == theirs.shape
    assert float((ours - theirs).abs().max()) <= 1e-3


def test_greedy_ids_equal_transformers_on_twenty_prompts(
    llm: LLM, oracle: LlamaForCausalLM, expected: list[list[int]]
) -> None:
    """Each of our tokens is transformers' argmax after the same tokens: greedy, step by step."""
    for prompt, ours in zip(PROMPTS, expected, strict=True):
        ids = llm.tokenizer.encode(prompt)
        with torch.no_grad():
            logits = oracle(torch.tensor([ids + ours[:-1]])).logits[0]
        assert logits[len(ids) - 1 :].argmax(-1).tolist() == ours, prompt


SETTINGS: list[dict[str, Any]] = [
    {"num_blocks": 4, "block_size": 16},  # room for one request only: every other one waits
    {"num_blocks": 14, "block_size": 8, "max_num_seqs": 8},  # preemptions
    {"max_num_batched_tokens": 1, "max_num_seqs": 1},
    {"max_num_batched_tokens": 7, "max_num_seqs": 7},
    {"max_num_batched_tokens": 64},
    {"block_size": 1},
    {"block_size": 32},
    {"enable_prefix_caching": False},
    {"long_prefill_token_threshold": 5},
    {"enable_chunked_prefill": False},
    {"num_blocks": 14, "block_size": 8, "swap_space_bytes": 64 << 20, "preemption_mode": "swap"},
    {
        "num_blocks": 14,
        "block_size": 8,
        "swap_space_bytes": 4 << 20,  # room for one or two of them: swapped and recomputed
        "enable_prefix_caching": False,
    },
    {"scheduling_policy": "sjf", "num_blocks": 14, "block_size": 8},
    {"scheduling_policy": "static", "max_num_seqs": 3},
]


@pytest.mark.parametrize("setting", SETTINGS, ids=str)
def test_no_setting_changes_a_token(
    smollm2_path: Path, expected: list[list[int]], setting: dict[str, Any]
) -> None:
    config = {"kv_cache_bytes": 64 << 20, **setting}
    if "num_blocks" in config:
        del config["kv_cache_bytes"]
    few = [0, 2, 3, 9, 13, 18, 19]
    llm = LLM(smollm2_path, **config)
    prompts = [PROMPTS[index] for index in few]
    assert token_ids(llm, prompts) == [expected[index] for index in few]
    # Again, with whatever the cache has kept of the first time.
    assert token_ids(llm, prompts) == [expected[index] for index in few]
    assert llm.engine.scheduler.kv_cache.usage.used == 0


def test_a_small_pool_really_preempts(smollm2_path: Path, expected: list[list[int]]) -> None:
    llm = LLM(smollm2_path, num_blocks=14, block_size=4)
    outputs = llm.generate(list(PROMPTS[:6]), GREEDY)
    assert sum(output.metrics.num_preemptions for output in outputs) > 0
    assert [output.outputs[0].token_ids for output in outputs] == expected[:6]


@pytest.mark.parametrize("caching", [True, False])
def test_a_small_pool_really_swaps_and_computes_nothing_twice(
    smollm2_path: Path, expected: list[list[int]], caching: bool
) -> None:
    log = EventLog()
    llm = LLM(
        smollm2_path,
        event_log=log,
        num_blocks=14,
        block_size=4,
        swap_space_bytes=64 << 20,
        preemption_mode="swap",
        enable_prefix_caching=caching,
    )
    outputs = llm.generate(list(PROMPTS[:6]), GREEDY)
    assert [output.outputs[0].token_ids for output in outputs] == expected[:6]
    steps = [event for event in log.recent if isinstance(event, StepEvent)]
    assert sum(step.num_swap_outs for step in steps) > 0
    assert sum(step.num_swap_ins for step in steps) > 0
    num_known = sum(len(output.prompt_token_ids) + 12 - 1 for output in outputs)
    assert sum(step.num_scheduled_tokens for step in steps) == num_known
    space = llm.engine.scheduler.swap_space
    assert space is not None
    assert space.usage.used == 0


def test_an_offloaded_conversation_is_found_again_and_answered_the_same(
    smollm2_path: Path,
) -> None:
    llm = LLM(smollm2_path, num_blocks=24, block_size=4, swap_space_bytes=64 << 20)
    first = llm.tokenizer.encode(PROMPTS[1] + " cat who lived in a small house by the sea.")
    answer = llm.generate([first], GREEDY)[0].outputs[0].token_ids
    turn = [*first, *answer, *llm.tokenizer.encode(" And then")]
    alone = llm.generate([turn], GREEDY)[0]
    space = llm.engine.scheduler.swap_space
    assert space is not None
    num_offloaded = llm.engine.offload([*first, *answer])
    assert num_offloaded == (len(first) + len(answer) - 1) // 4 * 4
    # Others use the whole pool, so that nothing of the conversation is left in it.
    llm.generate([[index + 5] * 60 for index in range(3)], GREEDY)
    again = llm.generate([turn], GREEDY)[0]
    assert again.outputs[0].token_ids == alone.outputs[0].token_ids
    assert again.num_cached_tokens >= num_offloaded
    assert token_ids(llm, [turn]) == [alone.outputs[0].token_ids]


def test_offloading_needs_somewhere_to_go(smollm2_path: Path, llm: LLM) -> None:
    with pytest.raises(UsageError, match="set swap_space_bytes"):
        llm.engine.offload([1, 2, 3])
    with pytest.raises(UsageError, match="swap_space_bytes 1,000 holds no block"):
        LLM(smollm2_path, swap_space_bytes=1000)
    with pytest.raises(UsageError, match="does not fit into"):
        LLM(smollm2_path, num_blocks=4, swap_space_bytes=1 << 60)


def test_sampled_ids_are_the_same_at_batch_1_and_32(llm: LLM) -> None:
    prompts = [PROMPTS[index % len(PROMPTS)] for index in range(32)]
    params = [
        SamplingParams(temperature=0.8, top_p=0.9, top_k=40, seed=index, max_tokens=6)
        for index in range(32)
    ]
    together = [output.outputs[0].token_ids for output in llm.generate(prompts, params)]
    for index in range(0, 32, 5):
        alone = llm.generate(prompts[index], params[index])[0].outputs[0].token_ids
        assert alone == together[index]


@pytest.mark.skipif(not library.is_available(), reason="no compiled kernels here")
def test_log_probabilities_are_bit_for_bit_those_of_a_batch_of_one(smollm2_path: Path) -> None:
    llm = LLM(smollm2_path, kv_cache_bytes=64 << 20, enable_prefix_caching=False)
    params = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=3)
    together = llm.generate(list(PROMPTS), params)
    for index in range(len(PROMPTS)):
        alone = llm.generate(PROMPTS[index], params)[0]
        assert alone.outputs[0].logprobs == together[index].outputs[0].logprobs


def test_seeded_samples_survive_preemption(smollm2_path: Path, llm: LLM) -> None:
    params = SamplingParams(
        temperature=0.9, seed=5, max_tokens=12, repetition_penalty=1.2, presence_penalty=0.5
    )
    small = LLM(smollm2_path, num_blocks=14, block_size=4)
    outputs = small.generate(list(PROMPTS[:6]), params)
    assert sum(output.metrics.num_preemptions for output in outputs) > 0
    roomy = llm.generate(list(PROMPTS[:6]), params)
    assert [o.outputs[0].token_ids for o in outputs] == [o.outputs[0].token_ids for o in roomy]


def test_a_repeated_prompt_is_found_in_the_cache_and_answered_the_same(llm: LLM) -> None:
    prompt = llm.tokenizer.encode("Prefix caching keeps blocks. " * 8)[:48]
    first = llm.generate([prompt], GREEDY)[0]
    second = llm.generate([prompt], GREEDY)[0]
    # Three full blocks, of which the last is computed again: its logits are needed.
    assert (first.num_cached_tokens, second.num_cached_tokens) == (0, 32)
    assert second.outputs[0].token_ids == first.outputs[0].token_ids


def test_prompt_logprobs_are_whole_and_the_same_with_cache_and_chunks(smollm2_path: Path) -> None:
    llm = LLM(smollm2_path, num_blocks=64, max_num_batched_tokens=8, max_num_seqs=4)
    ids = llm.tokenizer.encode("A prompt of exactly thirty-three tokens, " * 8)[:33]
    params = SamplingParams(temperature=0, max_tokens=2, prompt_logprobs=1)
    runs = [llm.generate([ids], params)[0].prompt_logprobs for _ in range(2)]
    for entries in runs:
        assert entries is not None
        assert len(entries) == 33
        assert entries[0] is None
        assert all(entry is not None for entry in entries[1:])
        assert [entry.token_id for entry in entries[1:] if entry] == ids[1:]
    assert runs[0] == runs[1]


def test_three_seeded_samples_differ_and_repeat(llm: LLM) -> None:
    params = SamplingParams(n=3, seed=1, temperature=1.0, max_tokens=8)
    first, second = (llm.generate(PROMPTS[1], params)[0] for _ in range(2))
    texts = [sample.text for sample in first.outputs]
    assert len(set(texts)) == 3
    assert texts == [sample.text for sample in second.outputs]


def test_the_capital_of_france_is_paris(llm: LLM) -> None:
    message = [{"role": "user", "content": "What is the capital of France?"}]
    output = llm.chat(message, SamplingParams(temperature=0, max_tokens=32))[0]
    assert "Paris" in output.outputs[0].text
    assert output.outputs[0].finish_reason == "stop"


def test_streamed_text_is_the_text(llm: LLM) -> None:
    params = SamplingParams(temperature=1.2, seed=3, max_tokens=24)
    pieces = ""
    for output in llm.stream("Emoji: 😀🎉 and 中文", params):
        pieces += output.outputs[0].new_text
    assert pieces == output.outputs[0].text
    assert pieces == llm.tokenizer.decode(output.outputs[0].token_ids)


def test_a_stop_string_across_tokens_cuts_the_text(llm: LLM) -> None:
    plain = llm.generate(PROMPTS[6], GREEDY)[0].outputs[0].text
    stop = plain[3:8]
    cut = llm.generate(PROMPTS[6], SamplingParams(temperature=0, max_tokens=12, stop=(stop,)))[
        0
    ].outputs[0]
    assert (cut.text, cut.finish_reason, cut.stop_reason) == (
        plain[: plain.index(stop)],
        "stop",
        stop,
    )
    assert llm.engine.scheduler.kv_cache.usage.used == 0


def test_leaving_a_stream_early_aborts_it(llm: LLM) -> None:
    for _ in llm.stream(PROMPTS[1], SamplingParams(max_tokens=50)):
        break
    list(llm.stream(PROMPTS[0], SamplingParams(max_tokens=1)))
    assert not llm.engine.has_unfinished_requests
    assert llm.engine.scheduler.kv_cache.usage.used == 0


def test_one_bad_prompt_of_many_is_named_or_left_out(llm: LLM) -> None:
    prompts = [PROMPTS[0], [10**6], PROMPTS[2]]
    with pytest.raises(InvalidRequestError, match=r"prompt 1: .*1000000"):
        llm.generate(prompts, GREEDY)
    outputs = llm.generate(prompts, GREEDY, skip_invalid=True)
    assert [output.error is None for output in outputs] == [True, False, True]
    assert len(outputs[2].outputs[0].token_ids) == 12


def test_unknown_or_contradictory_settings_are_refused_before_loading(smollm2_path: Path) -> None:
    with pytest.raises(UsageError, match="block_sise"):
        LLM(smollm2_path, block_sise=16)
    with pytest.raises(UsageError, match="context of 8192"):
        LLM(smollm2_path, max_model_len=9000)
    with pytest.raises(UsageError, match="holds no block"):
        LLM(smollm2_path, kv_cache_bytes=1000)


def test_params_must_match_prompts(llm: LLM) -> None:
    with pytest.raises(UsageError, match="2 prompts came with 1"):
        llm.generate(list(PROMPTS[:2]), [GREEDY])
