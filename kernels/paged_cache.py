"""Where a token's keys and values lie in the paged cache, and how a kernel writes them there.

Shared by the kernels that write the cache: what the arguments must be, and the device function
that puts rows, as they are or as codes with a scale, into their slots.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
from __future__ import annotations

from dataclasses import dataclass

import torch
import triton
import triton.language as tl

from kernels.checks import require_adjacent, require_dimensions, require_dtype, require_shape
from kernels.devices import Device
from kernels.e4m3 import E4M3_ARCHITECTURES
from kernels.errors import KernelInputError
from kernels.row_quantization import (
    LARGEST_CODE,
    Coding,
    codes_of,
    coding_of,
    largest_magnitude,
    scale_of,
)
from kernels.testing.architectures import ARCHITECTURES

MAX_HEAD_DIM = 1024  # a row lives in the registers of one program

# Parameters of every kernel that writes the cache, in the order of `Target.arguments`.
POINTERS = ("key_cache", "value_cache", "key_scales", "value_scales", "slot_mapping")
STRIDES = tuple(
    f"{what}_{dimension}_stride"
    for what in ("cache", "scale")
    for dimension in ("block", "slot", "head")
)


@triton.jit
def place_of(slot, head, block_stride, slot_stride, head_stride, BLOCK_SIZE: tl.constexpr):
    """The offset of a slot's head; int64, as a cache has more than 2^31 elements."""
    block = slot // BLOCK_SIZE * block_stride
    return block + slot % BLOCK_SIZE * slot_stride + head.to(tl.int64) * head_stride


@triton.jit
def write_rows(
    rows,
    cache_rows,
    scale_places,
    kept,
    HEAD_DIM: tl.constexpr,
    COLUMNS: tl.constexpr,
    CODING: tl.constexpr,
):
    """Stores rows [rows, COLUMNS], 0 beyond HEAD_DIM, from the pointers `cache_rows` on."""
    if CODING != "as it is":
        rows = rows.to(tl.float32)
        scale = scale_of(largest_magnitude(rows), CODING)
        tl.store(scale_places, scale, mask=kept)
        rows = codes_of(rows, scale, CODING)
    column = tl.arange(0, COLUMNS)[None, :]
    tl.store(cache_rows[:, None] + column, rows, mask=kept[:, None] & (column < HEAD_DIM))


@dataclass(frozen=True)
class Target:
    """Caches, scales and slots that passed the checks, as a kernel takes them."""

    key_cache: torch.Tensor
    value_cache: torch.Tensor
    key_scales: torch.Tensor | None
    value_scales: torch.Tensor | None
    slot_mapping: torch.Tensor

    @property
    def heads(self) -> int:
        return self.key_cache.shape[2]

    @property
    def head_dim(self) -> int:
        return self.key_cache.shape[3]

    @property
    def block_size(self) -> int:
        return self.key_cache.shape[1]

    @property
    def tensors(self) -> dict[str, torch.Tensor]:
        named = {name: getattr(self, name) for name in POINTERS}
        return {name: tensor for name, tensor in named.items() if tensor is not None}

    @property
    def arguments(self) -> dict[str, torch.Tensor | int | None]:
        """By the kernels' names. e4m3 goes as bytes: not every GPU's compiler knows the type."""
        strides = self.key_cache.stride()[:3]
        scale_strides = (0, 0, 0) if self.key_scales is None else self.key_scales.stride()
        return {
            "key_cache": _as_storable(self.key_cache),
            "value_cache": _as_storable(self.value_cache),
            "key_scales": self.key_scales,
            "value_scales": self.value_scales,
            "slot_mapping": self.slot_mapping,
            **dict(zip(STRIDES, (*strides, *scale_strides), strict=True)),
        }

    def coding(self, device: Device) -> Coding:
        return coding_of(self.key_cache.dtype, device)


def require_target(
    kernel: str,
    num_tokens: int,
    dtype: torch.dtype,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    key_scales: torch.Tensor | None,
    value_scales: torch.Tensor | None,
) -> Target:
    """The caches of `num_tokens` tokens of `dtype`; raises KernelInputError if they do not fit."""
    wanted = "[num_blocks, block_size, num_kv_heads, head_dim]"
    require_dimensions(kernel, "key_cache", key_cache, wanted)
    require_shape(kernel, "value_cache", value_cache, key_cache.shape)
    require_dtype(kernel, "key_cache", key_cache, (dtype, *LARGEST_CODE))
    require_dtype(kernel, "value_cache", value_cache, (key_cache.dtype,))
    require_adjacent(kernel, "key_cache", key_cache)
    _require_alike(kernel, "cache", key_cache, value_cache)
    if key_cache.shape[1] < 1:
        raise KernelInputError(f"{kernel}: key_cache has blocks of {key_cache.shape[1]} tokens")
    if not 1 <= key_cache.shape[3] <= MAX_HEAD_DIM:
        raise KernelInputError(
            f"{kernel}: head_dim is {key_cache.shape[3]}, wanted 1 to {MAX_HEAD_DIM}"
        )
    require_dtype(kernel, "slot_mapping", slot_mapping, (torch.int32, torch.int64))
    require_shape(kernel, "slot_mapping", slot_mapping, (num_tokens,))
    require_adjacent(kernel, "slot_mapping", slot_mapping)
    if key_cache.dtype in LARGEST_CODE:
        if key_scales is None or value_scales is None:
            raise KernelInputError(
                f"{kernel}: a cache of {str(key_cache.dtype).removeprefix('torch.')} needs "
                "key_scales and value_scales"
            )
        for name, scales in (("key_scales", key_scales), ("value_scales", value_scales)):
            require_dtype(kernel, name, scales, (torch.float32,))
            require_shape(kernel, name, scales, key_cache.shape[:3])
        _require_alike(kernel, "scales", key_scales, value_scales)
    elif key_scales is not None or value_scales is not None:
        raise KernelInputError(f"{kernel}: a cache of the keys' own dtype has no scales")
    return Target(key_cache, value_cache, key_scales, value_scales, slot_mapping)


def _require_alike(kernel: str, name: str, key: torch.Tensor, value: torch.Tensor) -> None:
    if key.stride() != value.stride():
        raise KernelInputError(
            f"{kernel}: the {name} of keys and values must have the same strides, not "
            f"{key.stride()} and {value.stride()}: allocate both alike"
        )


def _as_storable(cache: torch.Tensor) -> torch.Tensor:
    return cache.view(torch.uint8) if cache.dtype == torch.float8_e4m3fn else cache


def aot_target(dtype: str, coding: Coding) -> tuple[dict[str, str], dict[str, int | None]]:
    """Types and constants of a target's parameters, as a launch with contiguous scales has them."""
    stored = {"as it is": dtype, "int8": "i8"}.get(coding, "u8")
    arguments = {"key_cache": f"*{stored}", "value_cache": f"*{stored}", "slot_mapping": "*i64"}
    arguments |= dict.fromkeys(STRIDES, "i32")
    if coding == "as it is":
        return arguments, {"key_scales": None, "value_scales": None}
    del arguments["scale_head_stride"]
    return {**arguments, "key_scales": "*fp32", "value_scales": "*fp32"}, {"scale_head_stride": 1}


def writers(coding: Coding) -> tuple[str, ...]:
    """The kinds of GPU on which a launch may have that coding."""
    if coding not in ("e4m3", "native e4m3"):
        return tuple(ARCHITECTURES)
    native = coding == "native e4m3"
    return tuple(arch for arch in ARCHITECTURES if (arch in E4M3_ARCHITECTURES) == native)
