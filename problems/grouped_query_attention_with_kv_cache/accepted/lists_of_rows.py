"""Python lists of vectors, one per KV head, and one query after another."""

import math

import numpy as np


def rotate_one(vector, position):
    half = len(vector) // 2
    result = np.empty_like(vector)
    for i in range(half):
        angle = position * 10000.0 ** (-i / half)
        a, b = vector[i], vector[i + half]
        result[i] = a * math.cos(angle) - b * math.sin(angle)
        result[i + half] = b * math.cos(angle) + a * math.sin(angle)
    return result


class CachedAttention:
    def __init__(self, w_q, w_k, w_v, w_o, num_heads, num_kv_heads, max_length):
        if num_kv_heads <= 0 or num_heads <= 0:
            raise ValueError("heads must be positive")
        self.group, rest = divmod(num_heads, num_kv_heads)
        if rest:
            raise ValueError("uneven groups")
        self.w_q, self.w_k, self.w_v, self.w_o = (np.array(w) for w in (w_q, w_k, w_v, w_o))
        self.num_heads = num_heads
        self.num_kv_heads = num_kv_heads
        self.limit = max_length
        self.keys = [[] for _ in range(num_kv_heads)]
        self.values = [[] for _ in range(num_kv_heads)]

    def length(self):
        return len(self.keys[0])

    def truncate(self, length):
        if not 0 <= length <= self.length():
            raise ValueError(length)
        for rows in self.keys + self.values:
            del rows[length:]

    def forward(self, x):
        if self.length() + len(x) > self.limit:
            raise ValueError("too long")
        outputs = [self._one(token) for token in x]
        return np.array(outputs).reshape(len(x), self.w_o.shape[1])

    def _one(self, token):
        position = self.length()
        keys = np.split(token @ self.w_k, self.num_kv_heads)
        values = np.split(token @ self.w_v, self.num_kv_heads)
        for kv_head in range(self.num_kv_heads):
            self.keys[kv_head].append(rotate_one(keys[kv_head], position))
            self.values[kv_head].append(values[kv_head])
        heads = []
        for head, query in enumerate(np.split(token @ self.w_q, self.num_heads)):
            query = rotate_one(query, position) / math.sqrt(len(query))
            keys, values = self.keys[head // self.group], self.values[head // self.group]
            scores = [float(query @ key) for key in keys]
            top = max(scores)
            weights = [math.exp(score - top) for score in scores]
            heads.append(sum(w * v for w, v in zip(weights, values, strict=True)) / sum(weights))
        return np.concatenate(heads) @ self.w_o
