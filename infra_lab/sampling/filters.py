"""Which tokens may be sampled at all: min_p, top_k and top_p, with one rule for ties.

Filters act after temperature, in the order min_p, top_k, top_p, each on what the one before
left, renormalised. Equal logits are ordered by token id, lower first, so the same tokens
survive whatever the batch. Answers "what exactly do top-k and top-p keep?".
"""

from __future__ import annotations

import math

import torch

from infra_lab.sampling_params import SamplingParams

# Enough candidates for nearly every top_p; the search doubles from here when it is not.
FIRST_CANDIDATES = 256


def keep_candidates(
    logits: torch.Tensor, params: SamplingParams
) -> tuple[torch.Tensor, torch.Tensor]:
    """The surviving tokens of one row, likeliest first.

    Args:
        logits: fp32 [vocab], already divided by temperature.

    Returns:
        token ids [n] and their logits [n], ordered by (logit descending, id ascending), or
        all tokens in id order when nothing filters.
    """
    if params.top_k == 0 and params.top_p == 1.0 and params.min_p == 0.0:
        return torch.arange(len(logits), device=logits.device), logits
    floor = float("-inf")
    if params.min_p > 0.0:
        floor = float(logits.max()) + math.log(params.min_p)
    if params.top_k > 0:
        ids, values = _at_least(floor, *_largest(logits, min(params.top_k, len(logits))))
        total = values.logsumexp(-1)
    elif params.top_p < 1.0:
        total = logits.masked_fill(logits < floor, float("-inf")).logsumexp(-1)
        superset = _nucleus_superset(logits, params.top_p, floor, total)
        ids, values = _at_least(floor, *superset)
    else:
        return _largest(logits, int((logits >= floor).sum()))
    if params.top_p < 1.0:
        # A token stays while the mass before it is below top_p; the first always stays.
        mass = (values - total).exp().cumsum(-1)
        keep = int((mass < params.top_p).sum()) + 1
        ids, values = ids[:keep], values[:keep]
    return ids, values


def _at_least(
    floor: float, ids: torch.Tensor, values: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Cuts tokens, ordered by logit, below `floor`."""
    count = int((values >= floor).sum())
    return ids[:count], values[:count]


def _largest(logits: torch.Tensor, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Exactly `count` tokens by (logit descending, id ascending); topk alone breaks ties as
    it likes."""
    threshold = logits.topk(count).values[-1]
    above = (logits > threshold).nonzero().squeeze(-1)
    tied = (logits == threshold).nonzero().squeeze(-1)[: count - len(above)]
    above_values, order = logits[above].sort(descending=True, stable=True)
    ids = torch.cat((above[order], tied))
    return ids, torch.cat((above_values, logits[tied]))


def _nucleus_superset(
    logits: torch.Tensor, top_p: float, floor: float, total: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Enough of the likeliest tokens to hold `top_p` of the mass exp(total)."""
    count = min(FIRST_CANDIDATES, len(logits))
    while True:
        values = logits.topk(count).values
        # A little more than top_p, so that rounding here cannot cut what is kept later.
        enough = float((values - total).exp().sum()) > top_p + 1e-3
        if enough or count == len(logits) or float(values[-1]) < floor:
            return _largest(logits, count)
        count = min(2 * count, len(logits))
