"""Beam search: the likeliest whole continuations, and the bookkeeping that finds them.

Answers "how does beam search work, and what does it cost an engine?". A round gives every beam
its next token's log-probabilities; of all continuations the best `beam_width` go on. Two that go
on from one beam share its blocks (a fork); a beam that nobody continues gives its blocks back.
The rules for what is finished and when to stop are those of `transformers` 5, against which this
is tested: scores are summed log-probabilities divided by (generated tokens) ** length_penalty.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from infra_lab.engine.request import Request
from infra_lab.errors import InvalidRequestError
from infra_lab.sampling_params import BeamSearchParams, SamplingParams
from infra_lab.step import TokenLogprobs


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """A finished continuation; `score` is what they are ranked by."""

    entries: tuple[TokenLogprobs, ...]
    logprob: float
    score: float
    finish_reason: str

    @property
    def token_ids(self) -> list[int]:
        return [entry.token_id for entry in self.entries]


@dataclass(frozen=True, slots=True)
class Move:
    """`branch` goes on as `parent`, which may be itself, with one token more."""

    branch: Request
    parent: Request
    token_id: int


@dataclass(slots=True, eq=False)
class _Beam:
    branch: Request
    logprob: float = 0.0
    entries: tuple[TokenLogprobs, ...] = ()


@dataclass(frozen=True, slots=True)
class _Candidate:
    beam: _Beam
    entry: TokenLogprobs
    logprob: float


@dataclass(slots=True, eq=False)
class BeamGroup:
    """The beams of one prompt, each lived by one of `branches`, whose tokens change in turns.

    A round is over when every live branch has made its offer; `advance` then says who goes on.
    """

    request_id: str
    params: BeamSearchParams
    branches: list[Request]
    eos_token_ids: frozenset[int]
    max_tokens: int
    is_finished: bool = False
    hypotheses: list[Hypothesis] = field(default_factory=list)
    _beams: list[_Beam] = field(default_factory=list)
    _offers: dict[str, TokenLogprobs] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._beams = [_Beam(self.branches[0])]
        if self.params.ignore_eos:
            self.eos_token_ids = frozenset()

    @property
    def num_candidates(self) -> int:
        """Continuations to look at: if every beam's end is among them, beam_width others are."""
        return candidates_of(self.params.beam_width, len(self.eos_token_ids))

    @property
    def best(self) -> list[Hypothesis]:
        return self.hypotheses[: self.params.n]

    def offer(self, branch: Request, entry: TokenLogprobs) -> None:
        """entry: at the branch's next position; its `top` are at least num_candidates tokens."""
        self._offers[branch.request_id] = entry

    def has_offered(self, branch: Request) -> bool:
        return branch.request_id in self._offers

    @property
    def is_round_over(self) -> bool:
        return all(self.has_offered(beam.branch) for beam in self._beams)

    def advance(self) -> list[Move]:
        """Ends a round: none go on if the search is finished."""
        length = len(self._beams[0].entries) + 1
        candidates = self._candidates()
        ends = [self._ends(candidate, length) for candidate in candidates]
        going_on = [one for one, end in zip(candidates, ends, strict=True) if not end]
        going_on = going_on[: self.params.beam_width]
        self._take_finished(candidates, ends, length)
        self._offers.clear()
        self.is_finished = not going_on or not self._may_improve(going_on[0].logprob, length)
        return [] if self.is_finished else self._move(going_on)

    def _candidates(self) -> list[_Candidate]:
        found = [
            _Candidate(beam, TokenLogprobs(token_id, logprob, rank, []), beam.logprob + logprob)
            for beam in self._beams
            for rank, (token_id, logprob) in enumerate(
                self._offers[beam.branch.request_id].top[: self.num_candidates], 1
            )
        ]
        found.sort(key=lambda candidate: candidate.logprob, reverse=True)
        return found[: self.num_candidates]

    def _ends(self, candidate: _Candidate, length: int) -> bool:
        return candidate.entry.token_id in self.eos_token_ids or length >= self.max_tokens

    def _take_finished(
        self, candidates: Sequence[_Candidate], ends: Sequence[bool], length: int
    ) -> None:
        """Only what ends among the best beam_width counts as finished."""
        width = self.params.beam_width
        if self.params.early_stopping is True and len(self.hypotheses) == width:
            return
        for candidate, end in zip(candidates[:width], ends, strict=False):
            if end:
                is_stop = candidate.entry.token_id in self.eos_token_ids
                self.hypotheses.append(
                    Hypothesis(
                        (*candidate.beam.entries, candidate.entry),
                        candidate.logprob,
                        candidate.logprob / length**self.params.length_penalty,
                        "stop" if is_stop else "length",
                    )
                )
        self.hypotheses.sort(key=lambda hypothesis: hypothesis.score, reverse=True)
        del self.hypotheses[width:]

    def _may_improve(self, best_logprob: float, length: int) -> bool:
        if len(self.hypotheses) < self.params.beam_width:
            return True
        if self.params.early_stopping is True:
            return False
        if self.params.early_stopping == "never" and self.params.length_penalty > 0:
            length = self.max_tokens
        best_possible: float = best_logprob / length**self.params.length_penalty
        return best_possible > self.hypotheses[-1].score

    def _move(self, going_on: Sequence[_Candidate]) -> list[Move]:
        """Every beam's first continuation stays in its branch, the others take free ones."""
        stays = {id(one.beam): one for one in reversed(going_on)}
        taken = {one.beam.branch.request_id for one in going_on}
        free = [branch for branch in self.branches if branch.request_id not in taken]
        moves, beams = [], []
        for one in going_on:
            parent = one.beam.branch
            branch = parent if stays[id(one.beam)] is one else free.pop(0)
            moves.append(Move(branch, parent, one.entry.token_id))
            beams.append(_Beam(branch, one.logprob, (*one.beam.entries, one.entry)))
        self._beams = beams
        return moves


def beam_group(like: Request, params: BeamSearchParams, vocab_size: int, longest: int) -> BeamGroup:
    """A search whose branches have the prompt, and all that goes with it, of a request.

    longest: tokens that a sequence may have. Raises InvalidRequestError for a search that looks
    at more tokens than there are.
    """
    num_candidates = candidates_of(params.beam_width, len(like.eos_token_ids))
    if num_candidates > vocab_size:
        raise InvalidRequestError(
            f"beam_width={params.beam_width} looks at {num_candidates} tokens a step and the "
            f"vocabulary has {vocab_size}: lower beam_width"
        )
    greedy = SamplingParams(temperature=0.0, max_tokens=params.max_tokens, ignore_eos=True)
    branches = [
        replace(
            like,
            request_id=f"{like.request_id}#beam{index}",
            prompt_token_ids=list(like.prompt_token_ids),
            sampling_params=greedy,
            output_token_ids=[],
        )
        for index in range(params.beam_width)
    ]
    max_tokens = min(params.max_tokens, longest - like.num_prompt_tokens)
    group = BeamGroup(like.request_id, params, branches, like.eos_token_ids, max_tokens)
    for branch in branches:
        branch.beam_group = group
    return group


def candidates_of(beam_width: int, num_eos_tokens: int) -> int:
    return max(2, 1 + num_eos_tokens) * beam_width
