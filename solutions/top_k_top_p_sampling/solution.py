"""One stable sort; both filters are prefixes of the ranking. O(V log V) time, O(V) space."""

import numpy as np


def _check(temperature: float, top_k: int, top_p: float) -> None:
    if temperature < 0:
        raise ValueError(f"temperature must be at least 0, not {temperature}")
    if top_k < 0:
        raise ValueError(f"top_k must be at least 0 (0: off), not {top_k}")
    if not 0 < top_p <= 1:
        raise ValueError(f"top_p must be in (0, 1] (1: off), not {top_p}")


def filtered_probabilities(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float
) -> np.ndarray:
    _check(temperature, top_k, top_p)
    probabilities = np.zeros(len(logits))
    if temperature == 0:
        probabilities[np.argmax(logits)] = 1.0  # argmax takes the first of equal ones
        return probabilities
    values = logits.astype(np.float64)
    # Stable on the negated values: equal logits stay in the order of their ids.
    ranking = np.argsort(-values, kind="stable")[: top_k or None]
    # Subtract before dividing: nothing overflows, and the highest becomes exactly 0.
    weights = np.exp((values[ranking] - values[ranking[0]]) / temperature)
    if top_p < 1:
        share = weights / weights.sum()
        before = np.cumsum(share) - share
        weights = np.where(before < top_p, weights, 0.0)
    probabilities[ranking] = weights / weights.sum()
    return probabilities


def sample(logits: np.ndarray, temperature: float, top_k: int, top_p: float, u: float) -> int:
    if not 0 <= u < 1:
        raise ValueError(f"u must be in [0, 1), not {u}")
    probabilities = filtered_probabilities(logits, temperature, top_k, top_p)
    token = np.searchsorted(np.cumsum(probabilities), u, side="right")
    last = np.flatnonzero(probabilities)[-1]  # the cumulative sum may end just below 1
    return int(min(token, last))


def sample_batch(
    logits: np.ndarray,
    temperature: np.ndarray,
    top_k: np.ndarray,
    top_p: np.ndarray,
    u: np.ndarray,
) -> np.ndarray:
    """The same with one axis more. A greedy row is a row with top_k = 1."""
    rows, size = logits.shape
    is_greedy = temperature == 0
    divisor = np.where(is_greedy, 1.0, temperature)[:, None]
    limit = np.where(is_greedy, 1, np.where(top_k == 0, size, top_k))[:, None]

    values = logits.astype(np.float64)
    ranking = np.argsort(-values, axis=1, kind="stable")
    ranked = np.take_along_axis(values, ranking, axis=1)
    weights = np.exp((ranked - ranked[:, :1]) / divisor)
    weights[np.broadcast_to(np.arange(size) >= limit, (rows, size))] = 0.0

    share = weights / weights.sum(axis=1, keepdims=True)
    before = np.cumsum(share, axis=1) - share
    bound = np.where(top_p < 1, top_p, np.inf)[:, None]
    weights[before >= bound] = 0.0

    by_id = np.zeros((rows, size))
    np.put_along_axis(by_id, ranking, weights / weights.sum(axis=1, keepdims=True), axis=1)
    # The number of cumulative sums that u has reached is the index of the first that it has not.
    token = (np.cumsum(by_id, axis=1) <= u[:, None]).sum(axis=1)
    last = size - 1 - np.argmax(by_id[:, ::-1] > 0, axis=1)
    return np.minimum(token, last)
