# killed_by: test_exact_integers — a double has 53 bits: the sum of cosines rounds wrongly
import math


def count_ways(ring_size: int, steps: int) -> int:
    total = sum(math.cos(2 * math.pi * k / ring_size) ** steps for k in range(ring_size))
    return round(2**steps * total / ring_size)


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
