"""Sum of binomials, each from the one before it."""


def count_ways(ring_size: int, steps: int) -> int:
    total = 0
    choose = 1
    for ups in range(steps + 1):
        if (2 * ups - steps) % ring_size == 0:
            total += choose
        choose = choose * (steps - ups) // (ups + 1)
    return total


def count_ways_mod(ring_size: int, steps: int, modulus: int) -> int:
    """The adjacency matrix to the power of steps, written out."""
    n = ring_size

    def matmul(a, b):
        c = [[0] * n for _ in range(n)]
        for i in range(n):
            for k in range(n):
                left = a[i][k]
                if left == 0:
                    continue
                for j in range(n):
                    c[i][j] = (c[i][j] + left * b[k][j]) % modulus
        return c

    base = [[0] * n for _ in range(n)]
    for i in range(n):
        base[i][(i + 1) % n] += 1
        base[i][(i - 1) % n] += 1
    answer = [[int(i == j) for j in range(n)] for i in range(n)]
    while steps:
        if steps & 1:
            answer = matmul(answer, base)
        base = matmul(base, base)
        steps >>= 1
    return answer[0][0] % modulus
