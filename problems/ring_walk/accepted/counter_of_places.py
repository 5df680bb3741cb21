"""The places that can be reached, and how often, in a Counter."""

from collections import Counter


def count_ways(ring_size: int, steps: int) -> int:
    places = Counter({0: 1})
    for _ in range(steps):
        following: Counter[int] = Counter()
        for place, ways in places.items():
            following[(place + 1) % ring_size] += ways
            following[(place - 1) % ring_size] += ways
        places = following
    return places[0]


def count_ways_mod(ring_size: int, steps: int, modulus: int) -> int:
    """Doubling: the walks of 2n steps are the walks of n steps twice over."""
    if steps == 0:
        return 1 % modulus

    def after(n: int) -> Counter[int]:
        if n == 0:
            return Counter({0: 1})
        half = after(n // 2)
        whole: Counter[int] = Counter()
        for p, a in half.items():
            for q, b in half.items():
                whole[(p + q) % ring_size] += a * b
        if n % 2:
            moved: Counter[int] = Counter()
            for p, a in whole.items():
                moved[(p + 1) % ring_size] += a
                moved[(p - 1) % ring_size] += a
            whole = moved
        return Counter({p: a % modulus for p, a in whole.items()})

    return after(steps)[0] % modulus
