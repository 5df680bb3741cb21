"""Pops tokens off a heap only until top_k or top_p is reached, and draws without a table."""

import heapq

import numpy as np


class _Filter:
    def __init__(self, temperature, top_k, top_p):
        if temperature < 0 or top_k < 0 or not 0 < top_p <= 1:
            raise ValueError("parameters out of range")
        self.is_greedy = temperature == 0
        self.temperature = temperature or 1.0
        self.top_k = 1 if self.is_greedy else top_k
        self.top_p = 1.0 if self.is_greedy else top_p

    def kept(self, logits):
        """token id -> probability of the tokens that stay."""
        values = np.asarray(logits, dtype=np.float64)
        heap = [(-value, token) for token, value in enumerate(values.tolist())]
        heapq.heapify(heap)
        count = min(self.top_k or len(heap), len(heap))
        ranking = [heapq.heappop(heap) for _ in range(count)]
        lowest = ranking[0][0]
        mass = {token: np.exp((lowest - value) / self.temperature) for value, token in ranking}
        total = sum(mass.values())
        if self.top_p < 1:
            before = 0.0
            for _, token in ranking:
                share = mass[token] / total
                if before >= self.top_p:
                    del mass[token]
                before += share
            total = sum(mass.values())
        return {token: weight / total for token, weight in mass.items()}


def filtered_probabilities(
    logits: np.ndarray, temperature: float, top_k: int, top_p: float
) -> np.ndarray:
    kept = _Filter(temperature, top_k, top_p).kept(logits)
    return np.array([kept.get(token, 0.0) for token in range(len(logits))], dtype=np.float64)


def sample(logits: np.ndarray, temperature: float, top_k: int, top_p: float, u: float) -> int:
    if not 0 <= u < 1:
        raise ValueError("u out of range")
    kept = _Filter(temperature, top_k, top_p).kept(logits)
    possible = sorted(token for token in kept if kept[token] > 0)
    for token in possible:
        u -= kept[token]
        if u < 0:
            return token
    return possible[-1]
