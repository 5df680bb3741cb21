"""Top down, with the cache inside the call."""

from functools import cache


def count_ways(ring_size, steps):
    @cache
    def from_node(node, left):
        if left == 0:
            return int(node == 0)
        return from_node((node + 1) % ring_size, left - 1) + from_node(
            (node - 1) % ring_size, left - 1
        )

    return from_node(0, steps)
