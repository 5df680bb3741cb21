"""Selects instead of sorting: O(V + k log k) time, O(V) space, for k tokens that top-k leaves.

A partition finds the k-th highest logit in linear time. Only the tokens above it are ranked, and
of those equal to it the lowest ids fill the places that are left. What a sampler does with a
vocabulary of 128,256 and a top_k of 50.
"""

import numpy as np


def top_k_ids(values: np.ndarray, top_k: int) -> np.ndarray:
    """The ids that top-k leaves, in the order of ids."""
    size = len(values)
    if top_k == 0 or top_k >= size:
        return np.arange(size)
    bound = np.partition(values, size - top_k)[size - top_k]
    above = np.flatnonzero(values > bound)
    equal = np.flatnonzero(values == bound)
    return np.sort(np.concatenate([above, equal[: top_k - len(above)]]))


def filtered_probabilities(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float
) -> np.ndarray:
    if temperature < 0 or top_k < 0 or not 0 < top_p <= 1:
        raise ValueError("temperature >= 0, top_k >= 0 and 0 < top_p <= 1 are wanted")
    values = logits.astype(np.float64)
    result = np.zeros(len(values))
    ids = top_k_ids(values, 1 if temperature == 0 else top_k)
    weights = np.exp((values[ids] - values[ids].max()) / (temperature or 1.0))
    if top_p < 1:
        ranking = np.argsort(-values[ids], kind="stable")
        cumulative = np.cumsum(weights[ranking])
        # As many as it takes to reach top_p of the total: the one that crosses it included.
        count = np.searchsorted(cumulative, top_p * cumulative[-1]) + 1
        ids, weights = ids[ranking[:count]], weights[ranking[:count]]
    result[ids] = weights / weights.sum()
    return result


def sample(logits: np.ndarray, temperature: float, top_k: int, top_p: float, u: float) -> int:
    """Scales u by the total: u < 1 leaves it below the total, however that was rounded."""
    if not 0 <= u < 1:
        raise ValueError("0 <= u < 1 is wanted")
    probabilities = filtered_probabilities(logits, temperature, top_k, top_p)
    ids = np.flatnonzero(probabilities)
    cumulative = np.cumsum(probabilities[ids])
    return int(ids[np.searchsorted(cumulative, u * cumulative[-1], side="right")])


def sample_batch(
    logits: np.ndarray,
    temperature: np.ndarray,
    top_k: np.ndarray,
    top_p: np.ndarray,
    u: np.ndarray,
) -> np.ndarray:
    """Marks the tokens that stay, and takes the first whose cumulative weight passes u.

    Lexsort ranks all rows at once: by row, then by logit down, then by id, for it is stable.
    """
    rows, size = logits.shape
    limit = np.where(temperature == 0, 1, np.where(top_k == 0, size, top_k))
    values = logits.astype(np.float64)
    row_of = np.repeat(np.arange(rows), size)
    ranking = np.lexsort((-values.ravel(), row_of)).reshape(rows, size)
    scale = np.where(temperature == 0, 1.0, temperature)[:, None]
    weights = np.exp((values - values.max(axis=1, keepdims=True)) / scale).ravel()[ranking]
    weights *= np.arange(size) < limit[:, None]
    before = np.cumsum(weights, axis=1) - weights
    share = np.where(top_p == 1, np.inf, top_p)[:, None] * weights.sum(axis=1, keepdims=True)
    flat = np.zeros(rows * size)
    flat[ranking.ravel()] = np.where(before < share, weights, 0.0).ravel()
    cumulative = np.cumsum(flat.reshape(rows, size), axis=1)
    return np.argmax(cumulative > u[:, None] * cumulative[:, -1:], axis=1)
