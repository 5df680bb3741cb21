"""The sum is kept normalised, beside the log of its weight, as split-KV attention does."""

import math

import numpy as np


def softmax_statistics(chunks):
    m, s = -math.inf, 0.0
    for x in chunks:
        if len(x) and (top := float(x.max())) > -math.inf:
            if top > m:
                s, m = s * math.exp(m - top), top
            with np.errstate(over="ignore"):
                s += np.exp(x - m).sum().item()
    return (m, s)


def merge(left, right):
    if right[0] > left[0]:
        left, right = right, left
    gap = right[0] - left[0] if right[1] else -math.inf
    factor = math.exp(gap)
    return left[0], left[1] + right[1] * factor, left[2] + right[2] * factor


def online_weighted_sum(score_chunks, value_chunks):
    m, s, mean = -math.inf, 0.0, 0.0
    for x, v in zip(score_chunks, value_chunks, strict=True):
        mean = mean + np.zeros(v.shape[1])
        if not len(x) or np.all(x == -np.inf):
            continue
        top = max(m, x.max())
        with np.errstate(over="ignore"):
            w = np.exp(x - top)
        old = s * math.exp(m - top)
        s = old + w.sum()
        mean = (old / s) * mean + (w / s) @ v
        m = top
    return mean
