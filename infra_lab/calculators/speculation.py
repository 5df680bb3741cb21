"""Speculative decoding by its formulas: tokens a step, speed-up, the best number of drafts.

Answers "alpha 0.8, 5 drafts: how much faster?": (1 - 0.8^6) / (1 - 0.8) = 3.69 tokens a step, and
3.69 / (5c + 1) times the speed with a draft model of cost c. No formula that passes k + 1 can be
right: a step cannot yield more than its drafts and one. Source: Leviathan, Kalman, Matias 2023,
arXiv 2211.17192; acceptance is taken as independent of position, as the paper takes it.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, expm1, isclose, log

from infra_lab.calculators.checks import (
    require_count,
    require_not_negative,
    require_positive,
    require_share,
)
from infra_lab.errors import UsageError


def acceptance_rate(target: Sequence[float], draft: Sequence[float]) -> float:
    """alpha = sum over tokens of min(p, q) = 1 - the distance in total variation (theorem 3.5)."""
    if len(target) != len(draft):
        raise UsageError(
            f"distributions over {len(target)} and {len(draft)} tokens: one vocabulary is needed"
        )
    for name, values in (("target", target), ("draft", draft)):
        if any(value < 0 for value in values) or not isclose(sum(values), 1, abs_tol=1e-6):
            raise UsageError(f"the {name} distribution must be of shares that add up to 1")
    return sum(min(p, q) for p, q in zip(target, draft, strict=True))


def expected_tokens(acceptance: float, num_drafts: int) -> float:
    """Tokens of one step, the corrected or bonus token included (equation 1).

    (1 - alpha^(k + 1)) / (1 - alpha), which is 1 + alpha + ... + alpha^k: 1 at alpha 0, k + 1 at 1.
    """
    require_share("acceptance", acceptance)
    require_count("num_drafts", num_drafts, 0)
    if acceptance in (0, 1):
        return float(1 + acceptance * num_drafts)
    # 1 - alpha^(k + 1) by expm1: near alpha = 1 the difference itself would lose its digits.
    return expm1((num_drafts + 1) * log(acceptance)) / expm1(log(acceptance))


def speedup(acceptance: float, num_drafts: int, draft_cost: float, verify_cost: float = 1) -> float:
    """Tokens a step over what the step costs, in steps of the target alone (theorem 3.8).

    E / (k c + 1). `draft_cost` c is one run of the draft model over one of the target;
    `verify_cost` is a step of k + 1 tokens over one of a single token: 1 while memory is the
    bound, as the theorem has it, and k + 1 at worst.
    """
    require_not_negative("draft_cost", draft_cost)
    require_positive("verify_cost", verify_cost)
    return expected_tokens(acceptance, num_drafts) / (num_drafts * draft_cost + verify_cost)


def best_num_drafts(
    acceptance: float, draft_cost: float, most: int = 32, verify_cost: float = 1
) -> int:
    """The k up to `most` with the largest speed-up; 0 where drafting does not pay.

    At a `verify_cost` of 1 it pays for some k exactly where alpha > c (corollary 3.9).
    """
    require_count("most", most, 0)
    return max(
        range(most + 1),
        key=lambda k: speedup(acceptance, k, draft_cost, verify_cost if k else 1),
    )


def draft_cost_for(acceptance: float, num_drafts: int, wanted_speedup: float) -> float:
    """The cost c at which k drafts give exactly that speed-up: (E / S - 1) / k."""
    require_count("num_drafts", num_drafts)
    require_positive("wanted_speedup", wanted_speedup)
    cost = (expected_tokens(acceptance, num_drafts) / wanted_speedup - 1) / num_drafts
    if cost < 0:
        raise UsageError(
            f"a speed-up of {wanted_speedup} is out of reach: {num_drafts} drafts at acceptance "
            f"{acceptance} give {expected_tokens(acceptance, num_drafts):.2f} even if they are free"
        )
    return cost


def arithmetic_factor(acceptance: float, num_drafts: int, draft_flops: float) -> float:
    """FLOPs a token over those without speculation (theorem 3.11): (k c' + k + 1) / E.

    `draft_flops` c' is the draft model's FLOPs a token over the target's. Above 1: speculation
    spends arithmetic to save bytes, which is why a full batch gains nothing from it.
    """
    require_not_negative("draft_flops", draft_flops)
    return (num_drafts * draft_flops + num_drafts + 1) / expected_tokens(acceptance, num_drafts)


def target_steps(num_tokens: int, acceptance: float, num_drafts: int) -> int:
    """Steps of the target model for so many tokens, in the mean, rounded up."""
    require_count("num_tokens", num_tokens, 0)
    return ceil(num_tokens / expected_tokens(acceptance, num_drafts))
