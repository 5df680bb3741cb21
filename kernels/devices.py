"""What a launch must know of the GPU it runs on: its kind, its processors, its shared memory.

A wrapper asks `device_of(tensor)`, and its `choose_launch` decides by the answer. The gate asks
`choose_launch` with the kind's name, so what is measured is what runs.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import torch

from kernels.checks import is_interpreting

INTERPRETED = "sm_80"  # whose launches are the most like those of other kinds


@dataclass(frozen=True)
class Device:
    """arch: the kind, one of kernels.testing.architectures. capability: (9, 0) for sm_90, (0, 0)
    for AMD. processors: SMs or CUs. has_fp8: whether it multiplies e4m3.
    """

    arch: str
    capability: tuple[int, int]
    processors: int
    has_fp8: bool


def device_of(tensor: torch.Tensor) -> Device:
    """The GPU that `tensor` is on; while interpreting, one like an A100 that has fp8."""
    if tensor.device.type != "cuda" or is_interpreting():
        return Device(INTERPRETED, (8, 0), 108, has_fp8=True)
    return _device(tensor.device.index)


def warp_size(arch: str) -> int:
    """Threads of a warp, which share out a tile: with twice as many, each gets half."""
    return 64 if arch.startswith("gfx9") else 32


def kind_of(capability: tuple[int, int]) -> str:
    """The kind of NVIDIA GPU whose launches fit a compute capability.

    8.6 to 8.9 and 12.x have mma.sync and 99 KiB of shared memory a block; 9.x wgmma; 10.x and
    11.x tcgen05.
    """
    major, minor = capability
    if major >= 12:
        return "sm_89"
    if major >= 10:
        return "sm_100"
    if major == 9:
        return "sm_90"
    return "sm_89" if minor >= 6 else "sm_80"


@cache
def _device(index: int) -> Device:
    facts = torch.cuda.get_device_properties(index)
    if torch.version.hip:
        return Device("gfx942", (0, 0), facts.multi_processor_count, has_fp8=True)
    capability = (facts.major, facts.minor)
    return Device(
        kind_of(capability), capability, facts.multi_processor_count, capability >= (8, 9)
    )
