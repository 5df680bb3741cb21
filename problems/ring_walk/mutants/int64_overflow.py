# killed_by: test_exact_integers — 64-bit integers wrap around from 63 steps or so
import numpy as np


def count_ways(ring_size: int, steps: int) -> int:
    dp = np.zeros(ring_size, dtype=np.int64)
    dp[0] = 1
    for _ in range(steps):
        dp = np.roll(dp, 1) + np.roll(dp, -1)
    return int(dp[0])


def count_ways_mod(ring_size: int, steps: int, modulus: int) -> int:
    def multiply(a, b):
        c = [0] * ring_size
        for i in range(ring_size):
            for j in range(ring_size):
                k = (i + j) % ring_size
                c[k] = (c[k] + a[i] * b[j]) % modulus
        return c

    result = [0] * ring_size
    result[0] = 1 % modulus
    base = [0] * ring_size
    base[1 % ring_size] += 1
    base[(ring_size - 1) % ring_size] += 1
    while steps > 0:
        if steps % 2 == 1:
            result = multiply(result, base)
        base = multiply(base, base)
        steps //= 2
    return result[0]
