"""The swap space's tensors, and the copies between them and the KV cache.

Answers "can a swap hide behind the computation?". On a GPU the host tensors are pinned, and copies
run on a stream of their own: the step waits for what comes in, and for what goes out only before it
writes a block that is still being read. On a CPU both pools are memory and a copy is a copy.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import torch

from infra_lab.attention.backend import LayerKVCache
from infra_lab.attention.kv_cache import movable
from infra_lab.native import memory
from infra_lab.step import BlockCopy, SchedulerOutput

MEASURED_BLOCKS, MEASURED_ROUNDS = 16, 4


class HostKVCache:
    """For every tensor of the KV cache one of the same shape in host memory, but for the number of
    blocks.

    Args:
        num_blocks: of the host tensors, the unused block 0 included.
    """

    def __init__(self, caches: Sequence[LayerKVCache], num_blocks: int) -> None:
        self._tensors = [movable(tensor) for cache in caches for tensor in cache.tensors]
        self._device = self._tensors[0].device
        self._host = [self._host_twin(tensor, num_blocks) for tensor in self._tensors]
        self._num_measured = min(MEASURED_BLOCKS, num_blocks, len(self._tensors[0]))

    @property
    def bytes_per_block(self) -> int:
        return sum(tensor[0].nbytes for tensor in self._tensors)

    def swap_out(self, copies: Sequence[BlockCopy]) -> None:
        """Copies blocks of the KV cache to blocks here."""
        if copies:
            self._copy(copies, self._tensors, self._host)

    def swap_in(self, copies: Sequence[BlockCopy]) -> None:
        """Copies blocks here to blocks of the KV cache."""
        if copies:
            self._copy(copies, self._host, self._tensors)

    def before_write(self, block_ids: Iterable[int]) -> None:
        """To be called before the KV cache's blocks are written: ends what still reads them."""

    def before_read(self) -> None:
        """To be called before the KV cache is read: ends what still comes in."""

    def measure_bytes_per_s(self) -> float:
        """Bandwidth there and back, measured with a few blocks before anything is in them."""
        copies = [BlockCopy(index, index) for index in range(self._num_measured)]
        self._there_and_back(copies)
        started = time.perf_counter()
        for _ in range(MEASURED_ROUNDS):
            self._there_and_back(copies)
        elapsed = time.perf_counter() - started
        return 2 * MEASURED_ROUNDS * len(copies) * self.bytes_per_block / max(elapsed, 1e-9)

    def _there_and_back(self, copies: Sequence[BlockCopy]) -> None:
        self.swap_out(copies)
        self.swap_in(copies)

    def _host_twin(self, tensor: torch.Tensor, num_blocks: int) -> torch.Tensor:
        return memory.zeros((num_blocks, *tensor.shape[1:]), tensor.dtype)

    def _copy(
        self,
        copies: Sequence[BlockCopy],
        sources: Sequence[torch.Tensor],
        targets: Sequence[torch.Tensor],
    ) -> None:
        source_ids = torch.tensor([copy.source for copy in copies])
        target_ids = torch.tensor([copy.target for copy in copies])
        for source, target in zip(sources, targets, strict=True):
            target.index_copy_(0, target_ids, source.index_select(0, source_ids))


class PinnedKVCache(HostKVCache):
    """Of a KV cache on a GPU."""

    def __init__(self, caches: Sequence[LayerKVCache], num_blocks: int) -> None:
        super().__init__(caches, num_blocks)
        self._stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._being_read: set[int] = set()

    def swap_out(self, copies: Sequence[BlockCopy]) -> None:
        super().swap_out(copies)
        self._being_read |= {copy.source for copy in copies}

    def before_write(self, block_ids: Iterable[int]) -> None:
        if not self._being_read.isdisjoint(block_ids):
            self.before_read()

    def before_read(self) -> None:
        torch.cuda.current_stream(self._device).wait_stream(self._stream)
        self._being_read.clear()

    def _there_and_back(self, copies: Sequence[BlockCopy]) -> None:
        super()._there_and_back(copies)
        self._stream.synchronize()
        self._being_read.clear()

    def _host_twin(self, tensor: torch.Tensor, num_blocks: int) -> torch.Tensor:
        shape = (num_blocks, *tensor.shape[1:])
        return torch.zeros(shape, dtype=tensor.dtype, pin_memory=True)

    def _copy(
        self,
        copies: Sequence[BlockCopy],
        sources: Sequence[torch.Tensor],
        targets: Sequence[torch.Tensor],
    ) -> None:
        # What the steps before wrote, and the copies within the cache, must be there.
        self._stream.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._stream):
            for source, target in zip(sources, targets, strict=True):
                for copy in copies:
                    target[copy.target].copy_(source[copy.source], non_blocking=True)


def host_kv_cache(caches: Sequence[LayerKVCache], num_blocks: int) -> HostKVCache:
    """The one that fits the device of the caches."""
    kind = PinnedKVCache if caches[0].storage.is_cuda else HostKVCache
    return kind(caches, num_blocks)


def written_blocks(step: SchedulerOutput, block_size: int) -> set[int]:
    """Blocks in which a step's tokens get their keys and values."""
    written: set[int] = set()
    for item in step.scheduled:
        end = item.num_computed_tokens + len(item.token_ids)
        first, last = item.num_computed_tokens // block_size, (end - 1) // block_size
        written.update(item.block_ids[first : last + 1])
    return written
