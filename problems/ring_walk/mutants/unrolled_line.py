# killed_by: test_work — walks on a line as long as the steps: work grows with their square


def count_ways(ring_size: int, steps: int) -> int:
    at = {0: 1}
    for _ in range(steps):
        following = {}
        for place, ways in at.items():
            following[place - 1] = following.get(place - 1, 0) + ways
            following[place + 1] = following.get(place + 1, 0) + ways
        at = following
    return sum(ways for place, ways in at.items() if place % ring_size == 0)


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
