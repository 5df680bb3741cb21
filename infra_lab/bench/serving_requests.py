"""What a serving benchmark asks: how long the prompts and answers are, and their text.

Answers "what do real conversations look like to a server?": most are short and a few are long, so
that means say little. Only texts go out, since not every endpoint takes token ids; how many tokens
a word makes is found by asking the endpoint itself. Torch-free.
"""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra_lab.bench.perplexity import read_text
from infra_lab.bench.workload import parse_range
from infra_lab.engine.traces import ALPACA_MEANS, SHAREGPT_MEANS, log_normal, uniform
from infra_lab.errors import UsageError


@dataclass(frozen=True, slots=True)
class ServingRequest:
    """A text, or the messages of a chat, and the most tokens of its answer."""

    prompt: str | tuple[dict[str, Any], ...]
    max_tokens: int


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Lengths whose logarithm is normal, cut to [low, high].

    Attributes:
        mean: of the lengths, before the cut.
        sigma: of their logarithm; 1 makes the median 0.61 and P90 2.2 times the mean.
    """

    mean: float
    sigma: float
    low: int
    high: int

    def draw(self, draw: random.Random) -> int:
        length = round(log_normal(self.mean, self.sigma, draw.random()))
        return max(self.low, min(self.high, length))


@dataclass(frozen=True, slots=True)
class Uniform:
    low: int
    high: int

    def __post_init__(self) -> None:
        if not 1 <= self.low <= self.high:
            raise UsageError(
                f"lengths must go from at least 1 up, not from {self.low} to {self.high}"
            )

    def draw(self, draw: random.Random) -> int:
        return uniform(self.low, self.high, draw)


Lengths = LogNormal | Uniform

# The paper that gives the means gives no spread: sigma 1 is this benchmark's own choice. The bounds
# are those to which vLLM's benchmark filters ShareGPT: prompts of 4 to 1024 tokens, 2048 together
# with the answer.
DATASETS: dict[str, list[LogNormal]] = {
    name: [LogNormal(mean, 1.0, 4, 1024) for mean in means]
    for name, means in (("sharegpt", SHAREGPT_MEANS), ("alpaca", ALPACA_MEANS))
}


def parse_lengths(option: str, text: str, position: int) -> Lengths:
    """ "sharegpt" -> its prompts (position 0) or answers (1); "64" and "32:256" as in
    parse_range."""
    if text in DATASETS:
        return DATASETS[text][position]
    if text[:1].isalpha():
        known = ", ".join(DATASETS)
        raise UsageError(f"{option} must be {known}, MIN:MAX or one number, not {text!r}")
    return Uniform(*parse_range(option, text))


@dataclass(frozen=True, slots=True)
class WordCost:
    """Tokens of a prompt of n words, as an endpoint counts them: fixed + each * n."""

    each: float = 1.0
    fixed: float = 0.0

    @classmethod
    def of_two(cls, small: tuple[int, int], large: tuple[int, int]) -> WordCost:
        """From (words, tokens) of two prompts."""
        each = (large[1] - small[1]) / (large[0] - small[0])
        if each <= 0:
            raise UsageError(
                f"the endpoint counts {small[1]} prompt tokens for {small[0]} words and "
                f"{large[1]} for {large[0]}: its usage cannot be relied on"
            )
        return cls(each, small[1] - each * small[0])

    def num_words(self, num_tokens: int) -> int:
        return max(1, round((num_tokens - self.fixed) / self.each))


def plain_words() -> list[str]:
    """Words that are about a token each in any tokenizer that has seen English."""
    return sorted({word for word in read_text(None).lower().split() if word.isalpha()})


def random_text(words: Sequence[str], count: int, draw: random.Random) -> str:
    """Words in no order, so that no two prompts begin alike and no prefix cache helps."""
    return " ".join(words[int(draw.random() * len(words))] for _ in range(count))


def draw_requests(
    count: int, prompts: Lengths, answers: Lengths, cost: WordCost, seed: int
) -> list[ServingRequest]:
    """The same for one seed on every machine: of `random`, only `Random.random()` is used."""
    words, draw = plain_words(), random.Random(seed)
    requests = []
    for _ in range(count):
        num_words = cost.num_words(prompts.draw(draw))
        max_tokens = answers.draw(draw)
        requests.append(ServingRequest(random_text(words, num_words, draw), max_tokens))
    return requests


def read_requests(path: Path, max_tokens: int) -> list[ServingRequest]:
    """From JSON lines, each with `prompt` or `messages` and, if it likes, `max_tokens`.

    Raises UsageError that names the line at fault.
    """
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--prompts {path}: cannot be read: {error}") from error
    requests = [
        _request(f"--prompts {path}, line {number}", line, max_tokens)
        for number, line in enumerate(lines, start=1)
        if line.strip()
    ]
    if not requests:
        raise UsageError(f"--prompts {path}: has no request in it")
    return requests


def take(requests: Sequence[ServingRequest], count: int) -> list[ServingRequest]:
    """The first `count`, from the beginning again where there are fewer."""
    return [requests[index % len(requests)] for index in range(count)]


def _request(place: str, line: str, max_tokens: int) -> ServingRequest:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{place}: is not JSON: {error}") from error
    if not isinstance(found, dict):
        raise UsageError(f"{place}: must be an object with prompt or messages")
    unknown = set(found) - {"prompt", "messages", "max_tokens"}
    if unknown:
        raise UsageError(f"{place}: {min(unknown)!r} is none of prompt, messages, max_tokens")
    wanted = found.get("max_tokens", max_tokens)
    if type(wanted) is not int or wanted < 1:
        raise UsageError(f"{place}: max_tokens must be a whole number of at least 1")
    prompt, messages = found.get("prompt"), found.get("messages")
    if isinstance(prompt, str) and prompt and messages is None:
        return ServingRequest(prompt, wanted)
    if prompt is None and isinstance(messages, list) and messages:
        return ServingRequest(tuple(messages), wanted)
    raise UsageError(f"{place}: give either prompt, a text, or messages, a list")
