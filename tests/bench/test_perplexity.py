"""Perplexity as the benchmark reports it, against transformers on a tiny random model."""

from __future__ import annotations

import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from infra_lab.bench.engine import EngineSettings, MeasurementError
from infra_lab.bench.perplexity import (
    CacheQuality,
    measure_cache_quality,
    perplexity_report,
    read_text,
    text_likelihood,
)
from infra_lab.bench.tables import perplexity_table
from infra_lab.config import EngineConfig
from infra_lab.engine.build import build_engine
from infra_lab.errors import UsageError
from infra_lab.models.loader import open_checkpoint
from infra_lab.sampling_params import SamplingParams

TOKENS = torch.randint(0, 61, (50,), generator=torch.Generator().manual_seed(7)).tolist()


class TinyEngine:
    """What `LLM.generate` does, without a tokenizer."""

    def __init__(self, folder: Path) -> None:
        config = EngineConfig(num_blocks=32, device="cpu", sparse_kv=True)
        self.engine = build_engine(open_checkpoint(folder), None, config)

    def generate(self, prompts: Any, params: Any, *, use_progress: bool = False) -> Any:
        for number, (prompt, one) in enumerate(zip(prompts, params, strict=True)):
            self.engine.add_request(str(number), prompt, one)
        done = {}
        while self.engine.has_unfinished_requests:
            done |= {out.request_id: out for out in self.engine.step() if out.finished}
        return [done[str(number)] for number in range(len(prompts))]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[LlamaForCausalLM, Path]:
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("llama")
    sizes = {"hidden_size": 48, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2}
    config = LlamaConfig(vocab_size=61, max_position_embeddings=128, **sizes, **heads)
    llama = LlamaForCausalLM(config).eval()
    llama.save_pretrained(folder)
    return llama, folder


@pytest.mark.parametrize("window", [2, 7, 49, 50, 100])
def test_perplexity_is_that_of_transformers_window_by_window(
    model: tuple[LlamaForCausalLM, Path], window: int
) -> None:
    llama, folder = model
    nll, count = 0.0, 0
    for start in range(0, len(TOKENS), window):
        piece = torch.tensor([TOKENS[start : start + window]])
        if piece.shape[1] > 1:
            with torch.no_grad():
                loss = llama(piece, labels=piece).loss
            nll += float(loss) * (piece.shape[1] - 1)
            count += piece.shape[1] - 1
    ours = text_likelihood(TinyEngine(folder), TOKENS, window)
    assert len(ours.logprobs) == count
    assert ours.perplexity == pytest.approx(math.exp(nll / count), rel=1e-4)


def test_a_budget_of_a_whole_window_costs_nothing_and_a_small_one_something(
    model: tuple[LlamaForCausalLM, Path],
) -> None:
    engine = TinyEngine(model[1])
    full = text_likelihood(engine, TOKENS, 50)
    assert text_likelihood(engine, TOKENS, 50, 50).mean_change(full) < 1e-6
    assert text_likelihood(engine, TOKENS, 50, 4).mean_change(full) > 1e-3


@pytest.mark.parametrize(("tokens", "window"), [([1], 5), ([], 5), ([1, 2, 3], 1)])
def test_what_predicts_nothing_is_refused(tokens: list[int], window: int) -> None:
    with pytest.raises(UsageError, match="predicts nothing: give at least 2"):
        text_likelihood(SimpleNamespace(), tokens, window)  # type: ignore[arg-type]


def test_an_engine_without_log_probabilities_is_named(engine: Any) -> None:
    with pytest.raises(MeasurementError, match="request-0 brought no log-probabilities"):
        text_likelihood(engine, [1, 2, 3], 3)
    assert engine.calls[0][1] == [SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0)]


def test_the_story_is_there_and_a_file_that_is_none_is_refused(tmp_path: Path) -> None:
    assert 1000 < len(read_text().split()) < 2000
    (tmp_path / "a.txt").write_text("né", encoding="utf-8")
    assert read_text(tmp_path / "a.txt") == "né"
    (tmp_path / "b.txt").write_bytes(b"\xff")
    for name in ("b.txt", "c.txt"):
        with pytest.raises(UsageError, match=f"{name} cannot be read as text"):
            read_text(tmp_path / name)


def test_the_table_shows_each_cache_once() -> None:
    qualities = [
        CacheQuality("auto", None, 46080.0, 47_185_920, 20.0, 0.0, 0.0),
        CacheQuality("auto", 204, 46800.0, 9_734_400, 21.5, 1.5, 0.25),
    ]
    report = perplexity_report("m", "its story", 1024, qualities)
    cells = [list(column.cells) for column in perplexity_table(report).columns]
    assert cells == [
        ["auto", "auto"],
        ["all", "204"],
        ["46,080", "46,800"],
        ["47.19 MB", "9.73 MB"],
        ["20.0000", "21.5000"],
        ["+0.0000", "+1.5000"],
        ["0.0000", "0.2500"],
    ]


@pytest.mark.slow
@pytest.mark.model
def test_what_smollm2_loses_on_the_story_is_little_and_in_the_known_order(
    smollm2_path: Path,
) -> None:
    """Over the first 460 tokens. Perplexity moves up or down by chance as the last bits do, so the
    order is that of how far each token's log-probability moves."""
    settings = EngineSettings(pretouch_kv_cache=False, kv_cache_bytes=64 << 20)
    formats = ["int8_per_token_head", "fp8_per_token_head", "int8_per_channel_keys"]
    text = read_text()[:2000]
    measured = measure_cache_quality(smollm2_path, settings, text, 512, formats, [20, 100])
    full, int8, fp8, per_channel, fifth, whole = measured
    size = {one.kv_cache_dtype: one.kv_bytes_per_token for one in measured[:4]}
    assert size["int8_per_token_head"] == size["fp8_per_token_head"] == 30 * 3 * 2 * (64 + 4)
    assert size["auto"] == 30 * 3 * 2 * 64 * 4
    assert per_channel.mean_change < int8.mean_change < fp8.mean_change < fifth.mean_change
    assert int8.mean_change < 0.05
    assert abs(fp8.difference) < 0.02 * full.perplexity
    assert 0 < fifth.difference < 0.2 * full.perplexity
    assert whole.perplexity == pytest.approx(full.perplexity, rel=1e-5)
