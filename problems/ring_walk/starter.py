"""Walks on a ring. The statement is in README.md; run `infra-lab test ring_walk` to grade."""


def count_ways(ring_size: int, steps: int) -> int:
    """Number of walks of `steps` steps on a ring of `ring_size` nodes that end at their start.

    Every step goes to one of the two neighbours, and the two moves count separately even where
    they lead to the same node.
    """
    raise NotImplementedError


def count_ways_mod(ring_size: int, steps: int, modulus: int) -> int:
    """Follow-up: the same number modulo `modulus`, for up to 10**18 steps."""
    raise NotImplementedError
