"""Perplexity on a fixed text: what a smaller KV cache costs in quality.

Answers "how do you know that an 8-bit cache is good enough?": by the likelihood of a text, not by
looking at samples. The text is cut into windows; each is given to the engine as a prompt, whose
log-probabilities it reports anyway, so what is measured is what the engine serves, cache and all.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING, Any

from infra_lab.bench.engine import EngineSettings, MeasurementError, OfflineEngine, open_engine
from infra_lab.quantization import corpus
from infra_lab.quantization.likelihood import TextLikelihood, text_windows
from infra_lab.sampling_params import SamplingParams

if TYPE_CHECKING:
    from infra_lab.engine.llm import LLM

BASE = "auto"  # the format that others are compared with
DEFAULT_WINDOW = 2048  # holds the whole story
Notify = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class CacheQuality:
    """What one variant takes and gives.

    kv_bytes_per_token: of one kept token, in all layers, scales counted.
    kv_bytes: of one window, in whole blocks.
    difference: perplexity less that of the full cache in the model's dtype.
    mean_change: of a token's log-probability against that cache, up or down, in nats.
    """

    kv_cache_dtype: str
    kv_budget: int | None
    kv_bytes_per_token: float
    kv_bytes: int
    perplexity: float
    difference: float
    mean_change: float


def read_text(path: Path | None = None) -> str:
    """The text of a file; without one the story that comes with the benchmark."""
    if path is None:
        return files("infra_lab.bench").joinpath("reading.txt").read_text(encoding="utf-8")
    return corpus.read_text(path)


def text_likelihood(
    engine: OfflineEngine, token_ids: Sequence[int], window: int, kv_budget: int | None = None
) -> TextLikelihood:
    """Predicts every token from those before it in its window, the first of each window aside.

    Raises UsageError for a text or a window of less than two tokens.
    """
    windows = text_windows(token_ids, window)
    params = SamplingParams(temperature=0, max_tokens=1, prompt_logprobs=0, kv_budget=kv_budget)
    logprobs = []
    for output in engine.generate(windows, [params] * len(windows)):
        if output.prompt_logprobs is None:
            raise MeasurementError(f"request {output.request_id} brought no log-probabilities")
        logprobs += [entry.logprob for entry in output.prompt_logprobs if entry is not None]
    predicted = sum(len(tokens) - 1 for tokens in windows)
    if len(logprobs) != predicted:
        raise MeasurementError(f"{predicted} tokens were to be predicted, and {len(logprobs)} were")
    return TextLikelihood(tuple(logprobs))


def measure_cache_quality(
    path: Path,
    settings: EngineSettings,
    text: str,
    window: int,
    kv_cache_dtypes: Sequence[str],
    budget_percents: Sequence[int],
    notify: Notify = lambda message: None,
) -> list[CacheQuality]:
    """The full cache first, then each format, then budgets of so many percent of the longest
    window: the whole text, where that is shorter."""
    results: list[CacheQuality] = []
    likelihoods: list[TextLikelihood] = []

    def measure(llm: LLM, kv_cache_dtype: str, kv_budget: int | None) -> None:
        token_ids = llm.tokenizer.encode(text)
        likelihood = text_likelihood(llm, token_ids, window, kv_budget)
        kv_cache = llm.engine.scheduler.kv_cache
        held = min(window, len(token_ids), kv_budget or window)  # of the first window
        block_bytes = _block_bytes(llm)
        likelihoods.append(likelihood)
        base = likelihoods[0]
        results.append(
            CacheQuality(
                kv_cache_dtype,
                kv_budget,
                block_bytes / kv_cache.block_size,
                kv_cache.num_blocks_for(held) * block_bytes,
                likelihood.perplexity,
                likelihood.perplexity - base.perplexity,
                likelihood.mean_change(base),
            )
        )
        kept = f", {kv_budget} tokens kept" if kv_budget else ""
        notify(f"{kv_cache_dtype}{kept}: perplexity {likelihood.perplexity:.4f}")

    for kv_cache_dtype in (BASE, *kv_cache_dtypes):
        own = replace(settings, kv_cache_dtype=kv_cache_dtype)
        measure(_open(path, own), kv_cache_dtype, None)
    if budget_percents:
        llm = _open(path, replace(settings, sparse_kv=True))
        longest = min(window, len(llm.tokenizer.encode(text)))
        for percent in budget_percents:
            measure(llm, BASE, max(1, longest * percent // 100))
    return results


def perplexity_report(
    model: str, text_name: str, window: int, qualities: Sequence[CacheQuality]
) -> dict[str, Any]:
    """Everything about a measurement as one JSON-ready object."""
    return {
        "model": model,
        "text": text_name,
        "window": window,
        "caches": [asdict(quality) for quality in qualities],
    }


def _open(path: Path, settings: EngineSettings) -> LLM:
    from infra_lab.engine.llm import LLM

    engine = open_engine(path, settings)
    assert isinstance(engine, LLM)
    return engine


def _block_bytes(llm: LLM) -> int:
    """Of all layers."""
    from infra_lab.engine.build import choose_device, choose_dtype
    from infra_lab.worker.kv_cache import kv_cache_format

    config, model = llm.engine.config, llm.model_config
    dtype = choose_dtype(config.dtype, model, choose_device(config.device))
    layout = kv_cache_format(
        model, config.block_size, dtype, config.kv_cache_dtype, config.sparse_kv
    )
    return layout.block_bytes * model.num_hidden_layers
