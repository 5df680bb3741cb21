"""Sliding window maximum. The statement is in README.md; run
`infra-lab test sliding_window_maximum` to grade."""


def window_maximum(values: list[int], window: int) -> list[int]:
    """The maximum of each run of `window` consecutive values, from left to right.

    Raises ValueError unless 1 <= window <= len(values). `values` is left as it is.
    """
    raise NotImplementedError


class StreamingMaximum:
    """Follow-up: the maximum of the last `window` values of a stream of any length."""

    def __init__(self, window: int) -> None:
        """Raises ValueError unless window >= 1."""
        raise NotImplementedError

    def push(self, value: int) -> int:
        """Takes the next value; returns the largest of the last `window` values, or of all of
        them while there are fewer."""
        raise NotImplementedError
