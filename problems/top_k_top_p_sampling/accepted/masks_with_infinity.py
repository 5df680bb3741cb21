"""In the style of logits processors: each filter sets the logits it removes to -inf, and a
log-softmax follows."""

import numpy as np


def log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - np.max(logits)
    return shifted - np.log(np.sum(np.exp(shifted)))


def temperature_processor(logits: np.ndarray, temperature: float) -> np.ndarray:
    return logits / temperature


def top_k_processor(logits: np.ndarray, top_k: int) -> np.ndarray:
    if top_k == 0:
        return logits
    removed = np.argsort(-logits, kind="stable")[top_k:]
    logits = logits.copy()
    logits[removed] = -np.inf
    return logits


def top_p_processor(logits: np.ndarray, top_p: float) -> np.ndarray:
    if top_p == 1.0:
        return logits
    ranking = np.lexsort((np.arange(logits.size), -logits))
    cumulative = np.exp(log_softmax(logits))[ranking].cumsum()
    removed = np.roll(cumulative >= top_p, 1)
    removed[0] = False
    logits = logits.copy()
    logits[ranking[removed]] = -np.inf
    return logits


def filtered_probabilities(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float
) -> np.ndarray:
    if temperature < 0.0:
        raise ValueError("temperature")
    if top_k < 0:
        raise ValueError("top_k")
    if top_p <= 0.0 or top_p > 1.0:
        raise ValueError("top_p")
    processed = np.array(logits, dtype=np.float64)
    if temperature == 0.0:
        return (np.arange(processed.size) == processed.argmax()).astype(np.float64)
    processed = temperature_processor(processed, temperature)
    processed = top_k_processor(processed, top_k)
    processed = top_p_processor(processed, top_p)
    return np.exp(log_softmax(processed))


def sample(logits: np.ndarray, temperature: float, top_k: int, top_p: float, u: float) -> np.int64:
    if u < 0.0 or u >= 1.0:
        raise ValueError("u")
    probabilities = filtered_probabilities(logits, temperature, top_k, top_p)
    (candidates,) = probabilities.nonzero()
    reached = np.cumsum(probabilities[candidates]) > u
    return candidates[reached.argmax()] if reached.any() else candidates[-1]
