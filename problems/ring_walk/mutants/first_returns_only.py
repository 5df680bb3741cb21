# killed_by: test_a_ring_of_ten — a walk that passes the start on its way is not counted


def count_ways(ring_size: int, steps: int) -> int:
    dp = [0] * ring_size
    dp[0] = 1
    for _ in range(steps):
        new = [0] * ring_size
        for j in range(ring_size):
            new[j] = dp[(j - 1) % ring_size] + dp[(j + 1) % ring_size]
        dp = new
        back, dp[0] = dp[0], 0
    return back if steps else 1


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
