# killed_by: test_many_steps — follows 10**18 steps one by one


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
    dp = [0] * ring_size
    dp[0] = 1 % modulus
    for _ in range(steps):
        dp = [(dp[j - 1] + dp[(j + 1) % ring_size]) % modulus for j in range(ring_size)]
    return dp[0]
