# killed_by: test_modulo — always takes the remainder by 10**9 + 7


def count_ways(ring_size: int, steps: int) -> int:
    dp = [0] * ring_size
    dp[0] = 1
    for _ in range(steps):
        new = [0] * ring_size
        for j in range(ring_size):
            new[j] = dp[(j - 1) % ring_size] + dp[(j + 1) % ring_size]
        dp = new
    return dp[0]


def count_ways_mod(ring_size: int, steps: int, modulus: int) -> int:
    def multiply(a, b):
        c = [0] * ring_size
        for i in range(ring_size):
            for j in range(ring_size):
                k = (i + j) % ring_size
                c[k] = (c[k] + a[i] * b[j]) % (10**9 + 7)
        return c

    result = [0] * ring_size
    result[0] = 1 % (10**9 + 7)
    base = [0] * ring_size
    base[1 % ring_size] += 1
    base[(ring_size - 1) % ring_size] += 1
    while steps > 0:
        if steps % 2 == 1:
            result = multiply(result, base)
        base = multiply(base, base)
        steps //= 2
    return result[0]
