"""K-th largest value. The statement is in README.md; run `infra-lab test kth_largest` to grade."""


def kth_largest(values: list[int], k: int) -> int:
    """The value that stands at position `k`, counted from 1, when the values are sorted from
    the largest down. Equal values count each for itself.

    Raises ValueError unless 1 <= k <= len(values). `values` is left as it is.
    """
    raise NotImplementedError


def top_k(values: list[int], k: int) -> list[int]:
    """Follow-up: the `k` largest values, from the largest down, equal ones as often as they
    stand in `values`.

    Raises ValueError unless 1 <= k <= len(values). `values` is left as it is.
    """
    raise NotImplementedError
