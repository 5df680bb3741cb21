"""What a measurement is: the work, how to run it, and what it is held against."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import torch

Run = Callable[[], object]


@dataclass(frozen=True)
class Case:
    """One measurement.

    flops: of the work, where there are peers; bytes: that must move once, where there are none.
    peers: runs of the same work by torch, by name; the fastest is the yardstick. Without any it
    is the copy's bandwidth. wanted: the share of the yardstick's speed to reach on Hopper.
    """

    kernel: str
    config: str
    run: Run
    flops: float = 0.0
    bytes: float = 0.0
    peers: Mapping[str, Run] = field(default_factory=dict)
    wanted: float | None = None


@dataclass(frozen=True)
class Sizes:
    """Of a decoder like Llama 3 8B, or of a toy."""

    tokens: int = 4096
    batch: int = 4
    heads: int = 32
    kv_heads: int = 8
    hidden: int = 4096
    intermediate: int = 14336
    vocabulary: int = 128256
    decodes: int = 64
    context: int = 4096

    @classmethod
    def tiny(cls) -> Sizes:
        return cls(
            tokens=8, batch=1, heads=2, kv_heads=1, hidden=64, intermediate=128, vocabulary=300,
            decodes=2, context=40,
        )  # fmt: skip


def name_of(dtype: torch.dtype) -> str:
    return {torch.bfloat16: "bf16", torch.float16: "fp16", torch.float32: "fp32"}[dtype]
