"""SmolLM2-135M with drafts of both kinds: the very text that it gives without."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from infra_lab.engine.build_speculation import PACKED_CPU_ROW_COST
from infra_lab.engine.llm import LLM
from infra_lab.outputs import RequestOutput
from infra_lab.sampling_params import SamplingParams
from infra_lab.speculative_config import SpeculativeConfig

pytestmark = pytest.mark.model

PROMPTS = (
    "The capital of France is",
    "A B C D A B C D A B C",
    "The sky is blue. The grass is green. The sky is blue. The grass",
    "1, 2, 3, 1, 2, 3, 1, 2, 3, 1,",
    "😀 is an emoji that",
)
PARAMS = (
    SamplingParams(temperature=0, max_tokens=16),
    SamplingParams(temperature=0, max_tokens=16, stop=("green", "D A")),
    SamplingParams(temperature=0, max_tokens=16, repetition_penalty=1.1, frequency_penalty=0.2),
    SamplingParams(temperature=0, max_tokens=16, min_tokens=8, logprobs=2),
    SamplingParams(temperature=0.9, top_p=0.9, seed=3, max_tokens=16, num_speculative_tokens=0),
)
NGRAM = SpeculativeConfig("ngram", adaptive=False)
EARLY_EXIT = SpeculativeConfig("draft_model", draft_layers=28, adaptive=False)


@pytest.fixture(scope="module")
def expected(smollm2_path: Path) -> list[Any]:
    llm = LLM(smollm2_path, num_blocks=64)
    undrafted = [
        SamplingParams(**{**_as_dict(params), "num_speculative_tokens": None}) for params in PARAMS
    ]
    return [_seen(output) for output in llm.generate(list(PROMPTS), undrafted)]


def _as_dict(params: SamplingParams) -> dict[str, Any]:
    return {name: getattr(params, name) for name in SamplingParams.__dataclass_fields__}


def _seen(output: RequestOutput) -> Any:
    sample = output.outputs[0]
    logprobs = [(entry.token_id, entry.rank) for entry in sample.logprobs or []]
    return (sample.token_ids, sample.text, sample.finish_reason, sample.stop_reason, logprobs)


@pytest.mark.parametrize(
    ("speculative", "config"),
    [
        pytest.param(NGRAM, {"num_blocks": 64}, marks=pytest.mark.slow),
        (NGRAM, {"num_blocks": 14, "block_size": 4}),  # preemptions
        (EARLY_EXIT, {"num_blocks": 64, "max_num_batched_tokens": 16, "max_num_seqs": 8}),
        pytest.param(EARLY_EXIT, {"num_blocks": 120, "block_size": 1}, marks=pytest.mark.slow),
    ],
)
def test_drafts_change_no_token_of_the_real_model(
    smollm2_path: Path, expected: list[Any], speculative: SpeculativeConfig, config: dict[str, Any]
) -> None:
    llm = LLM(smollm2_path, speculative=speculative, **config)
    outputs = llm.generate(list(PROMPTS), list(PARAMS))
    assert [_seen(output) for output in outputs] == expected
    assert sum(output.metrics.num_accepted_tokens for output in outputs) > 0
    assert outputs[4].metrics.num_draft_tokens == 0
    llm.engine.scheduler.check_integrity()
    assert llm.engine.scheduler.kv_cache.usage.used == 0


def test_a_row_weighs_more_beside_packed_weights(smollm2_path: Path) -> None:
    llm = LLM(smollm2_path, speculative=NGRAM, num_blocks=4)
    assert llm.engine.speculation is not None
    assert llm.engine.speculation.cost.row == PACKED_CPU_ROW_COST
