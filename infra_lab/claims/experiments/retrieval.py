"""Passages of a text, found by the words of a question: what does the size of a chunk change?

BM25 (Robertson and Zaragoza 2009) with k1 = 1.2 and b = 0.75 over chunks of whole words. A question
is answered when a passage among those retrieved contains the words of its answer, uncut.
"""

from __future__ import annotations

import math
import re
import tomllib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.resources import files

_K1, _B = 1.2, 0.75
_WORD = re.compile(r"[a-z0-9]+")


@dataclass(frozen=True, slots=True)
class Question:
    ask: str
    answer: str


def questions() -> list[Question]:
    """Those about the book that comes with the package."""
    folder = files("infra_lab.claims.experiments")
    content = tomllib.loads(folder.joinpath("alice_questions.toml").read_text(encoding="utf-8"))
    return [Question(one["ask"], one["answer"]) for one in content["question"]]


def book_words() -> list[str]:
    """The whole book, word by word, spaces and line ends forgotten."""
    from infra_lab.quantization.corpus import calibration_text, evaluation_text

    return f"{calibration_text()}\n{evaluation_text()}".split()


def chunks(words: Sequence[str], size: int, overlap: int = 0) -> list[str]:
    """The text in pieces of `size` words, each but the first beginning with the `overlap` last
    ones of the piece before. Raises ValueError unless 0 <= overlap < size."""
    if not 0 <= overlap < size:
        raise ValueError(f"pieces of {size} words cannot share {overlap} of them")
    step = size - overlap
    starts = range(0, max(1, len(words) - overlap), step)
    return [" ".join(words[start : start + size]) for start in starts]


def terms(text: str) -> list[str]:
    return _WORD.findall(text.lower())


class BM25:
    """An index of passages."""

    def __init__(self, passages: Sequence[str]) -> None:
        self.passages = list(passages)
        self._counts = [Counter(terms(passage)) for passage in self.passages]
        self._lengths = [counts.total() for counts in self._counts]
        self._mean_length = sum(self._lengths) / len(self._lengths)
        having = Counter(term for counts in self._counts for term in counts)
        total = len(self.passages)
        self._weights = {
            term: math.log(1 + (total - count + 0.5) / (count + 0.5))
            for term, count in having.items()
        }

    def score(self, query: str, passage: int) -> float:
        counts = self._counts[passage]
        norm = _K1 * (1 - _B + _B * self._lengths[passage] / self._mean_length)
        return sum(
            self._weights[term] * counts[term] * (_K1 + 1) / (counts[term] + norm)
            for term in terms(query)
            if counts[term]
        )

    def ranked(self, query: str) -> list[str]:
        """All passages, the highest score first, the earlier of two equal ones before the other."""
        scores = [self.score(query, passage) for passage in range(len(self.passages))]
        order = sorted(range(len(scores)), key=lambda passage: -scores[passage])
        return [self.passages[passage] for passage in order]


def ranks(index: BM25, asked: Sequence[Question]) -> list[int | None]:
    """The place, from 1, of the first passage that answers each question; None where none does."""
    return [
        next(
            (
                place
                for place, passage in enumerate(index.ranked(one.ask), 1)
                if one.answer in passage
            ),
            None,
        )
        for one in asked
    ]


def recall(found: Sequence[int | None], count: int) -> float:
    """The share of questions that are answered within the first `count` passages."""
    return sum(place is not None and place <= count for place in found) / len(found)


def share_cut(passages: Sequence[str], asked: Sequence[Question]) -> float:
    """The share of answers that no passage contains whole: a boundary goes through them."""
    cut = sum(not any(one.answer in passage for passage in passages) for one in asked)
    return cut / len(asked)
