# killed_by: test_order_of_ids — ignores u
import numpy as np


def filtered_probabilities(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float
) -> np.ndarray:
    if temperature < 0 or top_k < 0 or not 0 < top_p <= 1:
        raise ValueError("bad sampling parameters")
    size = len(logits)
    logits = logits.astype(np.float64)
    if temperature == 0:
        result = np.zeros(size)
        result[np.argmax(logits)] = 1.0
        return result
    scaled = logits / temperature
    order = np.argsort(-scaled, kind="stable")
    if 0 < top_k < size:
        order = order[:top_k]
    weights = np.exp(scaled[order] - scaled[order[0]])
    probs = weights / weights.sum()
    if top_p < 1:
        before = np.cumsum(probs) - probs
        keep = before < top_p
        order, probs = order[keep], probs[keep]
        probs = probs / probs.sum()
    result = np.zeros(size)
    result[order] = probs
    return result


def sample(logits: np.ndarray, temperature: float, top_k: int, top_p: float, u: float) -> int:
    if not 0 <= u < 1:
        raise ValueError("u must be in [0, 1)")
    probs = filtered_probabilities(logits, temperature, top_k, top_p)
    token = int(np.random.default_rng().choice(len(probs), p=probs))
    return min(token, int(np.flatnonzero(probs)[-1]))


def sample_batch(
    logits: np.ndarray,
    temperature: np.ndarray,
    top_k: np.ndarray,
    top_p: np.ndarray,
    u: np.ndarray,
) -> np.ndarray:
    size = logits.shape[1]
    greedy = temperature == 0
    k = np.where(greedy, 1, np.where(top_k == 0, size, top_k))
    scaled = logits / np.where(greedy, 1.0, temperature)[:, None]
    order = np.argsort(-scaled, axis=1, kind="stable")
    ranked = np.take_along_axis(scaled, order, axis=1)
    weights = np.exp(ranked - ranked[:, :1])
    weights = np.where(np.arange(size)[None, :] < k[:, None], weights, 0.0)
    probs = weights / weights.sum(axis=1, keepdims=True)
    before = np.cumsum(probs, axis=1) - probs
    keep = (before < top_p[:, None]) | (top_p[:, None] == 1)
    probs = np.where(keep, probs, 0.0)
    probs = probs / probs.sum(axis=1, keepdims=True)
    result = np.zeros_like(probs)
    np.put_along_axis(result, order, probs, axis=1)
    token = (np.cumsum(result, axis=1) <= u[:, None]).sum(axis=1)
    last = size - 1 - np.argmax(result[:, ::-1] > 0, axis=1)
    return np.minimum(token, last)
