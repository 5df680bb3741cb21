"""The engine's own rejection sampler on drafts that are accepted with a known probability.

A draft distribution q = alpha p + (1 - alpha) r, with r where p is nothing, overlaps with p by
exactly alpha (Leviathan et al. 2023, arXiv 2211.17192, theorem 3.5). torch is imported when it is
used.
"""

from __future__ import annotations

from infra_lab.sampling_params import SamplingParams
from infra_lab.step import Draft, NewRequest

_SUPPORT = 4  # tokens of p, and as many of r


def simulated_tokens_per_step(
    acceptance: float, num_drafts: int, num_trials: int, seed: int
) -> float:
    """Tokens that a verification of so many drafts gives, in the mean of trials."""
    import torch

    from infra_lab.sampling.rejection_sampler import sample_and_verify
    from infra_lab.sampling.request_state import SamplingState

    generator = torch.Generator().manual_seed(seed)
    target = torch.zeros(2 * _SUPPORT, dtype=torch.float64)
    target[:_SUPPORT] = torch.rand(_SUPPORT, generator=generator, dtype=torch.float64) + 0.1
    target /= target.sum()
    elsewhere = torch.zeros_like(target)
    elsewhere[_SUPPORT:] = 1 / _SUPPORT
    proposal = acceptance * target + (1 - acceptance) * elsewhere
    drawn = torch.multinomial(
        proposal, num_trials * num_drafts, replacement=True, generator=generator
    ).view(num_trials, num_drafts)
    rows = proposal.expand(num_drafts, -1)
    drafts = [Draft(one, rows) for one in drawn.tolist()]
    params = SamplingParams(temperature=1.0, max_tokens=num_drafts + 1)
    states = [
        SamplingState(NewRequest(str(index), [0], params, seed * num_trials + index))
        for index in range(num_trials)
    ]
    logits = target.clamp_min(1e-30).log().float()
    verified = sample_and_verify(
        logits.expand(num_trials * (num_drafts + 1), -1).contiguous(), states, drafts
    )
    return sum(map(len, verified)) / num_trials
