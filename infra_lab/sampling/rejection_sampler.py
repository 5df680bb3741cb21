"""Verifies draft tokens so that what comes out is what the model alone would have given.

Leviathan, Kalman and Matias 2023, algorithm 1; Chen et al. 2023, algorithm 2. A draft token x
that was drawn from q stands with probability min(1, p(x) / q(x)); where it falls, a token drawn
from max(p - q, 0), normalised, takes its place and what follows it is dropped; behind a draft
that stands whole comes one more token of p. p is the request's own distribution at that place:
its penalties, min_tokens and the form of its document count the tokens drafted before.

A draft that nobody drew (an n-gram, or a greedy request's) has q = 1 at its token. Then the rule
is carried out by drawing a token from p just as without speculation, and comparing: it is x with
probability p(x), and any other with what max(p - q, 0) gives it. So greedy requests, and seeded
ones with n-gram drafts, come out id for id as without speculation. With a drawn draft only the
distribution is the same: whether a place was drafted decides which numbers are used there.

All numbers are those of the request's own stream at that number of output tokens.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from infra_lab.kernels_guard import kernels_serve
from infra_lab.sampling.request_state import SamplingState
from infra_lab.sampling.sampler import (
    argmax_lowest_id,
    fp32_uniforms,
    launch_sampling,
    pick_by_weight,
    sample,
    sample_row,
    speculation_uniforms,
    surviving_tokens,
    uniform,
)
from infra_lab.step import Draft


def sample_and_verify(
    logits: torch.Tensor, states: Sequence[SamplingState], drafts: Sequence[Draft]
) -> list[list[int]]:
    """Each request's next tokens: the draft tokens that stand, and one more.

    Args:
        logits: fp32 [num_requests + all draft tokens, vocab], raw; of each request in turn, the
            row behind its last known token and those behind its draft tokens.
        states: one a request, as after its last known token; not changed.
        drafts: one a request, empty for none.
    """
    if not any(len(draft) for draft in drafts):
        return [[token_id] for token_id in sample(logits, states)]
    if all(state.is_plain_greedy for state in states):
        return _accepted(argmax_lowest_id(logits), drafts)
    # A document may end within its draft, or forbid what the draft says next: row by row, what
    # lies behind is not looked at.
    if kernels_serve(logits) and all(state.grammar is None for state in states):
        return _verify_in_launches(logits, states, drafts)
    blocks = torch.split(logits, [1 + len(draft) for draft in drafts])
    return [_verify(*one) for one in zip(blocks, states, drafts, strict=True)]


def draw_draft_tokens(
    logits: torch.Tensor, states: Sequence[SamplingState]
) -> list[tuple[int, torch.Tensor | None]]:
    """One draft token a row, and the distribution [vocab] that it was drawn from; None where the
    request is greedy and its likeliest token was taken.

    Args:
        logits: fp32 [n, vocab], a draft model's, raw.
        states: one for each row, as after the tokens before it; not changed.
    """
    if all(state.is_plain_greedy for state in states):
        return [(token_id, None) for token_id in argmax_lowest_id(logits)]
    if kernels_serve(logits):
        numbers = [speculation_uniforms(s.seed, s.num_output_tokens)[0] for s in states]
        ids, rows = launch_sampling(logits, states, numbers, return_probabilities=True)
        assert rows is not None
        pairs = zip(ids.tolist(), rows, states, strict=True)
        return [(one, None if state.params.is_greedy else row) for one, row, state in pairs]
    return [_draw(row, state) for row, state in zip(logits, states, strict=True)]


def distribution(logits: torch.Tensor, state: SamplingState) -> torch.Tensor:
    """logits: fp32 [vocab], raw -> float64 [vocab]: what a request of a temperature above 0 draws
    its token from, filters and penalties included."""
    token_ids, values = surviving_tokens(logits, state)
    probabilities = torch.zeros(len(logits), dtype=torch.float64, device=logits.device)
    probabilities[token_ids] = values.double().softmax(-1)
    return probabilities


def _draw(logits: torch.Tensor, state: SamplingState) -> tuple[int, torch.Tensor | None]:
    if state.params.is_greedy:
        return sample_row(logits, state), None
    q = distribution(logits, state)
    number, _ = speculation_uniforms(state.seed, state.num_output_tokens)
    return pick_by_weight(q, number), q


def _accepted(token_ids: Sequence[int], drafts: Sequence[Draft]) -> list[list[int]]:
    """Of the tokens that belong behind each known or draft token, those that will stand."""
    output = []
    start = 0
    for draft in drafts:
        given = list(token_ids[start : start + len(draft) + 1])
        start += len(given)
        pairs = enumerate(zip(given, draft.token_ids, strict=False))
        wrong = next((place for place, (one, drafted) in pairs if one != drafted), len(draft))
        output.append(given[: wrong + 1])
    return output


def _verify(logits: torch.Tensor, state: SamplingState, draft: Draft) -> list[int]:
    """One request, row after row, up to the first draft token that falls or the document's end."""
    output: list[int] = []
    for place, drafted in enumerate(draft.token_ids):
        if draft.probabilities is None:
            token_id = sample_row(logits[place], state)
        else:
            p = distribution(logits[place], state)
            q = draft.probabilities[place].double()
            token_id = _drafted_or_replacement(p, q, drafted, state)
        output.append(token_id)
        if token_id != drafted:
            return output
        state = state.after([token_id])
        if state.is_at_an_end:
            return output
    return [*output, sample_row(logits[-1], state)]


def _drafted_or_replacement(
    p: torch.Tensor, q: torch.Tensor, drafted: int, state: SamplingState
) -> int:
    """The draft token itself if it stands; p, q: float64 [vocab]."""
    _, number = speculation_uniforms(state.seed, state.num_output_tokens)
    # number < p / q without the division, and never for a p of 0.
    if number * float(q[drafted]) < float(p[drafted]):
        return drafted
    residual = (p - q).clamp_(min=0)
    # Only rounding can leave nothing of it where a token has fallen: p and q are equal then.
    weights = residual if float(residual.sum()) > 0 else p
    return pick_by_weight(weights, uniform(state.seed, state.num_output_tokens))


def _verify_in_launches(
    logits: torch.Tensor, states: Sequence[SamplingState], drafts: Sequence[Draft]
) -> list[list[int]]:
    """All requests at once: a token drawn for every row, then the draft tokens that were drawn
    themselves, each verified as a request of its own so that each has its own numbers.

    The tokens are those of `_verify`, but for a number within an fp32 rounding of a border.
    """
    row_states: list[SamplingState] = []
    drawn_rows: list[int] = []
    for state, draft in zip(states, drafts, strict=True):
        if draft.probabilities is not None:
            drawn_rows += range(len(row_states), len(row_states) + len(draft))
        row_states.append(state)
        for token_id in draft.token_ids:
            row_states.append(row_states[-1].after([token_id]))
    numbers = [uniform(state.seed, state.num_output_tokens) for state in row_states]
    token_ids, p = launch_sampling(logits, row_states, numbers, bool(drawn_rows))
    if p is not None and drawn_rows:
        drawn = [draft for draft in drafts if draft.probabilities is not None]
        token_ids[drawn_rows] = _verify_drawn(
            drawn, p[drawn_rows], [row_states[row] for row in drawn_rows]
        )
    return _accepted(token_ids.tolist(), drafts)


def _verify_drawn(
    drafts: Sequence[Draft], p: torch.Tensor, states: Sequence[SamplingState]
) -> torch.Tensor:
    """int64 [n]: for each draft token itself, or the token in its place."""
    from kernels.rejection_sample import rejection_sample

    device = p.device
    places = [(state.seed, state.num_output_tokens) for state in states]
    ids = torch.tensor([one for draft in drafts for one in draft.token_ids], device=device)
    outcome = rejection_sample(
        ids,
        torch.arange(1, len(ids) + 1, device=device),
        torch.cat([draft.probabilities for draft in drafts]),
        p,
        ids,  # what would follow each is not asked for
        max_draft=1,
        uniform=fp32_uniforms([speculation_uniforms(*place)[1] for place in places], device),
        replacement_uniform=fp32_uniforms([uniform(*place) for place in places], device),
    )
    return outcome.output_ids[:, 0]
