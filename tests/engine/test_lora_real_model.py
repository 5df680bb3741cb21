"""SmolLM2 with adapters that peft made, against peft over transformers' Llama."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import LlamaForCausalLM

from infra_lab.engine.llm import LLM
from infra_lab.errors import InvalidRequestError, UsageError
from infra_lab.sampling_params import SamplingParams
from tests.engine.smollm2_oracle import llama_of_transformers
from tests.models.lora_helpers import ALL_MODULES, save_adapter_of

pytestmark = pytest.mark.model
Run = Callable[..., Any]

PROMPTS = ("The capital of France is", "Once upon a time there was a", "def fibonacci(n):\n")
GREEDY = SamplingParams(temperature=0, max_tokens=8, ignore_eos=True, logprobs=0)


@pytest.fixture(scope="module")
def oracle(smollm2_path: Path) -> LlamaForCausalLM:
    return llama_of_transformers(smollm2_path)


@pytest.fixture(scope="module")
def adapters(oracle: LlamaForCausalLM, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    settings: dict[str, dict[str, Any]] = {
        "all": {"r": 8, "target_modules": ALL_MODULES, "std": 0.03},
        "attention": {"r": 4, "target_modules": ["q_proj", "v_proj"], "std": 0.1},
    }
    for seed, (name, one) in enumerate(settings.items()):
        save_adapter_of(oracle, folder / name, seed, **one)
    return {name: folder / name for name in settings}


@pytest.fixture(scope="module")
def llm(smollm2_path: Path, adapters: dict[str, Path]) -> LLM:
    return LLM(smollm2_path, kv_cache_bytes=64 << 20, lora_adapters=adapters)


@torch.inference_mode()
def test_every_token_is_that_of_peft_in_a_batch_of_several_adapters(
    oracle: LlamaForCausalLM, llm: LLM, adapters: dict[str, Path]
) -> None:
    names = [None, "all", "attention"]
    jobs = [(prompt, name) for name in names for prompt in PROMPTS]
    outputs = llm.generate([prompt for prompt, _ in jobs], GREEDY, lora=[name for _, name in jobs])
    found = {job: output.outputs[0].token_ids for job, output in zip(jobs, outputs, strict=True)}
    assert len({tuple(ids) for ids in found.values()}) > len(PROMPTS)
    for name in names:
        wrapped = None if name is None else PeftModel.from_pretrained(oracle, adapters[name])
        model = oracle if wrapped is None else wrapped.eval()
        for job, output in zip(jobs, outputs, strict=True):
            if job[1] != name:
                continue
            prompt, sample = output.prompt_token_ids, output.outputs[0]
            logits = model(torch.tensor([prompt + sample.token_ids[:-1]])).logits[0]
            theirs = logits[len(prompt) - 1 :].log_softmax(-1)
            assert theirs.argmax(-1).tolist() == sample.token_ids, job
            assert sample.logprobs is not None
            ours = torch.tensor([entry.logprob for entry in sample.logprobs])
            torch.testing.assert_close(ours, theirs.max(-1).values, atol=1e-3, rtol=1e-3)
        if wrapped is not None:
            wrapped.unload()
    for job in jobs[1::4]:
        (output,) = llm.generate(job[0], GREEDY, lora=job[1])
        assert output.outputs[0].token_ids == found[job]


def test_adapters_come_one_for_all_or_one_for_each_by_the_names_they_were_loaded_under(
    llm: LLM,
) -> None:
    with pytest.raises(UsageError, match="2 prompts came with 3 adapters"):
        llm.generate(["a", "b"], GREEDY, lora=["all"] * 3)
    with pytest.raises(InvalidRequestError, match="prompt 1: lora names 'x', which is not loaded"):
        llm.generate(["a", "b"], GREEDY, lora=["all", "x"])
    fine, refused = llm.generate(["a", "b"], GREEDY, lora=["all", "x"], skip_invalid=True)
    assert fine.error is None
    assert refused.error is not None


def test_generate_uses_the_adapter_of_a_folder(
    run_command: Run, llm: LLM, adapters: dict[str, Path]
) -> None:
    (output,) = llm.generate(PROMPTS[0], GREEDY, lora="all")
    options = ("--raw", "--temperature", "0", "--max-tokens", "8")
    result = run_command("generate", PROMPTS[0], *options, "--lora", str(adapters["all"]))
    assert (result.status, result.out) == (0, output.outputs[0].text + "\n")
    assert len(load_file(adapters["all"] / "adapter_model.safetensors")) == 30 * 7 * 2


def test_chat_takes_an_adapter_and_both_say_what_is_wrong_with_one(
    run_command: Run, monkeypatch: pytest.MonkeyPatch, adapters: dict[str, Path], tmp_path: Path
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("Hello\n"))
    arguments = ("--max-tokens", "3", "--temperature", "0", "--lora")
    assert run_command("chat", *arguments, str(adapters["attention"])).status == 0
    missing = run_command("generate", "x", *arguments, str(tmp_path / "none"))
    assert missing.status == 1
    assert "no such adapter folder" in missing.err
    assert "Traceback" not in missing.err
