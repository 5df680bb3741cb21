"""How paged attention is launched: tiles, warps and stages, and what the gate compiles of it.

What decided, by the gate's figures: nothing may spill; then programs on a processor, since a
decode waits for memory and other programs fill the wait; then tiles as large as that allows.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import triton

from kernels.e4m3 import E4M3_ARCHITECTURES
from kernels.paged_attention_kernel import NOT_SPECIALIZED, paged_attention_kernel
from kernels.testing.cases import AotCase, by_launch


@dataclass(frozen=True)
class Launch:
    """block_m: rows (query tokens x heads of a group) of a program. block_n: keys of a tile.
    peel: whether tiles that all rows see whole are done without masks.
    """

    block_m: int
    block_n: int
    num_warps: int
    num_stages: int
    peel: bool


def choose_launch(
    group: int,
    head_dim: int,
    query_dtype: torch.dtype,
    cache_dtype: torch.dtype,
    max_query_len: int,
    arch: str,
) -> Launch:
    """By the rows of the longest request: few (decodes, drafts of speculation) or many (chunks).

    group: query heads of a KV head, at most 128. arch: of kernels.testing.architectures.
    """
    columns = max(16, triton.next_power_of_2(head_dim))
    rows = max(group, min(group * max_query_len, 128))
    narrow = cache_dtype.itemsize < query_dtype.itemsize  # codes
    if rows <= 32:
        rows = max(16, triton.next_power_of_2(rows))
        return _for_few_rows(rows, columns, query_dtype.itemsize, narrow, arch)
    group_rows = triton.next_power_of_2(group)
    return _for_many_rows(group_rows, columns, query_dtype.itemsize, narrow, arch)


def _for_few_rows(block_m: int, columns: int, item_bytes: int, narrow: bool, arch: str) -> Launch:
    """Tiles of 16 KiB of keys: three or four programs fit a processor of an A100 or H100, which
    together have more than 100 KiB on the way. Codes take registers while they become numbers,
    and AMD's loads go through registers: there tiles are half of that or less.
    """
    if arch == "gfx942":
        block_n = 16 if narrow else max(16, min(64, 8192 // (columns * item_bytes)))
        return Launch(block_m, block_n, num_warps=4, num_stages=2, peel=False)
    if item_bytes == 4 and (narrow or columns > 64):  # products in registers, where less fits
        return Launch(block_m, 16, num_warps=8, num_stages=3, peel=False)
    tile_bytes = 8192 if narrow else 16384
    block_n = max(16, min(32 if narrow else 64, tile_bytes // (columns * item_bytes)))
    # The block table is read a stage ahead of its keys: of three stages one buffers tiles, of
    # five two, which small tiles have room for.
    double = block_n * columns * item_bytes <= 8192
    return Launch(block_m, block_n, num_warps=4, num_stages=5 if double else 3, peel=False)


def _for_many_rows(
    group_rows: int, columns: int, item_bytes: int, narrow: bool, arch: str
) -> Launch:
    """With 8 warps nothing spills; with 4, half of these tiles do. Hopper and Blackwell multiply
    64 or 128 rows with one instruction, and decodes among the chunks still wait for memory.
    """
    least = 32 if item_bytes == 4 else 64
    if arch == "gfx942":  # tiles of 32 keys would spill with a window or with codes
        warps = 8 if group_rows > 64 else 4
        return Launch(max(least, group_rows), 16, warps, num_stages=2, peel=True)
    if item_bytes == 4:  # no matrix instruction: products of registers
        if columns <= 64 and not narrow:
            return Launch(max(least, group_rows), 64, num_warps=8, num_stages=3, peel=True)
        least = 32 if columns <= 128 else 16
        return Launch(max(least, group_rows), 16, num_warps=8, num_stages=2, peel=True)
    large = arch in ("sm_90", "sm_100") and not (narrow and columns > 128)
    block_m = max(128 if large else 64, group_rows)
    block_n = 64 if columns <= 128 else 32
    if narrow or (block_m > 64 and not large):
        block_n //= 2
    double = columns <= 128 and not (arch == "sm_100" and columns <= 64)  # spills there
    return Launch(block_m, block_n, num_warps=8, num_stages=5 if double else 3, peel=True)


_TYPES = {
    "fp16": torch.float16,
    "bf16": torch.bfloat16,
    "fp32": torch.float32,
    "i8": torch.int8,
    "fp8e4nv": torch.float8_e4m3fn,
}


def _cases(
    dtype: str,
    group: int,
    head_dim: int,
    max_query_len: int,
    *,
    cache: str = "",
    split: bool = False,
    window: bool = False,
    softcap: bool = False,
    unscaled: bool = False,
) -> list[AotCase]:
    """A case for every launch that some architecture has of it."""
    cache = cache or dtype

    def launched(arch: str) -> tuple[Launch, str]:
        launch = choose_launch(group, head_dim, _TYPES[dtype], _TYPES[cache], max_query_len, arch)
        by_hand = cache == "fp8e4nv" and arch not in E4M3_ARCHITECTURES
        return launch, "u8" if by_hand else cache

    options = {"split": split, "window": window, "softcap": softcap, "unscaled": unscaled}
    return [
        _case(dtype, read_as, group, head_dim, max_query_len, launch, architectures, options)
        for (launch, read_as), architectures in by_launch(launched).items()
    ]


def _case(
    dtype: str,
    cache: str,
    group: int,
    head_dim: int,
    max_query_len: int,
    launch: Launch,
    architectures: tuple[str, ...],
    options: dict[str, bool],
) -> AotCase:
    constants = {
        "GROUP": group,
        "HEAD_DIM": head_dim,
        "BLOCK_SIZE": 16,
        "BLOCK_M": launch.block_m,
        "BLOCK_N": launch.block_n,
        "SEARCH": max_query_len > launch.block_m // group,
        "PEEL": launch.peel,
        "SPLIT": options["split"],
        "HAS_WINDOW": options["window"],
        "HAS_SOFTCAP": options["softcap"],
        "HAS_SCALES": cache != dtype and not options["unscaled"],
    }
    types = dict.fromkeys(paged_attention_kernel.arg_names, "i32")
    types |= dict.fromkeys(("block_tables", "seq_lens", "query_start_loc"), "*i32")
    types |= {"query": f"*{dtype}", "out": "*fp32" if options["split"] else f"*{dtype}"}
    types |= dict.fromkeys(("key_cache", "value_cache"), f"*{cache}")
    scales = "*fp32" if constants["HAS_SCALES"] else f"*{cache}"  # else the caches stand in
    types |= {"key_scales": scales, "value_scales": scales, "partial_lse": "*fp32"}
    types |= dict.fromkeys(("scale", "cap"), "fp32")
    marks = {**options, "chunks": max_query_len > 1}
    marked = "".join(f" {name}" for name, is_so in marks.items() if is_so)
    return AotCase(
        kernel="paged_attention",
        config=f"{dtype} cache={cache} group={group} head_dim={head_dim}{marked} "
        f"block={launch.block_m}x{launch.block_n} warps={launch.num_warps} "
        f"stages={launch.num_stages}",
        function=paged_attention_kernel,
        arguments={name: kind for name, kind in types.items() if name not in constants},
        constants=constants,
        num_warps=launch.num_warps,
        num_stages=launch.num_stages,
        any_alignment=frozenset(NOT_SPECIALIZED),
        matrix=dtype != "fp32",
        architectures=architectures,
    )


CHUNK = 512
AOT_CASES = tuple(
    case
    for cases in (
        # Decodes: Llama 2 7B, Llama 3 8B and 70B, SmolLM2-135M, Gemma 2 9B, Phi-2 (padded heads).
        _cases("bf16", 1, 128, 1),
        _cases("bf16", 4, 128, 1),
        _cases("bf16", 4, 128, 1, split=True),
        _cases("fp16", 8, 128, 1, split=True),
        _cases("bf16", 3, 64, 1),
        _cases("bf16", 2, 256, 1, split=True, window=True, softcap=True),
        _cases("fp16", 1, 80, 1),
        _cases("bf16", 4, 128, 1, cache="i8", split=True),
        _cases("fp16", 3, 64, 1, cache="i8"),
        _cases("bf16", 4, 128, 1, cache="fp8e4nv"),
        _cases("bf16", 4, 128, 1, cache="fp8e4nv", unscaled=True),
        _cases("fp16", 8, 256, 1, cache="fp8e4nv", split=True),
        _cases("fp32", 3, 64, 1),
        # Chunks of prefill, decodes among them.
        _cases("bf16", 4, 128, CHUNK),
        _cases("bf16", 4, 128, CHUNK, split=True, window=True),
        _cases("fp16", 3, 64, CHUNK),
        _cases("bf16", 2, 256, CHUNK, window=True, softcap=True),
        _cases("bf16", 4, 128, CHUNK, cache="i8"),
        _cases("bf16", 8, 128, CHUNK, cache="fp8e4nv"),
        _cases("bf16", 2, 256, CHUNK, cache="i8", split=True, softcap=True),
        _cases("fp32", 3, 64, CHUNK),
        _cases("bf16", 71, 64, CHUNK),  # Falcon 7B: one KV head for all
    )
    for case in cases
)
