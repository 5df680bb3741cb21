"""The whole table, one row a step, and names of the candidate's own."""


def count_ways(ring_size: int, steps: int) -> int:
    table = [[0 for _ in range(ring_size)] for _ in range(steps + 1)]
    table[0][0] = 1
    for step in range(1, steps + 1):
        for node in range(ring_size):
            left = node - 1
            if left < 0:
                left = ring_size - 1
            right = node + 1
            if right == ring_size:
                right = 0
            table[step][node] = table[step - 1][left] + table[step - 1][right]
    return table[steps][0]


def count_ways_mod(ring_size: int, steps: int, modulus: int) -> int:
    raise NotImplementedError
