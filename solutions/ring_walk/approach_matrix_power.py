"""The adjacency matrix A of the ring: the answer is the entry (0, 0) of A^steps.

Step by step, a vector times A costs two additions a node: O(ring_size * steps). By squaring,
A^steps costs O(ring_size**3 * log(steps)): better only once steps exceeds ring_size**2 or so.
It needs nothing of the ring's symmetry, so it works for any graph.
"""

Matrix = list[list[int]]


def count_ways(ring_size: int, steps: int) -> int:
    neighbours = [((node - 1) % ring_size, (node + 1) % ring_size) for node in range(ring_size)]
    row = [1] + [0] * (ring_size - 1)
    for _ in range(steps):
        row = [row[left] + row[right] for left, right in neighbours]
    return row[0]


def count_ways_mod(ring_size: int, steps: int, modulus: int) -> int:
    power = _adjacency(ring_size)
    row = [1 % modulus] + [0] * (ring_size - 1)
    while steps:
        if steps & 1:
            row = _multiply([row], power, modulus)[0]
        power = _multiply(power, power, modulus)
        steps >>= 1
    return row[0]


def _adjacency(ring_size: int) -> Matrix:
    matrix = [[0] * ring_size for _ in range(ring_size)]
    for node in range(ring_size):
        # += and not =: on a ring of 1 or 2 nodes both moves lead to the same node.
        matrix[node][(node + 1) % ring_size] += 1
        matrix[node][(node - 1) % ring_size] += 1
    return matrix


def _multiply(left: Matrix, right: Matrix, modulus: int) -> Matrix:
    columns = list(zip(*right, strict=True))
    return [
        [sum(a * b for a, b in zip(row, column, strict=True)) % modulus for column in columns]
        for row in left
    ]
