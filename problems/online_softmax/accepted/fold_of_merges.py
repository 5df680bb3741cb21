"""functools.reduce over the states of the chunks; the statistics are a state without values."""

from functools import reduce

import numpy as np


def _of_chunk(scores, values):
    top = np.max(scores, initial=-np.inf)
    with np.errstate(over="ignore"):
        weights = np.exp(scores - (top if np.isfinite(top) else 0.0))
    return top, weights.sum(), weights @ values


def merge(left, right):
    top = np.maximum(left[0], right[0])
    shift = top if np.isfinite(top) else np.float64(0.0)
    with np.errstate(over="ignore"):
        a, b = np.exp(left[0] - shift), np.exp(right[0] - shift)
    return top, a * left[1] + b * right[1], a * left[2] + b * right[2]


def softmax_statistics(chunks):
    nothing = (np.float64(-np.inf), np.float64(0.0), np.zeros(0))
    parts = (_of_chunk(c, np.empty((c.size, 0))) for c in chunks)
    top, total, _ = reduce(merge, parts, nothing)
    return top, total


def online_weighted_sum(score_chunks, value_chunks):
    _, total, weighted = reduce(merge, map(_of_chunk, score_chunks, value_chunks))
    return np.divide(weighted, total, out=np.zeros_like(weighted), where=total > 0)


def stream_softmax(read_chunks, write_chunk):
    top, total = softmax_statistics(read_chunks())
    shift = top if total > 0 else 0.0
    with np.errstate(over="ignore"):
        for chunk in read_chunks():
            write_chunk(np.exp(chunk - shift) / max(total, 1.0))
