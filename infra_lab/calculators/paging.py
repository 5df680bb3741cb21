"""Memory that a request reserves and does not use: contiguous slots against pages.

Answers "where do 20 to 38 % utilization come from, and what is left to waste in a paged cache?":
a reservation of max_model_len against less than one block. The table that maps blocks is four
bytes each, a millionth of what it maps.
"""

from __future__ import annotations

from collections.abc import Sequence

from infra_lab.calculators.checks import require_count, require_lengths
from infra_lab.calculators.kv_cache import num_blocks
from infra_lab.errors import UsageError


def contiguous_utilization(used: Sequence[int], reserved: int) -> float:
    """Used over reserved tokens, each request holding `reserved` slots from first to last."""
    require_count("reserved", reserved)
    require_lengths(used)
    if max(used) > reserved:
        raise UsageError(f"a request of {max(used)} tokens does not fit into {reserved} slots")
    return sum(used) / (reserved * len(used))


def last_block_waste(num_tokens: int, block_size: int) -> int:
    """Slots of the last block that hold nothing: 0 to block_size - 1."""
    return num_blocks(num_tokens, block_size) * block_size - num_tokens


def mean_last_block_waste(block_size: int) -> float:
    """(block_size - 1) / 2 slots, where every length modulo block_size is as likely."""
    require_count("block_size", block_size)
    return (block_size - 1) / 2


def paged_utilization(used: Sequence[int], block_size: int) -> float:
    """Used over allocated slots; only last blocks have empty ones."""
    require_lengths(used)
    allocated = sum(num_blocks(tokens, block_size) * block_size for tokens in used)
    return sum(used) / allocated


def block_table_bytes(num_tokens: int, block_size: int, entry_bytes: int = 4) -> int:
    """The map from a request's blocks to the pool's, an int32 a block."""
    require_count("entry_bytes", entry_bytes)
    return num_blocks(num_tokens, block_size) * entry_bytes


def tokens_fill_blocks(num_tokens: int, block_size: int) -> int:
    """Whole blocks that so many tokens fill: all that a prefix cache can share."""
    require_count("num_tokens", num_tokens, 0)
    require_count("block_size", block_size)
    return num_tokens // block_size
