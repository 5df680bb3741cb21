"""Continuous-batching scheduler. The statement is in README.md; run
`infra-lab test continuous_batching_scheduler` to grade."""


class Scheduler:
    """Plans steps of at most token_budget tokens, in num_blocks KV blocks of block_size tokens."""

    def __init__(self, token_budget: int, num_blocks: int, block_size: int) -> None:
        raise NotImplementedError

    def add_request(self, request_id: str, prompt_len: int, max_tokens: int) -> None:
        """Queue a request of prompt_len >= 1 tokens that will generate max_tokens >= 1 tokens.

        Raises ValueError if a number is less than 1, if an unfinished request has this id, or if
        the request could not run to its end in the whole pool; nothing is queued then.
        """
        raise NotImplementedError

    def schedule(self) -> tuple[dict[str, int], list[str]]:
        """Plan one step, and take it as run.

        Returns:
            The number of tokens that each request computes in this step, each at least 1, and
            the requests that were preempted for it, in the order in which that happened.
        """
        raise NotImplementedError

    def num_free_blocks(self) -> int:
        """The number of blocks that no request holds, after the last step has run."""
        raise NotImplementedError
