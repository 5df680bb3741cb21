"""One score at a time, in plain Python."""

import math


def softmax_statistics(chunks):
    best, total = float("-inf"), 0.0
    for chunk in chunks:
        for score in chunk.tolist():
            if score == float("-inf"):
                continue
            if score > best:
                total = total * math.exp(best - score) + 1.0
                best = score
            else:
                total += math.exp(score - best)
    return best, total


def merge(left, right):
    (m1, s1, w1), (m2, s2, w2) = left, right
    if m1 == float("-inf"):
        return m2, s2, w2.copy()
    if m2 == float("-inf"):
        return m1, s1, w1.copy()
    if m1 >= m2:
        f = math.exp(m2 - m1)
        return m1, s1 + f * s2, w1 + f * w2
    f = math.exp(m1 - m2)
    return m2, f * s1 + s2, f * w1 + w2


def online_weighted_sum(score_chunks, value_chunks):
    best, total, acc = float("-inf"), 0.0, None
    for chunk, rows in zip(score_chunks, value_chunks, strict=True):
        if acc is None:
            acc = 0.0 * rows.sum(axis=0)
        for score, row in zip(chunk.tolist(), rows, strict=True):
            if score == float("-inf"):
                continue
            if score > best:
                factor = math.exp(best - score)
                total, acc, best = total * factor, acc * factor, score
            weight = math.exp(score - best)
            total += weight
            acc = acc + weight * row
    return acc if total == 0.0 else acc / total
