"""What changes logits before a token is chosen: a grammar, bans, bias and the three penalties.

Order: what would break the document, forbidden tokens, logit_bias, repetition, then presence
and frequency. Answers "what do presence, frequency and repetition penalty each do?".
"""

from __future__ import annotations

import torch

from infra_lab.sampling.grammar_state import GrammarState
from infra_lab.sampling.request_state import SamplingState


def process_logits(logits: torch.Tensor, state: SamplingState) -> torch.Tensor:
    """logits: fp32 [vocab] -> the same values adjusted, in a new tensor if anything changed."""
    if state.is_plain_greedy:
        return logits
    logits = logits.clone() if state.grammar is None else keep_document(logits, state.grammar)
    if forbidden := state.forbidden_token_ids:
        logits[forbidden] = float("-inf")
    if state.params.logit_bias:
        ids = torch.tensor(list(state.params.logit_bias), device=logits.device)
        bias = torch.tensor(list(state.params.logit_bias.values()), device=logits.device)
        logits[ids] += bias.to(logits.dtype)
    if state.params.repetition_penalty != 1.0:
        apply_repetition_penalty(logits, state)
    if state.output_counts:
        apply_count_penalties(logits, state)
    return logits


def keep_document(logits: torch.Tensor, grammar: GrammarState) -> torch.Tensor:
    """Leaves out every token that would break the document; nothing later brings one back, for
    what is added to -inf or multiplied with it stays there."""
    allowed = torch.from_numpy(grammar.allowed()).to(logits.device)
    return logits.masked_fill(~allowed, float("-inf"))


def apply_repetition_penalty(logits: torch.Tensor, state: SamplingState) -> None:
    """Divides positive and multiplies negative logits of every token seen, prompt included
    (Keskar et al. 2019, section 4.1)."""
    ids = torch.tensor(sorted(state.seen_token_ids), device=logits.device)
    seen = logits[ids]
    penalty = state.params.repetition_penalty
    logits[ids] = torch.where(seen > 0, seen / penalty, seen * penalty)


def apply_count_penalties(logits: torch.Tensor, state: SamplingState) -> None:
    """Subtracts presence once and frequency per occurrence, over generated tokens only."""
    ids = torch.tensor(list(state.output_counts), device=logits.device)
    counts = torch.tensor(list(state.output_counts.values()), device=logits.device)
    params = state.params
    logits[ids] -= params.presence_penalty + params.frequency_penalty * counts.to(logits.dtype)
