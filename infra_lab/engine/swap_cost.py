"""Whether a preempted request's keys and values are worth keeping.

Answers "swap or recompute?". Both give the same tokens; they differ in what they wait for: swapping
for the bytes of the blocks, out and in again, over the bandwidth between the pools; recomputing for
the tokens over the speed of prefill. Bytes and tokens both grow with the length, so for one model
on one machine one of them nearly always wins, but for what need not move: blocks that others hold,
or that were swapped out before.
"""

from __future__ import annotations

from dataclasses import dataclass

from infra_lab.cache.swap_space import SwapWork


@dataclass(slots=True)
class SwapCost:
    """swap_s = (blocks_out + blocks_in) * bytes_per_block / bytes_per_s
    recompute_s = num_tokens / tokens_per_s

    Attributes:
        mode: "auto" takes the lesser, "swap" and "recompute" that one.
        bytes_per_s: between the primary pool and the swap space.
        tokens_per_s: of prefill; None measures the engine's own steps, and swaps until it has seen
            one with prompt tokens.
    """

    bytes_per_block: int
    bytes_per_s: float
    tokens_per_s: float | None = None
    mode: str = "auto"
    _seen_tokens: int = 0
    _seen_seconds: float = 0.0

    def note_prefill(self, num_tokens: int, seconds: float) -> None:
        """Take in a step that computed prompt tokens."""
        self._seen_tokens += num_tokens
        self._seen_seconds += seconds

    def swap_s(self, work: SwapWork) -> float:
        return (work.blocks_out + work.blocks_in) * self.bytes_per_block / self.bytes_per_s

    def recompute_s(self, work: SwapWork) -> float | None:
        """None where the speed of prefill is not known yet."""
        if self.tokens_per_s is not None:
            return work.num_tokens / self.tokens_per_s
        if self._seen_tokens == 0:
            return None
        return work.num_tokens * self._seen_seconds / self._seen_tokens

    def prefers_swap(self, work: SwapWork) -> bool:
        if self.mode != "auto":
            return self.mode == "swap"
        recompute_s = self.recompute_s(work)
        return recompute_s is None or self.swap_s(work) < recompute_s
