"""A column of ones beside the values: total and weighted sum are one vector, rescaled together."""

import numpy as np


class _Running:
    def __init__(self):
        self.maximum = -np.inf
        self.sums = None

    def add(self, scores, columns):
        if self.sums is None:
            self.sums = np.zeros(columns.shape[1])
        seen = scores[scores > -np.inf]
        if seen.size == 0:
            return
        columns = columns[scores > -np.inf]
        top = max(self.maximum, seen.max())
        if top > self.maximum:
            self.sums = self.sums * np.exp(max(self.maximum - top, -1e4))
            self.maximum = top
        self.sums = self.sums + np.exp(np.maximum(seen - top, -1e4)) @ columns


def softmax_statistics(chunks):
    running = _Running()
    for chunk in chunks:
        running.add(chunk, np.ones((len(chunk), 1)))
    if running.sums is None:
        return -np.inf, 0.0
    return float(running.maximum), float(running.sums[0])


def merge(left, right):
    running = _Running()
    for maximum, total, weighted in (left, right):
        running.add(np.array([maximum]), np.append(total, weighted)[None, :])
    return float(running.maximum), float(running.sums[0]), running.sums[1:]


def online_weighted_sum(score_chunks, value_chunks):
    running = _Running()
    for scores, values in zip(score_chunks, value_chunks, strict=True):
        running.add(scores, np.column_stack([np.ones(len(values)), values]))
    total, weighted = running.sums[0], running.sums[1:]
    return weighted / total if total > 0 else weighted
