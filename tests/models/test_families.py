"""Each family's logits against transformers, at any chunking, for tiny random models."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PretrainedConfig,
    Qwen2Config,
    Qwen3Config,
)

from infra_lab.attention.backend import AttentionMetadata
from infra_lab.attention.torch_backend import TorchAttentionBackend
from infra_lab.engine.build import choose_attention_backend
from infra_lab.models.loader import open_checkpoint
from infra_lab.models.registry import model_class
from infra_lab.models.weights import Weights
from infra_lab.native import library
from infra_lab.sampling_params import SamplingParams
from infra_lab.step import NewRequest, ScheduledRequest, SchedulerOutput
from infra_lab.worker.kv_cache import allocate_kv_cache
from infra_lab.worker.model_runner import ModelRunner

CPU = torch.device("cpu")
SHAPE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
CONFIGS: dict[str, Callable[[], PretrainedConfig]] = {
    "llama": lambda: LlamaConfig(**SHAPE),
    "llama, tied": lambda: LlamaConfig(**SHAPE, tie_word_embeddings=True),
    "llama, biases": lambda: LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True),
    "llama, llama3 rope": lambda: LlamaConfig(**SHAPE, rope_parameters=LLAMA3),
    "llama, linear rope": lambda: LlamaConfig(
        **SHAPE, rope_parameters={"rope_type": "linear", "rope_theta": 1e4, "factor": 4.0}
    ),
    "llama, multi-query": lambda: LlamaConfig(**{**SHAPE, "num_key_value_heads": 1}),
    "mistral": lambda: MistralConfig(**SHAPE, sliding_window=None),
    "mistral, sliding window": lambda: MistralConfig(**SHAPE, sliding_window=9),
    "mistral, wide heads": lambda: MistralConfig(**SHAPE, head_dim=20, sliding_window=None),
    "qwen2": lambda: Qwen2Config(**SHAPE),
    "qwen3": lambda: Qwen3Config(**SHAPE, head_dim=16),
}
SLOTS = [12, 13, 14, 15, 4, 5, 6, 8, 9, 10]  # blocks 3 and 1, then block 2, of 4 tokens
CHUNKS = [[60], [7, 1, 1, 20, 1, 30], [1] * 60]


@pytest.fixture(params=list(CONFIGS), scope="module")
def saved(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[request.param]())
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    folder = tmp_path_factory.mktemp("family")
    model.save_pretrained(folder)
    return folder


def our_logprobs(folder: Path, token_ids: list[int], chunks: list[int]) -> torch.Tensor:
    """Log-probabilities of all tokens at every position but the last: [n - 1, vocab]."""
    checkpoint = open_checkpoint(folder)
    config = checkpoint.config
    model = model_class(config.architecture)(config, Weights(checkpoint, torch.float32, CPU))
    backend = choose_attention_backend("auto", model.attention_shape, 4, torch.float32, CPU)
    runner = ModelRunner(model, backend, num_blocks=40, block_size=4)
    params = SamplingParams(temperature=0, prompt_logprobs=20)
    position, entries = 0, []
    for length in chunks:
        item = ScheduledRequest(
            "r",
            token_ids[position : position + length],
            position,
            list(range(39, 23, -1)),
            samples=True,
            prompt_logprobs_from=position,
        )
        new = [NewRequest("r", token_ids, params, 0)] if position == 0 else []
        output = runner.execute(SchedulerOutput(scheduled=[item], new_requests=new))
        entries += output.prompt_logprobs.get("r", [])
        position += length
    logprobs = torch.full((len(token_ids) - 1, config.vocab_size), float("nan"))
    for row, entry in zip(logprobs, entries, strict=True):
        for token_id, value in [*entry.top, (entry.token_id, entry.logprob)]:
            row[token_id] = value
    return logprobs


@pytest.fixture(params=["compiled kernels", "torch alone"])
def arithmetic(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "torch alone":
        monkeypatch.setattr(library, "is_available", lambda: False)
    elif not library.is_available():
        pytest.skip("no compiled kernels here")


@pytest.mark.usefixtures("arithmetic")
@pytest.mark.parametrize("chunks", CHUNKS, ids=["whole", "mixed chunks", "token by token"])
def test_log_probabilities_equal_transformers(saved: Path, chunks: list[int]) -> None:
    torch.manual_seed(1)
    token_ids = torch.randint(0, SHAPE["vocab_size"], (60,)).tolist()
    oracle = AutoModelForCausalLM.from_pretrained(saved, dtype=torch.float32).eval()
    with torch.no_grad():
        expected = oracle(torch.tensor([token_ids])).logits[0].log_softmax(-1)[:-1]
    got = our_logprobs(saved, token_ids, chunks)
    known = ~got.isnan()
    assert int(known.sum()) >= 20 * len(got)
    torch.testing.assert_close(got[known], expected[known], atol=1e-4, rtol=1e-4)


@pytest.mark.usefixtures("arithmetic")
@pytest.mark.parametrize("wanted", [[], [0], [4, 9], list(range(10))])
def test_rows_that_nobody_wants_change_nothing(saved: Path, wanted: list[int]) -> None:
    """The last layer finishes only the wanted rows, but writes every token's keys and values."""
    checkpoint = open_checkpoint(saved)
    config = checkpoint.config
    model = model_class(config.architecture)(config, Weights(checkpoint, torch.float32, CPU))
    backend = choose_attention_backend("auto", model.attention_shape, 4, torch.float32, CPU)
    metadata = AttentionMetadata(
        np.array([0, 7, 10]), np.array([7, 3]), np.array([[3, 1], [2, 0]]), np.array(SLOTS)
    )
    token_ids, positions = torch.arange(10), torch.tensor([*range(7), *range(3)])
    results = []
    for rows in (None, torch.tensor(wanted, dtype=torch.int64)):
        caches = allocate_kv_cache(config, 4, 4, torch.float32, CPU, pretouch=rows is not None)
        plan = backend.plan(metadata)
        hidden = model.forward(token_ids, positions, backend, caches, plan, rows)
        results.append((hidden, [cache.storage for cache in caches]))
    (every, every_cache), (some, some_cache) = results
    torch.testing.assert_close(some, every[wanted])
    assert all(map(torch.equal, some_cache, every_cache))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_stays_near_single(saved: Path, dtype: torch.dtype) -> None:
    """|ours - fp32| <= 2 |transformers in the same dtype - fp32| + tiny, over the last logits."""
    torch.manual_seed(1)
    token_ids = torch.randint(0, SHAPE["vocab_size"], (24,)).tolist()
    oracle = AutoModelForCausalLM.from_pretrained(saved, dtype=torch.float32).eval()
    same_dtype = AutoModelForCausalLM.from_pretrained(saved, dtype=dtype).eval()
    with torch.no_grad():
        exact = oracle(torch.tensor([token_ids])).logits[0, -1]
        theirs = same_dtype(torch.tensor([token_ids])).logits[0, -1].float()
    checkpoint = open_checkpoint(saved)
    config = checkpoint.config
    model = model_class(config.architecture)(config, Weights(checkpoint, dtype, CPU))
    backend = TorchAttentionBackend(model.attention_shape, 4, dtype, CPU)
    runner = ModelRunner(model, backend, num_blocks=8, block_size=4)
    captured: list[torch.Tensor] = []
    logits = model.logits
    model.logits = lambda x: captured.append(logits(x).clone()) or captured[-1]  # type: ignore[method-assign, func-returns-value]
    item = ScheduledRequest("r", token_ids, 0, [1, 2, 3, 4, 5, 6], samples=True)
    new = NewRequest("r", token_ids, SamplingParams(temperature=0), 0)
    runner.execute(SchedulerOutput(scheduled=[item], new_requests=[new]))
    error = (captured[0][0] - exact).abs().max()
    assert error <= 2 * (theirs - exact).abs().max() + 1e-2
