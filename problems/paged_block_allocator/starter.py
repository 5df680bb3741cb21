"""Paged block allocator. The statement is in README.md; run
`infra-lab test paged_block_allocator` to grade."""


class OutOfBlocksError(Exception):
    """Raised where a call needs more free blocks than there are; such a call changes nothing."""


class BlockAllocator:
    """Gives the blocks 0 to num_blocks - 1, of block_size tokens each, to sequences."""

    def __init__(self, num_blocks: int, block_size: int) -> None:
        raise NotImplementedError

    def allocate(self, seq_id: str, num_tokens: int) -> list[int]:
        """Give a new sequence blocks for its first num_tokens tokens; returns its block table.

        Raises ValueError if seq_id is in use or num_tokens < 0, else OutOfBlocksError.
        """
        raise NotImplementedError

    def append(self, seq_id: str) -> tuple[int, int, int | None]:
        """Make room for one more token of the sequence; returns (block, offset, copied_from).

        The token goes to slot `offset` of `block`. Unless copied_from is None, the caller first
        copies what block copied_from holds into `block`.

        Raises KeyError if seq_id is unknown, OutOfBlocksError if a block is
        needed and none is free.
        """
        raise NotImplementedError

    def fork(self, parent_id: str, child_id: str) -> None:
        """Make a new sequence with the parent's tokens, in the same blocks.

        Raises KeyError if parent_id is unknown, ValueError if child_id is in use.
        """
        raise NotImplementedError

    def free(self, seq_id: str) -> None:
        """End a sequence; a block that no other sequence holds becomes free.

        Raises KeyError if seq_id is unknown.
        """
        raise NotImplementedError

    def block_table(self, seq_id: str) -> list[int]:
        """The sequence's blocks, in the order of its tokens, as a list of the caller's own.

        Raises KeyError if seq_id is unknown.
        """
        raise NotImplementedError

    def num_free_blocks(self) -> int:
        """The number of blocks that no sequence holds."""
        raise NotImplementedError
