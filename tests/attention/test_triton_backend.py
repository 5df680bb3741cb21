"""The whole engine on the GPU's kernels, interpreted faithfully, against the torch backend."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from infra_lab.config import EngineConfig
from infra_lab.engine.build import build_engine
from infra_lab.engine.engine_core import EngineCore
from infra_lab.engine.event_log import EventLog, StepEvent
from infra_lab.errors import UsageError
from infra_lab.models.loader import open_checkpoint
from infra_lab.sampling_params import SamplingParams

interpreter = pytest.importorskip("kernels.testing.interpreter")

VOCABULARY = 61
SHAPE = {
    "vocab_size": VOCABULARY,
    "hidden_size": 48,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
    "bos_token_id": None,
    "eos_token_id": None,
}
PROMPT = torch.randint(0, VOCABULARY, (40,), generator=torch.Generator().manual_seed(7)).tolist()


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("llama")
    LlamaForCausalLM(LlamaConfig(**SHAPE)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def mistral(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """With a window shorter than the prompts."""
    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp("mistral")
    MistralForCausalLM(MistralConfig(**SHAPE, sliding_window=9)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def qwen3(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Queries and keys are normalised before they turn."""
    torch.manual_seed(2)
    folder = tmp_path_factory.mktemp("qwen3")
    model = Qwen3ForCausalLM(Qwen3Config(**SHAPE))
    for layer in model.model.layers:
        torch.nn.init.uniform_(layer.self_attn.q_norm.weight, 0.5, 1.5)
        torch.nn.init.uniform_(layer.self_attn.k_norm.weight, 0.5, 1.5)
    model.save_pretrained(folder)
    return folder


def engine_on(folder: Path, attention: str, log: EventLog, **settings: Any) -> EngineCore:
    config = EngineConfig(**{"num_blocks": 64, "device": "cpu", "attention": attention} | settings)
    return build_engine(open_checkpoint(folder), None, config, log)


GREEDY = SamplingParams(temperature=0, ignore_eos=True)


def generate(
    folder: Path,
    attention: str,
    prompts: list[list[int]],
    max_tokens: int = 4,
    params: Sequence[SamplingParams] = (GREEDY,),
    **settings: Any,
) -> tuple[list[list[int]], list[StepEvent]]:
    """The ids of each prompt, all of them handed over at once, and the records of the steps.

    params: of each prompt, taken in turns. Only "triton" meets an interpreter, and with it the
    other kernels: norms, gates, sampling.
    """
    steps: list[StepEvent] = []
    with ExitStack() as stack:
        if attention == "triton":
            stack.enter_context(interpreter.use_faithful_interpreter())
        log = stack.enter_context(EventLog(capacity=0))
        log.subscribe(lambda event: steps.append(event) if isinstance(event, StepEvent) else None)
        engine = engine_on(folder, attention, log, **settings)
        for number, prompt in enumerate(prompts):
            wanted = replace(params[number % len(params)], max_tokens=max_tokens)
            engine.add_request(str(number), prompt, wanted)
        ids: dict[str, list[int]] = {str(number): [] for number in range(len(prompts))}
        while engine.has_unfinished_requests:
            for output in engine.step():
                ids[output.request_id] = list(output.outputs[0].token_ids)
    return list(ids.values()), steps


def assert_same_ids(
    folder: Path, prompts: list[list[int]], max_tokens: int = 4, **settings: Any
) -> list[StepEvent]:
    ours, steps = generate(folder, "triton", prompts, max_tokens, **settings)
    theirs, _ = generate(folder, "torch", prompts, max_tokens, **settings)
    assert ours == theirs
    assert all(len(ids) == max_tokens for ids in ours)
    return steps


def test_prompts_in_chunks_beside_decodes_give_the_same_ids(llama: Path) -> None:
    steps = assert_same_ids(
        llama, [PROMPT[:3], PROMPT[:23], PROMPT[5:6]], max_num_batched_tokens=9, max_num_seqs=4
    )
    kinds = [{entry.is_prompt_chunk for entry in step.batch} for step in steps]
    assert {True, False} in kinds


def test_a_cached_prefix_gives_the_same_ids(llama: Path) -> None:
    prompts = [PROMPT[:21], [*PROMPT[:21], 5, 6]]
    steps = assert_same_ids(llama, prompts, block_size=4, max_num_seqs=1)
    assert any(step.prefix_hit_tokens for step in steps)


def test_preempted_requests_end_with_the_same_ids(llama: Path) -> None:
    steps = assert_same_ids(
        llama, [PROMPT[:10], PROMPT[10:22]], 6, block_size=4, num_blocks=7,
        enable_prefix_caching=False,
    )  # fmt: skip
    assert any(step.preempted_request_ids for step in steps)


def test_normalised_queries_and_keys_give_the_same_ids(qwen3: Path) -> None:
    assert_same_ids(qwen3, [PROMPT[:30], PROMPT[:7]], max_num_batched_tokens=16, max_num_seqs=4)


@pytest.mark.parametrize("kv_cache_dtype", ["int8_per_token_head", "fp8_per_token_head"])
def test_a_quantized_cache_gives_the_same_ids(llama: Path, kv_cache_dtype: str) -> None:
    """In chunks, behind a cached prefix, beside decodes."""
    steps = assert_same_ids(
        llama, [PROMPT[:21], PROMPT[:5], [*PROMPT[:21], 5, 6]], block_size=4,
        max_num_batched_tokens=16, max_num_seqs=2, kv_cache_dtype=kv_cache_dtype,
    )  # fmt: skip
    assert any(step.prefix_hit_tokens for step in steps)


@pytest.mark.slow
@pytest.mark.parametrize("kv_cache_dtype", ["int8_per_token_head", "fp8_per_token_head"])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_a_quantized_cache_of_normalised_keys_runs_to_the_end(
    qwen3: Path, dtype: str, kv_cache_dtype: str
) -> None:
    settings = {"dtype": dtype, "kv_cache_dtype": kv_cache_dtype, "max_num_batched_tokens": 16}
    ids, _ = generate(qwen3, "triton", [PROMPT[:30], PROMPT[:7]], max_num_seqs=4, **settings)
    assert all(len(row) == 4 and max(row) < VOCABULARY for row in ids)


def test_sampled_requests_of_every_kind_in_one_batch_give_the_same_ids(llama: Path) -> None:
    kinds = [
        SamplingParams(temperature=0.8, seed=1, ignore_eos=True),
        SamplingParams(temperature=1.3, top_k=5, seed=2, ignore_eos=True),
        SamplingParams(temperature=1.0, top_p=0.6, seed=3, ignore_eos=True),
        SamplingParams(temperature=0.9, min_p=0.5, top_k=9, top_p=0.9, seed=4, ignore_eos=True),
        SamplingParams(temperature=0.0, frequency_penalty=1.5, ignore_eos=True),
        SamplingParams(temperature=0.7, logit_bias={3: 4.0}, seed=6, ignore_eos=True),
    ]
    prompts = [PROMPT[number : number + 5] for number in range(len(kinds))]
    assert_same_ids(llama, prompts, 8, params=kinds)


def test_a_sliding_window_gives_the_same_ids(mistral: Path) -> None:
    assert_same_ids(mistral, [PROMPT[:30], PROMPT[:7]], max_num_batched_tokens=16, max_num_seqs=4)


@pytest.mark.slow
@pytest.mark.parametrize("block_size", [1, 3, 16, 32])
@pytest.mark.parametrize("budget", [7, 64])
def test_no_block_size_and_no_chunk_size_changes_the_ids(
    llama: Path, block_size: int, budget: int
) -> None:
    prompts = [PROMPT[: 5 + 9 * number] for number in range(4)]
    assert_same_ids(
        llama, prompts, 8, block_size=block_size, max_num_batched_tokens=budget, max_num_seqs=7
    )


@pytest.mark.slow
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_runs_to_the_end(llama: Path, dtype: str) -> None:
    ids, _ = generate(llama, "triton", [PROMPT[:20], PROMPT[:3]], dtype=dtype)
    assert all(len(row) == 4 and max(row) < VOCABULARY for row in ids)


def test_triton_is_refused_where_it_cannot_run(llama: Path) -> None:
    with (
        pytest.raises(UsageError, match="'triton' runs on a GPU, and this engine is on the CPU"),
        EventLog(capacity=0) as log,
    ):
        engine_on(llama, "triton", log)


def test_native_attention_is_refused_in_half_precision(llama: Path) -> None:
    with pytest.raises(UsageError, match="'native' computes fp32 on the CPU, not bfloat16"):
        generate(llama, "native", [PROMPT[:3]], dtype="bfloat16")


def test_an_unknown_backend_is_refused_with_those_there_are() -> None:
    with pytest.raises(UsageError, match="must be one of auto, native, torch, triton, not 'cuda'"):
        EngineConfig(attention="cuda")


@pytest.fixture
def _interpreted() -> Iterator[None]:
    with interpreter.use_faithful_interpreter():
        yield


@pytest.mark.usefixtures("_interpreted")
def test_fused_layers_normalise_heads_where_they_lie_and_gate_as_torch_does() -> None:
    """What a GPU runs between the products: within the interpreter it serves any CPU tensor."""
    from infra_lab.layers.activation import silu_and_mul
    from infra_lab.layers.norm import RMSNorm

    torch.manual_seed(0)
    qkv = torch.randn(3, 6, 16).bfloat16()
    norm = RMSNorm(torch.rand(16).bfloat16(), 1e-5)
    wide = qkv[:, 1:3].float()
    wanted = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + 1e-5) * norm.weight.float()
    torch.testing.assert_close(norm(qkv[:, 1:3]).float(), wanted, rtol=2**-7, atol=1e-6)
    stream, delta = torch.randn(2, 16).bfloat16(), torch.randn(2, 16).bfloat16()
    total = stream + delta
    assert torch.equal(norm.after_adding(stream, delta), norm(total))
    assert torch.equal(stream, total)
    gate, up = torch.randn(2, 2, 8).bfloat16()
    gated = silu_and_mul(torch.cat((gate, up), -1)).float()
    wanted = torch.nn.functional.silu(gate.float()) * up.float()
    torch.testing.assert_close(gated, wanted, rtol=2**-7, atol=1e-6)


@pytest.mark.usefixtures("_interpreted")
@pytest.mark.parametrize(
    "params",
    [
        SamplingParams(top_k=2**31),
        SamplingParams(top_k=2**40, top_p=0.9),
        SamplingParams(temperature=1e-50),
        SamplingParams(temperature=1e300),
        SamplingParams(top_p=1e-50, min_p=1e-50),
    ],
)
def test_parameters_that_no_32_bits_hold_are_taken_too(params: SamplingParams) -> None:
    """They were a traceback of the whole step, or another token; equal logits show the latter."""
    from infra_lab.sampling.request_state import SamplingState
    from infra_lab.sampling.sampler import sample, sample_row
    from infra_lab.step import NewRequest

    logits = torch.tensor([[0.0, 2.0, 2.0, 2.0, 1.0, 2.0]]).repeat(8, 1)
    states = [SamplingState(NewRequest("r", (1,), params, seed, frozenset())) for seed in range(8)]
    wanted = [sample_row(*pair) for pair in zip(logits, states, strict=True)]
    assert sample(logits, states) == wanted


@pytest.mark.usefixtures("_interpreted")
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    rows=st.lists(
        st.builds(
            SamplingParams,
            temperature=st.sampled_from([0.0, 1e-30, 0.3, 1.0, 2.0]),
            top_k=st.sampled_from([0, 1, 3, VOCABULARY]),
            top_p=st.sampled_from([1.0, 0.0001, 0.5, 0.9]),
            min_p=st.sampled_from([0.0, 0.1, 0.7]),
        ),
        min_size=1,
        max_size=4,
    ),
    seed=st.integers(0, 2**31),
    tied=st.booleans(),
)
def test_one_launch_samples_what_a_row_after_the_other_does(
    rows: list[SamplingParams], seed: int, tied: bool
) -> None:
    """And a row's token does not depend on its neighbours."""
    from infra_lab.sampling.request_state import SamplingState
    from infra_lab.sampling.sampler import sample, sample_row
    from infra_lab.step import NewRequest

    logits = torch.randn(len(rows), VOCABULARY, generator=torch.Generator().manual_seed(seed)) * 3
    logits = logits.round() if tied else logits
    states = [
        SamplingState(NewRequest("r", (1,), params, seed + number, frozenset()))
        for number, params in enumerate(rows)
    ]
    together = sample(logits, states)
    assert together == [sample_row(*pair) for pair in zip(logits, states, strict=True)]
    alone = [sample(row[None], [state])[0] for row, state in zip(logits, states, strict=True)]
    assert together == alone
