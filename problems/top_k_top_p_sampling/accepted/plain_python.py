"""Lists and math only; NumPy for the result alone."""

import math
from itertools import accumulate

import numpy as np


def filtered_probabilities(logits, temperature, top_k, top_p):
    if not temperature >= 0:
        raise ValueError(f"temperature {temperature} < 0")
    if top_k < 0:
        raise ValueError(f"top_k {top_k} < 0")
    if top_p <= 0 or top_p > 1:
        raise ValueError(f"top_p {top_p} outside (0, 1]")
    values = [float(value) for value in logits]
    ranking = sorted(range(len(values)), key=lambda token: (-values[token], token))
    if temperature == 0:
        ranking, temperature = ranking[:1], 1.0
    elif top_k > 0:
        ranking = ranking[:top_k]
    highest = values[ranking[0]]
    weights = [math.exp((values[token] - highest) / temperature) for token in ranking]
    if top_p < 1:
        total = math.fsum(weights)
        kept, reached = [], 0.0
        for weight in weights:
            if reached >= top_p * total:
                break
            kept.append(weight)
            reached += weight
        weights = kept
    total = math.fsum(weights)
    result = [0.0] * len(values)
    for token, weight in zip(ranking, weights, strict=False):
        result[token] = weight / total
    return np.array(result)


def sample(logits, temperature, top_k, top_p, u):
    if not (0.0 <= u < 1.0):
        raise ValueError(f"u {u} outside [0, 1)")
    last = None
    probabilities = filtered_probabilities(logits, temperature, top_k, top_p).tolist()
    for token, cumulative in enumerate(accumulate(probabilities)):
        if probabilities[token] > 0:
            last = token
            if cumulative > u:
                break
    return last
