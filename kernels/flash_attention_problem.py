"""One call of flash attention as the kernels are told of it, and a launch as the gate is."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
import triton

from kernels.checks import MAX_GRID_X
from kernels.errors import KernelInputError
from kernels.testing.cases import AotCase, by_launch


@dataclass(frozen=True)
class Problem:
    """Beside the tensors q, k, v [batch, tokens, heads, head_dim], everything that counts.

    batch: sequences. query_len, key_len: of each, or of the longest where they are packed one
    after the other into a batch of one; then query_starts and key_starts, int32 [batch + 1],
    say where each begins and the last one ends. window: keys that a query sees, None for all;
    only with causal. softcap: 0 for none.
    """

    batch: int
    query_len: int
    key_len: int
    causal: bool
    scale: float
    window: int | None = None
    softcap: float = 0.0
    query_starts: torch.Tensor | None = None
    key_starts: torch.Tensor | None = None

    @property
    def is_packed(self) -> bool:
        return self.query_starts is not None

    def constants(self, head_dim: int) -> dict[str, Any]:
        """What a kernel is compiled for."""
        return {
            "HEAD_DIM": head_dim,
            "PADDED_DIM": padded_head_dim(head_dim),
            "CAUSAL": self.causal,
            "HAS_WINDOW": self.window is not None,
            "HAS_SOFTCAP": self.softcap > 0,
            "VARLEN": self.is_packed,
        }

    def strides(self, *tensors: torch.Tensor) -> list[int]:
        """Of batch, token and head for each [batch, tokens, heads, head_dim]."""
        return [stride for tensor in tensors for stride in self._strides(tensor, 3)]

    def row_strides(self, per_row: torch.Tensor) -> list[int]:
        """Of batch and head for an LSE or the like, [batch, heads, tokens]."""
        return self._strides(per_row, 2)

    def grid(self, tiles: int, heads: int) -> tuple[int]:
        """A program for each tile of each head of each sequence, all along x.

        Raises KernelInputError where that is too long: many packed sequences, and one very long
        one, have more tiles than tokens.
        """
        programs = tiles * heads * self.batch
        if programs > MAX_GRID_X:
            raise KernelInputError(
                f"flash_attention: {self.batch} sequences of up to {self.query_len} queries and "
                f"{self.key_len} keys, {heads} heads: {programs} programs, wanted at most "
                f"{MAX_GRID_X}: call it for fewer sequences at a time"
            )
        return (programs,)

    def _strides(self, tensor: torch.Tensor, count: int) -> list[int]:
        batch, *rest = tensor.stride()[:count]
        # A packed sequence is found by its start alone.
        return [0 if self.is_packed else batch, *rest]


def padded_head_dim(head_dim: int) -> int:
    """What a matrix instruction can take: a power of two, 16 or more."""
    return max(16, int(triton.next_power_of_2(head_dim)))


def dtype_name(dtype: torch.dtype) -> str:
    """As Triton writes it."""
    return {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}[dtype]


@dataclass(frozen=True)
class Launch:
    """Queries and keys of a tile, warps of a program, and tiles in flight."""

    rows: int
    keys: int
    num_warps: int
    num_stages: int


def aot_cases(
    function: Any,
    choose: Callable[[str, int, str], Launch],
    dtype: str,
    head_dim: int,
    spills: dict[str, int] | None = None,
    keeps_rest: bool = False,
    **options: bool,
) -> Iterator[AotCase]:
    """A case for each launch that `choose` gives the architectures, with those it is for.

    options: CAUSAL (unless given, true), HAS_WINDOW, HAS_SOFTCAP, VARLEN, NEGATIVE. spills:
    bytes allowed, by architecture. keeps_rest: with the tensor for what rounding takes.
    """
    flags = {"CAUSAL": True, **options}
    words = [name.removeprefix("HAS_").lower() for name, value in flags.items() if value]
    words += ["rest"] * keeps_rest
    for launch, architectures in by_launch(lambda arch: choose(arch, head_dim, dtype)).items():
        constants: dict[str, Any] = dict.fromkeys(
            ("CAUSAL", "HAS_WINDOW", "HAS_SOFTCAP", "VARLEN", "NEGATIVE"), False
        ) | {
            "ROWS": launch.rows,
            "KEYS": launch.keys,
            "HEAD_DIM": head_dim,
            "PADDED_DIM": padded_head_dim(head_dim),
            **flags,
        }
        if not flags.get("VARLEN"):
            constants |= {"query_starts": None, "key_starts": None}
        if not keeps_rest:
            constants["rest"] = None
        tile = f"{launch.rows}x{launch.keys} warps={launch.num_warps} stages={launch.num_stages}"
        yield AotCase(
            kernel=function.__name__.removesuffix("_kernel"),
            config=" ".join([dtype, f"d={head_dim}", *words, tile]),
            function=function,
            arguments={
                name: _argument_type(name, dtype)
                for name in function.arg_names
                if name not in constants
            },
            constants={name: constants[name] for name in function.arg_names if name in constants},
            num_warps=launch.num_warps,
            num_stages=launch.num_stages,
            any_alignment=frozenset(_ANY_NUMBER & set(function.arg_names)),
            matrix=dtype != "fp32" and "KEYS" in function.arg_names,
            architectures=architectures,
            spill_bytes_allowed=spills or {},
        )


_ANY_NUMBER = {
    "query_len", "key_len", "tiles", "heads", "kv_heads", "group", "window",
    "stride_lb", "stride_lh",
}  # fmt: skip


def _argument_type(name: str, dtype: str) -> str:
    if name in ("query_starts", "key_starts"):
        return "*i32"
    if name in ("lse", "delta"):
        return "*fp32"
    if name in ("scale", "softcap"):
        return "fp32"
    return "i32" if name in _ANY_NUMBER or name.startswith("stride_") else f"*{dtype}"
