"""NumPy with Python's integers in it, which do not overflow."""

import numpy as np


def count_ways(ring_size: int, steps: int) -> int:
    ways = np.zeros(ring_size, dtype=object)
    ways[0] = 1
    for _ in range(steps):
        ways = np.roll(ways, 1) + np.roll(ways, -1)
    return ways[0]


def count_ways_mod(ring_size: int, steps: int, modulus: int) -> int:
    step = np.roll(np.eye(ring_size, dtype=int), 1, axis=0)
    step = (step + step.T).astype(object)
    result = np.eye(ring_size, dtype=int).astype(object)
    for digit in bin(steps)[2:]:
        result = result @ result % modulus
        if digit == "1":
            result = result @ step % modulus
    return result[0, 0] % modulus
