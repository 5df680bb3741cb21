"""Every feature beside every other, on a tiny model: each answer is what it would be alone.

A scenario is a random engine and random requests that come, and go, at random steps. Whatever
meets, greedy answers are those of the plain engine, seeded samples are those of the same seed
alone (but for those of a drawn draft, of which only the law is the same), the accounts are in order
after every step, and at the end nothing is held.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import cache
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
from infra_lab.models.loader import open_checkpoint
from infra_lab.outputs import CompletionOutput, RequestOutput
from infra_lab.sampling_params import BeamSearchParams, SamplingParams
from infra_lab.speculative_config import SpeculativeConfig
from infra_lab.structured_outputs import StructuredOutputsParams
from tests.models.lora_helpers import save_adapter
from tests.sampling.grammar_helpers import ascii_tokenizer

VOCABULARY, EOS, CONTEXT = 97, 5, 64
SHARED = torch.randint(6, VOCABULARY, (40,), generator=torch.Generator().manual_seed(3)).tolist()
TOKENIZER = ascii_tokenizer(VOCABULARY, EOS)
ADAPTERS = {"a": ["q_proj", "v_proj", "down_proj"], "b": ["k_proj", "up_proj", "o_proj"]}
Params = SamplingParams | BeamSearchParams
Answer = list[tuple[list[int], str | None]]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    model = LlamaForCausalLM(
        LlamaConfig(
            vocab_size=VOCABULARY,
            hidden_size=32,
            intermediate_size=48,
            num_hidden_layers=2,
            num_attention_heads=4,
            num_key_value_heads=2,
            max_position_embeddings=CONTEXT,
            bos_token_id=None,
            eos_token_id=EOS,
        )
    )
    with torch.no_grad():
        model.lm_head.weight.mul_(12.0)
        model.lm_head.weight[EOS].mul_(1.4)
    path = tmp_path_factory.mktemp("tiny")
    model.save_pretrained(path)
    for seed, name in enumerate(ADAPTERS):
        save_adapter(path, path / name, seed, target_modules=ADAPTERS[name])
    return path


@dataclass(frozen=True)
class Arrival:
    step: int
    prompt: tuple[int, ...]
    params: Params
    salt: str | None = None
    lora: str | None = None
    aborted_after: int | None = None
    priority: int = 0


@dataclass(frozen=True)
class Scenario:
    config: dict[str, Any]
    arrivals: list[Arrival] = field(default_factory=list)


prompts = st.builds(
    lambda shared, tail: (*SHARED[:shared], *tail),
    st.integers(1, 24),
    st.lists(st.integers(6, VOCABULARY - 1), max_size=3),
)
lengths = st.integers(1, 14)
greedy = st.builds(
    SamplingParams,
    temperature=st.just(0.0),
    max_tokens=lengths,
    ignore_eos=st.booleans(),
    min_tokens=st.integers(0, 1),
    stop_token_ids=st.sampled_from([(), (11, 12, 13, 14)]),
    repetition_penalty=st.sampled_from([1.0, 1.0, 1.3]),
    frequency_penalty=st.sampled_from([0.0, 0.0, 0.7]),
    logprobs=st.sampled_from([None, 0, 3]),
    prompt_logprobs=st.sampled_from([None, None, 1]),
)
sampled = st.builds(
    lambda n, more, **rest: SamplingParams(n=n, best_of=n + more if more else None, **rest),
    n=st.integers(1, 3),
    more=st.sampled_from([0, 0, 2]),
    temperature=st.sampled_from([0.5, 1.0]),
    top_k=st.sampled_from([0, 9]),
    top_p=st.sampled_from([1.0, 0.8]),
    seed=st.integers(0, 3),
    max_tokens=lengths,
)
documents = st.builds(
    lambda form, temperature, **rest: SamplingParams(
        structured_outputs=form, temperature=temperature, **rest
    ),
    form=st.sampled_from(
        [
            StructuredOutputsParams(choice=["ab", "abc", "x" * 9]),
            StructuredOutputsParams(regex="[a-c]{2,6}!?"),
            StructuredOutputsParams(
                json={"type": "array", "items": {"enum": [1, 23]}}, disable_any_whitespace=True
            ),
        ]
    ),
    temperature=st.sampled_from([0.0, 1.0]),
    seed=st.integers(0, 3),
    min_tokens=st.sampled_from([0, 4]),
    max_tokens=st.integers(4, 14),
    stop=st.sampled_from([(), ("b", "]")]),
)
beams = st.builds(
    BeamSearchParams,
    beam_width=st.integers(1, 4),
    max_tokens=lengths,
    length_penalty=st.sampled_from([1.0, 0.0]),
    early_stopping=st.sampled_from([True, False, "never"]),
)
arrivals = st.builds(
    Arrival,
    step=st.integers(0, 12),
    prompt=prompts,
    params=greedy | sampled | beams | documents,
    salt=st.sampled_from([None, None, "x"]),
    lora=st.sampled_from([None, None, *ADAPTERS]),
    aborted_after=st.sampled_from([None, None, None, None, 2, 5]),
    priority=st.integers(0, 2),
)
schedulings = st.sampled_from(
    [
        {},
        {},
        {"scheduling_policy": "static"},
        {"scheduling_policy": "sjf"},
        {"scheduling_policy": "sjf", "aging_steps": 0},
        {"scheduling_policy": "priority", "aging_steps": 2},
        {"scheduling_policy": "priority"},
    ]
)
BYTES_PER_TOKEN = 256
swappings = st.builds(
    lambda tokens, choice: {"swap_space_bytes": tokens * BYTES_PER_TOKEN, **choice},
    st.sampled_from([32, 64, 400]),
    st.sampled_from(
        [
            {"preemption_mode": "swap"},
            # Recomputes what fills its blocks badly, and swaps the rest.
            {"swap_bytes_per_s": 1e6, "recompute_tokens_per_s": 1e6 / BYTES_PER_TOKEN / 3},
        ]
    ),
)


@st.composite
def speculations(draw: st.DrawFn, max_num_batched_tokens: int) -> SpeculativeConfig | None:
    method = draw(st.sampled_from([None, None, "ngram", "draft_model"]))
    if method is None or max_num_batched_tokens < 2:
        return None
    own = {"prompt_lookup_min": 1} if method == "ngram" else {"draft_layers": 1}
    longest = min(5, max_num_batched_tokens - 1)
    return SpeculativeConfig(
        method,
        num_speculative_tokens=draw(st.integers(1, longest)),
        adaptive=draw(st.booleans()),
        **own,  # type: ignore[arg-type]
    )


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    block_size = draw(st.sampled_from([1, 2, 4, 16]))
    max_num_seqs = draw(st.sampled_from([1, 2, 4, 9]))
    config: dict[str, Any] = {
        "block_size": block_size,
        "num_blocks": -(-draw(st.integers(41, 140)) // block_size),
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_seqs + draw(st.sampled_from([0, 3, 20, 60])),
        "enable_prefix_caching": draw(st.booleans()),
        "attention": draw(st.sampled_from(["auto", "auto", "torch"])),
        **draw(schedulings),
        **draw(st.just({}) | swappings | swappings),
    }
    config["speculative"] = draw(speculations(config["max_num_batched_tokens"]))
    arriving = draw(st.lists(arrivals, min_size=1, max_size=6))
    if config.get("scheduling_policy") != "priority":
        arriving = [replace(arrival, priority=0) for arrival in arriving]
    return Scenario(config, arriving)


def run(engine: EngineCore, scenario: Scenario) -> tuple[dict[int, RequestOutput], int]:
    """The last output of each arrival, by its number, and how many steps that took."""
    outputs: dict[int, RequestOutput] = {}
    steps = 0
    while steps <= 12 or engine.has_unfinished_requests:
        for number, arrival in enumerate(scenario.arrivals):
            if arrival.step == steps:
                name = f"{number}"
                prompt, priority, lora = list(arrival.prompt), arrival.priority, arrival.lora
                engine.add_request(name, prompt, arrival.params, arrival.salt, priority, lora)
            if arrival.aborted_after is not None and arrival.step + arrival.aborted_after == steps:
                engine.abort(f"{number}")
        for output in engine.step():
            outputs[int(output.request_id)] = output
        engine.scheduler.check_integrity()
        steps += 1
        assert steps < 3000, "no end in sight"
    assert engine.scheduler.kv_cache.usage.used == 0
    return outputs, steps


def answer_of(output: RequestOutput) -> Answer:
    return [(sample.token_ids, sample.finish_reason) for sample in output.outputs]


def make_engine(folder: Path, config: EngineConfig) -> EngineCore:
    engine = build_engine(open_checkpoint(folder), TOKENIZER, config)
    for name in ADAPTERS:
        engine.load_lora(name, folder / name)
    return engine


def oracle(folder: Path) -> Callable[..., Answer]:
    """Answers of a plain engine: ample memory, no prefix cache, one request at a time."""
    known: dict[str, Params] = {}

    @cache
    def answer(prompt: tuple[int, ...], name: str, lora: str | None) -> Answer:
        config = EngineConfig(num_blocks=200, enable_prefix_caching=False, device="cpu")
        arrival = Arrival(0, prompt, known[name], lora=lora)
        return answer_of(run(make_engine(folder, config), Scenario({}, [arrival]))[0][0])

    def ask(prompt: tuple[int, ...], params: Params, lora: str | None = None) -> Answer:
        # What is only reported changes nothing.
        if isinstance(params, SamplingParams):
            params = replace(params, prompt_logprobs=None)
        known[repr(params)] = params
        return answer(prompt, repr(params), lora)

    return ask


def keeps_only_its_law(scenario: Scenario, params: Params) -> bool:
    """Random samples with a draft that was drawn from a distribution of its own."""
    speculative = scenario.config["speculative"]
    is_drawn = speculative is not None and speculative.method == "draft_model"
    return is_drawn and isinstance(params, SamplingParams) and not params.is_greedy


ORACLES: dict[Path, Any] = {}
STEPS = [0]


def check(folder: Path, scenario: Scenario) -> None:
    ask = ORACLES.setdefault(folder, oracle(folder))
    engine = make_engine(folder, EngineConfig(device="cpu", **scenario.config))
    outputs, steps = run(engine, scenario)
    STEPS[0] += steps
    for number, arrival in enumerate(scenario.arrivals):
        expected = ask(arrival.prompt, arrival.params, arrival.lora)
        output = outputs[number]
        assert output.finished
        got = answer_of(output)
        if any(reason == "abort" for _, reason in got):
            assert arrival.aborted_after is not None
            continue
        if keeps_only_its_law(scenario, arrival.params):
            assert len(got) == len(expected)
            continue
        assert got == expected, f"request {number}"
        if getattr(arrival.params, "prompt_logprobs", None) is not None:
            assert output.prompt_logprobs is not None
            assert len(output.prompt_logprobs) == len(arrival.prompt)


QUICK = settings(
    max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)


@QUICK
@given(scenarios())
def test_features_in_any_company_give_the_answers_they_give_alone(
    folder: Path, scenario: Scenario
) -> None:
    check(folder, scenario)


@pytest.mark.parametrize("prompt_tokens", [15, 16, 17])
def test_samples_of_one_prompt_are_those_of_requests_of_their_own(
    folder: Path, prompt_tokens: int
) -> None:
    params = SamplingParams(n=4, seed=7, max_tokens=9)
    prompt = tuple(SHARED[:prompt_tokens])
    together = oracle(folder)(prompt, params)
    alone = [oracle(folder)(prompt, replace(params, n=1, seed=7 + i))[0] for i in range(4)]
    assert together == alone
    assert len({tuple(ids) for ids, _ in together}) > 1


def test_the_best_of_several_are_those_of_the_highest_mean_log_probability(folder: Path) -> None:
    params = SamplingParams(n=6, seed=7, max_tokens=9, logprobs=0)
    engine = make_engine(folder, EngineConfig(device="cpu"))
    prompt = tuple(SHARED[:9])
    arrivals = [
        Arrival(0, prompt, params),
        Arrival(0, prompt, replace(params, n=2, best_of=6, logprobs=None)),
    ]
    outputs, _ = run(engine, Scenario({}, arrivals))

    def mean(sample: CompletionOutput) -> float:
        assert sample.logprobs is not None
        return sum(entry.logprob for entry in sample.logprobs) / len(sample.token_ids)

    ranked = sorted(outputs[0].outputs, key=mean, reverse=True)
    best = outputs[1].outputs
    assert [sample.token_ids for sample in best] == [sample.token_ids for sample in ranked[:2]]
    assert [sample.index for sample in best] == [0, 1]
    assert all(sample.logprobs is None for sample in best)


@pytest.mark.slow
def test_a_hundred_thousand_steps_of_any_company(folder: Path) -> None:
    STEPS[0] = 0
    while STEPS[0] < 100_000:
        settings(QUICK, max_examples=500, database=None)(
            given(scenarios())(lambda scenario: check(folder, scenario))
        )()
