"""LoRA adapters in the engine against peft in transformers, alone and several in one batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from peft import PeftModel

from infra_lab.config import EngineConfig
from infra_lab.engine.build import build_engine
from infra_lab.engine.engine_core import EngineCore
from infra_lab.errors import InvalidRequestError, ModelLoadError, ModelNotFoundError, UsageError
from infra_lab.models.loader import open_checkpoint
from infra_lab.native import library
from infra_lab.outputs import RequestOutput
from infra_lab.sampling_params import BeamSearchParams, SamplingParams
from tests.models.lora_helpers import (
    ALL_MODULES,
    FAMILIES,
    VOCAB,
    load_base,
    save_adapter,
    save_tiny_model,
)

# Of different ranks, scalings and modules: the first touches every product.
ADAPTERS: dict[str, dict[str, Any]] = {
    "all": {"r": 4, "lora_alpha": 8, "target_modules": ALL_MODULES},
    "values": {"r": 2, "lora_alpha": 3, "target_modules": ["v_proj", "down_proj"]},
    "last": {
        "r": 8,
        "use_rslora": True,
        "target_modules": ["q_proj", "o_proj", "up_proj"],
        "layers_to_transform": [1],
    },
}
NAMES = [None, *ADAPTERS]
PROMPTS = [
    [3 + (index * 7 + step * 5) % (VOCAB - 3) for step in range(4 + 3 * index)]
    for index in range(6)
]
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True)


class Case:
    """One family's tiny model, its adapters, and an engine that knows them all."""

    def __init__(self, family: str, folder: Path) -> None:
        self.base = save_tiny_model(folder / "base", family)
        self.adapters = {
            name: save_adapter(self.base, folder / name, seed=index, **settings)
            for index, (name, settings) in enumerate(ADAPTERS.items())
        }
        self.engine = self.make_engine()

    def make_engine(self, **config: Any) -> EngineCore:
        config = {"num_blocks": 128, "block_size": 4, "max_num_seqs": 8} | config
        engine = build_engine(open_checkpoint(self.base), None, EngineConfig(**config))
        for name, path in self.adapters.items():
            engine.load_lora(name, path)
        return engine

    def oracle(self, name: str | None, merged: bool) -> torch.nn.Module:
        model = load_base(self.base)
        if name is None:
            return model
        wrapped = PeftModel.from_pretrained(model, self.adapters[name]).eval()
        return wrapped.merge_and_unload() if merged else wrapped


@pytest.fixture(scope="module", params=list(FAMILIES))
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case(request.param, tmp_path_factory.mktemp(request.param))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Case:
    return Case("llama", tmp_path_factory.mktemp("llama"))


def drain(engine: EngineCore) -> dict[str, RequestOutput]:
    finished = {}
    while engine.has_unfinished_requests:
        for output in engine.step():
            if output.finished:
                finished[output.request_id] = output
        engine.scheduler.check_integrity()
    return finished


def run(
    engine: EngineCore,
    jobs: Sequence[tuple[list[int], str | None]],
    params: Callable[[int], SamplingParams] = lambda _: GREEDY,
) -> list[list[int]]:
    for index, (prompt, name) in enumerate(jobs):
        engine.add_request(str(index), prompt, params(index), lora=name)
    outputs = drain(engine)
    assert engine.scheduler.kv_cache.usage.used == 0
    return [outputs[str(index)].outputs[0].token_ids for index in range(len(jobs))]


@pytest.mark.parametrize("merged", [False, True])
@torch.inference_mode()
def test_log_probabilities_and_greedy_ids_equal_peft(case: Case, merged: bool) -> None:
    """fp32, all adapters in one batch: every output, and every position of half of the prompts.
    Of the others the last layer goes on with the last row alone."""
    jobs = [(PROMPTS[index % 6], NAMES[index % 4]) for index in range(8)]
    for index, (prompt, name) in enumerate(jobs):
        prompt_logprobs = 0 if index < 4 else None
        params = replace(GREEDY, logprobs=5, prompt_logprobs=prompt_logprobs)
        case.engine.add_request(str(index), prompt, params, lora=name)
    outputs = drain(case.engine)
    for index, (prompt, name) in enumerate(jobs):
        output, sample = outputs[str(index)], outputs[str(index)].outputs[0]
        ids = prompt + sample.token_ids
        logits = case.oracle(name, merged)(torch.tensor([ids])).logits[0]
        theirs = logits.double().log_softmax(-1)
        assert theirs[len(prompt) - 1 : -1].argmax(-1).tolist() == sample.token_ids
        entries = [*(output.prompt_logprobs or [])[1:], *(sample.logprobs or [])]
        ours = torch.tensor([entry.logprob for entry in entries if entry])
        expected = theirs[torch.arange(len(ids) - 1), ids[1:]][-len(ours) :]
        assert len(ours) == (len(ids) - 1 if index < 4 else 8)
        torch.testing.assert_close(ours.double(), expected, atol=1e-4, rtol=1e-4)


def test_adapters_change_what_the_model_says(case: Case) -> None:
    ids = run(case.engine, [(PROMPTS[2], name) for name in NAMES])
    assert len({tuple(one) for one in ids}) == len(NAMES)


@pytest.fixture(scope="module")
def alone(llama: Case) -> dict[tuple[int, str | None], list[int]]:
    return {
        (index, name): run(llama.engine, [(prompt, name)])[0]
        for index, prompt in enumerate(PROMPTS)
        for name in NAMES
    }


@settings(max_examples=25)
@given(
    jobs=st.lists(st.tuples(st.integers(0, 5), st.sampled_from(NAMES)), min_size=1, max_size=10),
    budget=st.sampled_from([8, 16, 512]),
)
def test_a_request_gives_the_same_ids_whoever_shares_its_batch(
    llama: Case,
    alone: dict[tuple[int, str | None], list[int]],
    jobs: list[tuple[int, str | None]],
    budget: int,
) -> None:
    scheduler = llama.engine.scheduler
    unchanged = scheduler.config
    scheduler.config = EngineConfig(block_size=4, max_num_seqs=8, max_num_batched_tokens=budget)
    try:
        mixed = run(llama.engine, [(PROMPTS[index], name) for index, name in jobs])
    finally:
        scheduler.config = unchanged
    assert mixed == [alone[job] for job in jobs]


@pytest.mark.skipif(not library.is_available(), reason="no compiled kernels here")
def test_log_probabilities_are_bit_for_bit_those_of_a_batch_of_one(llama: Case) -> None:
    engine = llama.make_engine(enable_prefix_caching=False)
    params = SamplingParams(temperature=0, max_tokens=4, ignore_eos=True, logprobs=0)
    jobs = [(PROMPTS[index], NAMES[index % 4]) for index in range(6)]

    def entries(indices: Sequence[int]) -> dict[int, list[float]]:
        for index in indices:
            engine.add_request(str(index), jobs[index][0], params, lora=jobs[index][1])
        return {
            int(name): [entry.logprob for entry in output.outputs[0].logprobs or ()]
            for name, output in drain(engine).items()
        }

    together = entries(range(6))
    assert together == {index: entries([index])[index] for index in range(6)}


@pytest.mark.parametrize(
    "config",
    [
        {"num_blocks": 14},  # preemptions
        {"max_num_seqs": 1},
        {"enable_prefix_caching": False},
        {"attention": "torch"},
        {"dtype": "bfloat16"},
    ],
    ids=str,
)
def test_no_setting_mixes_adapters_up(
    llama: Case, alone: dict[tuple[int, str | None], list[int]], config: dict[str, Any]
) -> None:
    engine = llama.make_engine(**config)
    jobs = [(PROMPTS[index % 3], NAMES[index % 4]) for index in range(8)]
    first = run(engine, jobs)
    assert run(engine, jobs) == first  # again, with what the prefix cache has kept
    if "dtype" not in config:  # half precision has ids of its own
        assert first == [alone[index % 3, NAMES[index % 4]] for index in range(8)]


def test_cached_prefixes_are_shared_within_an_adapter_only(llama: Case) -> None:
    engine = llama.make_engine()
    prompt = PROMPTS[5]

    def num_cached(name: str | None) -> int:
        engine.add_request("r", prompt, GREEDY, lora=name)
        return drain(engine)["r"].num_cached_tokens

    full = (len(prompt) - 1) // 4 * 4
    assert [num_cached(name) for name in NAMES] == [0] * 4
    assert [num_cached(name) for name in NAMES] == [full] * 4
    # A name is nothing: another adapter under it starts anew, the same one under another goes on.
    engine.unload_lora("all")
    engine.unload_lora("last")
    engine.load_lora("all", llama.adapters["last"])
    engine.load_lora("other", llama.adapters["all"])
    assert num_cached("all") == num_cached("other") == full
    assert run(engine, [(prompt, "all")]) == run(llama.engine, [(prompt, "last")])


def test_samples_and_beams_use_their_requests_adapter(llama: Case) -> None:
    params = SamplingParams(n=3, seed=1, max_tokens=5, ignore_eos=True)
    llama.engine.add_request("n", PROMPTS[1], params, lora="all")
    samples = [sample.token_ids for sample in drain(llama.engine)["n"].outputs]

    def seeded(index: int) -> SamplingParams:
        return SamplingParams(seed=1 + index, max_tokens=5, ignore_eos=True)

    assert samples == run(llama.engine, [(PROMPTS[1], "all")] * 3, seeded)
    beam = BeamSearchParams(beam_width=1, max_tokens=8, ignore_eos=True)
    llama.engine.add_request("b", PROMPTS[1], beam, lora="values")
    found = drain(llama.engine)["b"].outputs[0].token_ids
    assert found == run(llama.engine, [(PROMPTS[1], "values")])[0]


def test_an_unloaded_adapter_serves_its_requests_to_their_end(llama: Case) -> None:
    engine = llama.make_engine()
    assert engine.lora is not None
    engine.add_request("old", PROMPTS[0], GREEDY, lora="all")
    engine.add_request("gone", PROMPTS[1], GREEDY, lora="values")
    engine.step()
    engine.unload_lora("all")
    engine.unload_lora("values")
    with pytest.raises(InvalidRequestError, match=r"'all', which is not loaded: loaded are last"):
        engine.add_request("new", PROMPTS[0], GREEDY, lora="all")
    assert engine.lora.num_in_memory == 3
    engine.abort("gone")
    engine.step()
    assert engine.lora.num_in_memory == 2
    outputs = drain(engine)
    assert engine.lora.num_in_memory == 1
    assert outputs["old"].outputs[0].token_ids == run(llama.engine, [(PROMPTS[0], "all")])[0]
    engine.load_lora("all", llama.adapters["all"])
    assert run(engine, [(PROMPTS[0], "all")]) == run(llama.engine, [(PROMPTS[0], "all")])


def test_what_cannot_be_loaded_or_named_is_refused_alone(llama: Case, tmp_path: Path) -> None:
    engine = llama.make_engine(max_loras=4, max_lora_rank=8)
    with pytest.raises(UsageError, match="an adapter named 'all' is loaded"):
        engine.load_lora("all", llama.adapters["all"])
    with pytest.raises(UsageError, match="at least one character"):
        engine.load_lora("", llama.adapters["all"])
    with pytest.raises(ModelNotFoundError, match="no such adapter folder"):
        engine.load_lora("x", tmp_path / "x")
    large = save_adapter(llama.base, tmp_path / "large", r=9, target_modules=["q_proj"])
    with pytest.raises(ModelLoadError, match="above the limit of 8"):
        engine.load_lora("x", large)
    engine.load_lora("fourth", llama.adapters["all"])
    fifth = save_adapter(llama.base, tmp_path / "fifth", r=2, target_modules=["q_proj"])
    engine.load_lora("fifth", fifth)  # the fourth was in memory already
    with pytest.raises(UsageError, match="max_loras is 4"):
        engine.load_lora("sixth", large)
    with pytest.raises(UsageError, match="no adapter named 'x' is loaded"):
        engine.unload_lora("x")
    engine.add_request("good", PROMPTS[0], GREEDY, lora="values")
    for wrong in ("x", 3):
        with pytest.raises(InvalidRequestError, match="which is not loaded"):
            engine.validate(PROMPTS[0], GREEDY, lora=wrong)  # type: ignore[arg-type]
        with pytest.raises(InvalidRequestError, match="which is not loaded"):
            engine.add_request("bad", PROMPTS[0], GREEDY, lora=wrong)  # type: ignore[arg-type]
    assert list(drain(engine)) == ["good"]


@pytest.mark.skipif(not library.is_available(), reason="no compiled kernels here")
def test_only_steps_without_adapters_are_replayed(
    llama: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    replayed = llama.engine.executor._decoder._replayed  # type: ignore[attr-defined]
    sizes: list[int] = []
    forward = replayed.forward
    monkeypatch.setattr(
        replayed, "forward", lambda *given: (sizes.append(len(given[0])), forward(*given))[1]
    )
    run(llama.engine, [(PROMPTS[0], "all"), (PROMPTS[1], None)])
    assert sizes == []
    run(llama.engine, [(PROMPTS[0], None), (PROMPTS[1], None)])
    assert sizes
