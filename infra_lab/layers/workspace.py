"""Buffers that a step reuses, so that decoding allocates next to nothing.

A fresh large tensor costs a page fault per 4 KiB; over 30 layers that is a visible share of
a step on a CPU.
"""

from __future__ import annotations

import torch


class Workspace:
    """Named scratch matrices that grow to the largest step seen and then stay."""

    def __init__(self, dtype: torch.dtype, device: torch.device) -> None:
        self.dtype = dtype
        self.device = device
        self._buffers: dict[str, torch.Tensor] = {}

    def take(self, name: str, rows: int, columns: int) -> torch.Tensor:
        """An uninitialised [rows, columns] view of the buffer of that name.

        Whoever takes a name again overwrites it: a name has one user at a time.
        """
        needed = rows * columns
        buffer = self._buffers.get(name)
        if buffer is None or buffer.numel() < needed:
            buffer = torch.empty(needed, dtype=self.dtype, device=self.device)
            self._buffers[name] = buffer
        return buffer[:needed].view(rows, columns)
