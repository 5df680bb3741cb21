# killed_by: test_work — multiplies by the whole matrix at every step: ring_size**2 a step


def count_ways(ring_size: int, steps: int) -> int:
    step = [[0] * ring_size for _ in range(ring_size)]
    for i in range(ring_size):
        step[i][(i + 1) % ring_size] += 1
        step[i][(i - 1) % ring_size] += 1
    row = [0] * ring_size
    row[0] = 1
    for _ in range(steps):
        new = [0] * ring_size
        for i in range(ring_size):
            for j in range(ring_size):
                new[j] += row[i] * step[i][j]
        row = new
    return row[0]


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
