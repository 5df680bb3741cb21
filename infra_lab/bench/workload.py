"""The requests that a benchmark sends: random token ids and output lengths, fixed by a seed.

Answers "what must be equal before two engines may be compared?": the very same token ids,
the same output lengths, end-of-sequence ignored. A workload is saved as JSON so that another
engine, under another Python, runs exactly these ids. Torch-free.
"""

from __future__ import annotations

import json
import random
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from infra_lab.engine.traces import uniform
from infra_lab.errors import UsageError
from infra_lab.models.config import ModelConfig

FORMAT = 1


@dataclass(frozen=True, slots=True)
class BenchRequest:
    """One request: the prompt's token ids, and how many tokens it must produce."""

    prompt_token_ids: tuple[int, ...]
    output_len: int

    @property
    def prompt_len(self) -> int:
        return len(self.prompt_token_ids)


@dataclass(frozen=True, slots=True)
class Workload:
    """How to draw requests: lengths uniform over inclusive ranges, ids over the vocabulary."""

    num_requests: int = 32
    prompt_len_min: int = 32
    prompt_len_max: int = 256
    output_len_min: int = 32
    output_len_max: int = 128
    vocab_size: int = 49_152
    seed: int = 0

    def __post_init__(self) -> None:
        _require_at_least("the number of requests", self.num_requests, 1)
        _require_at_least("the vocabulary size", self.vocab_size, 1)
        _require_range("prompt lengths", self.prompt_len_min, self.prompt_len_max)
        _require_range("output lengths", self.output_len_min, self.output_len_max)

    def for_model(self, config: ModelConfig) -> Workload:
        """The same lengths with ids of this model's vocabulary.

        Raises UsageError when the longest request would pass the model's context.
        """
        context_len = config.max_position_embeddings
        longest = self.prompt_len_max + self.output_len_max
        if longest > context_len:
            raise UsageError(
                f"a prompt of {self.prompt_len_max} and an output of {self.output_len_max} tokens "
                f"make {longest}, but the model's context is {context_len}: ask for shorter ones"
            )
        return replace(self, vocab_size=config.vocab_size)

    def requests(self) -> list[BenchRequest]:
        """Draws the requests; the same on every machine and Python version."""
        draw = random.Random(self.seed)
        requests = []
        for _ in range(self.num_requests):
            prompt_len = uniform(self.prompt_len_min, self.prompt_len_max, draw)
            output_len = uniform(self.output_len_min, self.output_len_max, draw)
            ids = tuple(uniform(0, self.vocab_size - 1, draw) for _ in range(prompt_len))
            requests.append(BenchRequest(ids, output_len))
        return requests


@dataclass(frozen=True, slots=True)
class Job:
    """All that one engine is asked to do in one process, the same for every engine.

    Attributes:
        requests: the offline batch, handed over at once.
        single_stream: requests sent one after another, each waiting for the one before.
        max_model_len: the context that the engine is set up for.
        max_num_seqs: requests that may run together.
        threads: threads for arithmetic; None leaves the engine's own default.
        dtype: element type of weights and KV cache.
        kv_cache_bytes: memory for the KV cache, for engines that reserve it.
    """

    requests: tuple[BenchRequest, ...]
    single_stream: tuple[BenchRequest, ...]
    max_model_len: int
    max_num_seqs: int
    threads: int | None = None
    dtype: str = "float32"
    kv_cache_bytes: int = 1 << 30


def parse_range(what: str, text: str) -> tuple[int, int]:
    """ "32:256" -> (32, 256), "64" -> (64, 64); UsageError naming `what` for anything else."""
    low, separator, high = text.partition(":")
    try:
        return int(low), int(high if separator else low)
    except ValueError:
        raise UsageError(
            f"{what} must be MIN:MAX or one number, such as 32:256, not {text!r}"
        ) from None


def save_job(job: Job, path: Path) -> None:
    path.write_text(json.dumps({"format": FORMAT, **asdict(job)}), encoding="utf-8")


def load_job(path: Path) -> Job:
    """Reads what `save_job` wrote; UsageError when the file is something else."""
    try:
        raw = json.loads(path.read_text(encoding="utf-8"))
        if raw.pop("format") != FORMAT:
            raise ValueError("another format version")
        for key in ("requests", "single_stream"):
            raw[key] = tuple(_request_from_json(item) for item in raw[key])
        return Job(**raw)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UsageError(f"{path} is not a workload of `infra-lab bench` ({error!r})") from error


def _request_from_json(item: Mapping[str, Any]) -> BenchRequest:
    return BenchRequest(tuple(int(i) for i in item["prompt_token_ids"]), int(item["output_len"]))


def _require_at_least(what: str, value: int, minimum: int) -> None:
    if value < minimum:
        raise UsageError(f"{what} must be at least {minimum}, not {value}")


def _require_range(what: str, low: int, high: int) -> None:
    _require_at_least(f"the smallest of the {what}", low, 1)
    if low > high:
        raise UsageError(f"the {what} run from {low} to {high}: the first must not be the larger")
