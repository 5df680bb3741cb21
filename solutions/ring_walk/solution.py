"""Rolling DP: O(ring_size * steps) additions, O(ring_size) numbers kept.

Follow-up: square and multiply with the step as a polynomial, O(ring_size**2 * log(steps)).
"""


def count_ways(ring_size: int, steps: int) -> int:
    ways = [0] * ring_size  # ways[j]: walks from node 0 that stand at node j
    ways[0] = 1
    for _ in range(steps):
        # Index -1 is the last node: Python's own wrap-around closes the ring on that side.
        ways = [ways[j - 1] + ways[(j + 1) % ring_size] for j in range(ring_size)]
    return ways[0]


def count_ways_mod(ring_size: int, steps: int, modulus: int) -> int:
    """A step multiplies by x + x^-1 modulo x^ring_size - 1: all steps are one power of it."""

    def multiply(a: list[int], b: list[int]) -> list[int]:
        product = [0] * ring_size
        for i, left in enumerate(a):
            if left:
                for j, right in enumerate(b):
                    product[(i + j) % ring_size] += left * right
        return [value % modulus for value in product]

    result = [0] * ring_size
    result[0] = 1 % modulus
    power = [0] * ring_size
    power[1 % ring_size] += 1  # on a ring of 1 or 2 nodes both moves meet in one entry
    power[-1] += 1
    while steps:
        if steps & 1:
            result = multiply(result, power)
        power = multiply(power, power)
        steps >>= 1
    return result[0]
