# killed_by: test_batch_runs_few_lines — loops over the rows
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
    token = int(np.searchsorted(np.cumsum(probs), u, side="right"))
    return min(token, int(np.flatnonzero(probs)[-1]))


def sample_batch(
    logits: np.ndarray,
    temperature: np.ndarray,
    top_k: np.ndarray,
    top_p: np.ndarray,
    u: np.ndarray,
) -> np.ndarray:
    return np.array(
        [
            sample(logits[i], float(temperature[i]), int(top_k[i]), float(top_p[i]), float(u[i]))
            for i in range(len(logits))
        ]
    )
