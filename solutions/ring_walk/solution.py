"""Rolling DP: O(ring_size * steps) time, O(ring_size) space."""


def count_ways(ring_size: int, steps: int) -> int:
    ways = [0] * ring_size  # ways[j]: walks from node 0 that stand at node j
    ways[0] = 1
    for _ in range(steps):
        # Index -1 is the last node: Python's own wrap-around closes the ring on that side.
        ways = [ways[j - 1] + ways[(j + 1) % ring_size] for j in range(ring_size)]
    return ways[0]


def count_ways_mod(ring_size: int, steps: int, modulus: int) -> int:
    """One step is multiplication by (x + x^-1) modulo x^ring_size - 1; square and multiply."""

    def multiply(a: list[int], b: list[int]) -> list[int]:
        product = [0] * ring_size
        for i, left in enumerate(a):
            if left:
                for j, right in enumerate(b):
                    product[(i + j) % ring_size] += left * right
        return [value % modulus for value in product]

    result = [0] * ring_size
    result[0] = 1 % modulus
    base = [0] * ring_size
    base[1 % ring_size] += 1
    base[-1] += 1
    while steps:
        if steps & 1:
            result = multiply(result, base)
        base = multiply(base, base)
        steps >>= 1
    return result[0]
