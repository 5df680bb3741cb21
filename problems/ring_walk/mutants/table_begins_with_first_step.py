# killed_by: test_no_steps — row 0 is the first step: no row is left for no steps


def count_ways(ring_size: int, steps: int) -> int:
    dp = [[0] * ring_size for _ in range(steps)]
    if steps > 0:
        dp[0][1 % ring_size] += 1
        dp[0][-1] += 1
    for i in range(1, steps):
        for j in range(ring_size):
            dp[i][j] = dp[i - 1][j - 1] + dp[i - 1][(j + 1) % ring_size]
    return dp[steps - 1][0]


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
