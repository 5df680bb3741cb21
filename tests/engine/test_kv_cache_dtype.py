"""A quantized KV cache through the whole engine: settings change no token, and the pool counts its
bytes. A tiny random model; SmolLM2 stands at the end."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from infra_lab.config import EngineConfig
from infra_lab.engine.build import build_engine
from infra_lab.engine.engine_core import EngineCore
from infra_lab.engine.event_log import EventLog, StepEvent
from infra_lab.engine.llm import LLM
from infra_lab.errors import UsageError
from infra_lab.models.loader import open_checkpoint
from infra_lab.sampling_params import BeamSearchParams, SamplingParams

FORMATS = ("int8_per_token_head", "fp8_per_token_head", "int8_per_channel_keys")
every_format = pytest.mark.parametrize("kv_cache_dtype", FORMATS)
SHAPE = {
    "vocab_size": 61,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 256,
    "bos_token_id": None,
    "eos_token_id": None,
}
TOKENS = torch.randint(0, 61, (90,), generator=torch.Generator().manual_seed(7)).tolist()
PROMPTS = [TOKENS[:50], TOKENS[50:53], [*TOKENS[:50], 3]]
GREEDY = SamplingParams(temperature=0, max_tokens=16, ignore_eos=True)


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("llama")
    LlamaForCausalLM(LlamaConfig(**SHAPE)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def mistral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp("mistral")
    MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=21)).save_pretrained(folder)
    return folder


def build(folder: Path, log: EventLog | None = None, **settings: Any) -> EngineCore:
    config = EngineConfig(**{"num_blocks": 64, "device": "cpu"} | settings)
    return build_engine(open_checkpoint(folder), None, config, log)


def generate(folder: Path, **settings: Any) -> tuple[list[list[int]], list[StepEvent]]:
    """The ids of all prompts, handed over at once, and the records of the steps."""
    steps: list[StepEvent] = []
    with EventLog(capacity=0) as log:
        log.subscribe(lambda event: steps.append(event) if isinstance(event, StepEvent) else None)
        engine = build(folder, log, **settings)
        for number, prompt in enumerate(PROMPTS):
            engine.add_request(str(number), prompt, GREEDY)
        ids: dict[str, list[int]] = {}
        while engine.has_unfinished_requests:
            for output in engine.step():
                ids[output.request_id] = list(output.outputs[0].token_ids)
            engine.scheduler.check_integrity()
    return [ids[str(number)] for number in range(len(PROMPTS))], steps


SETTINGS: list[dict[str, Any]] = [
    {"max_num_batched_tokens": 7, "max_num_seqs": 7},
    {"long_prefill_token_threshold": 13, "block_size": 32},
    {"num_blocks": 9, "enable_prefix_caching": False},  # preemptions
    {"max_num_seqs": 1},  # a cached prefix
]


@every_format
def test_no_setting_changes_a_token(llama: Path, kv_cache_dtype: str) -> None:
    expected, _ = generate(llama, kv_cache_dtype=kv_cache_dtype)
    preempted, hits = 0, 0
    for setting in SETTINGS:
        ids, steps = generate(llama, kv_cache_dtype=kv_cache_dtype, **setting)
        assert ids == expected, setting
        preempted += sum(len(step.preempted_request_ids) for step in steps)
        hits += sum(step.prefix_hit_tokens for step in steps)
    assert preempted
    assert hits


@every_format
def test_a_sliding_window_sees_the_same_however_a_prompt_is_cut(
    mistral: Path, kv_cache_dtype: str
) -> None:
    whole, _ = generate(mistral, kv_cache_dtype=kv_cache_dtype)
    budget = {"max_num_batched_tokens": 19, "max_num_seqs": 9}
    cut, _ = generate(mistral, kv_cache_dtype=kv_cache_dtype, **budget)
    assert whole == cut


@every_format
def test_samples_that_share_a_prompts_blocks_are_those_drawn_alone(
    llama: Path, kv_cache_dtype: str
) -> None:
    """Their first writes copy a block in the middle of a group of keys, scales and all."""
    params = SamplingParams(n=3, seed=5, max_tokens=16, ignore_eos=True)

    def samples(wanted: SamplingParams) -> list[list[int]]:
        engine = build(llama, kv_cache_dtype=kv_cache_dtype)
        engine.add_request("r", TOKENS[:37], wanted)
        while engine.has_unfinished_requests:
            outputs = engine.step()
            engine.scheduler.check_integrity()
        return [sample.token_ids for sample in outputs[0].outputs]

    alone = [samples(replace(params, n=1, seed=5 + number))[0] for number in range(3)]
    assert samples(params) == alone
    assert len({tuple(ids) for ids in alone}) == 3


@every_format
def test_beams_are_the_same_in_blocks_of_another_size(llama: Path, kv_cache_dtype: str) -> None:
    def beams(**settings: Any) -> list[list[int]]:
        engine = build(llama, kv_cache_dtype=kv_cache_dtype, **settings)
        engine.add_request("r", TOKENS[:37], BeamSearchParams(beam_width=3, max_tokens=14))
        while engine.has_unfinished_requests:
            outputs = engine.step()
        return [sample.token_ids for sample in outputs[0].outputs]

    assert beams() == beams(block_size=64) == beams(max_num_batched_tokens=11, max_num_seqs=4)


@every_format
def test_half_precision_runs_to_the_end(llama: Path, kv_cache_dtype: str) -> None:
    ids, _ = generate(llama, kv_cache_dtype=kv_cache_dtype, dtype="bfloat16")
    assert all(len(row) == 16 for row in ids)


@every_format
def test_a_pool_of_the_same_memory_holds_more_blocks(llama: Path, kv_cache_dtype: str) -> None:
    """Two layers, two KV heads of 16 in fp32: 512 bytes a token."""
    size = {"kv_cache_bytes": 1_000_000, "block_size": 128, "max_num_seqs": 512}
    per_token = {
        "int8_per_token_head": 2 * 2 * 2 * (16 + 4),
        "fp8_per_token_head": 2 * 2 * 2 * (16 + 4),
        "int8_per_channel_keys": 2 * 2 * (2 * 16 + 4 + 16 * 8 // 16 + 16 * 4 // 8),
    }
    engine = build(llama, kv_cache_dtype=kv_cache_dtype, num_blocks=None, **size)
    expected = 1_000_000 // (128 * per_token[kv_cache_dtype])
    assert engine.scheduler.kv_cache.num_usable_blocks == expected > 1_000_000 // (128 * 512)


def test_auto_chooses_torch_for_a_quantized_cache_and_native_says_why_it_cannot(
    llama: Path,
) -> None:
    engine = build(llama, kv_cache_dtype="int8_per_token_head")
    assert type(engine.executor.backend).__name__ == "TorchAttentionBackend"  # type: ignore[attr-defined]
    with pytest.raises(
        UsageError, match="'native' keeps keys and values in fp32, not in kv_cache_dtype int8"
    ):
        build(llama, kv_cache_dtype="int8_per_token_head", attention="native")
    with pytest.raises(UsageError, match="'triton' has a scale for each token and head, and none"):
        build(llama, kv_cache_dtype="int8_per_channel_keys", attention="triton")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"kv_cache_dtype": "int4"}, "must be one of auto, int8_per_token_head, .*, not 'int4'"),
        (
            {"kv_cache_dtype": "int8_per_channel_keys", "block_size": 24},
            "groups of 16 tokens, and a block of 24 .*make block_size a multiple of 16",
        ),
        ({"kv_cache_dtype": "int8_per_channel_keys", "sparse_kv": True}, "sparse_kv drops tokens"),
    ],
)
def test_settings_that_cannot_be_are_refused(settings: dict[str, Any], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        EngineConfig(**settings)


@pytest.mark.slow
@pytest.mark.model
@every_format
def test_smollm2_says_the_same_however_its_prompts_are_cut(
    smollm2_path: Path, kv_cache_dtype: str
) -> None:
    """On prompts whose tokens win clearly: where products of other sizes differ in their last bit,
    a number at the middle of a step may become another code, and decide between near equals."""
    prompts = ["The capital of France is", "A list of prime numbers: 2, 3, 5,"]
    params = SamplingParams(temperature=0, max_tokens=12, ignore_eos=True)

    def ids(**settings: Any) -> list[list[int]]:
        llm = LLM(smollm2_path, kv_cache_dtype=kv_cache_dtype, num_blocks=16, **settings)
        return [output.outputs[0].token_ids for output in llm.generate(prompts, params)]

    assert ids() == ids(max_num_batched_tokens=5, max_num_seqs=5, block_size=32)
