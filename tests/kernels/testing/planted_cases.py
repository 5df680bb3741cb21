"""Kernels with known machine code, for the tests of the ahead-of-time gate."""

from __future__ import annotations

import triton
import triton.language as tl

from kernels.testing.cases import AotCase


@triton.jit
def copy_kernel(source, target, BLOCK: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + lanes, tl.load(source + lanes))


@triton.jit
def product_kernel(left, right, target, inner, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr):
    rows = tl.arange(0, M)
    columns = tl.arange(0, N)
    steps = tl.arange(0, K)
    total = tl.zeros((M, N), tl.float32)
    for start in range(0, inner, K):
        a = tl.load(left + rows[:, None] * inner + start + steps[None, :])
        b = tl.load(right + columns[None, :] * inner + start + steps[:, None])
        total = tl.dot(a, b, total)
    places = rows[:, None] * N + columns[None, :]
    tl.store(target + places, total.to(target.dtype.element_ty))


@triton.jit
def cast_to_fp8_kernel(source, target, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    tl.store(target + lanes, tl.load(source + lanes).to(tl.float8e4nv))


def _copy(config: str, aligned: bool) -> AotCase:
    return AotCase(
        kernel="copy",
        config=config,
        function=copy_kernel,
        arguments={"source": "*bf16", "target": "*bf16"},
        constants={"BLOCK": 1024},
        any_alignment=frozenset() if aligned else frozenset({"source", "target"}),
    )


def _product(config: str, m: int, n: int, warps: int) -> AotCase:
    return AotCase(
        kernel="product",
        config=config,
        function=product_kernel,
        arguments={"left": "*fp16", "right": "*fp16", "target": "*fp16", "inner": "i32"},
        constants={"M": m, "N": n, "K": 64},
        num_warps=warps,
        matrix=True,
    )


AOT_CASES = (
    _copy("aligned", aligned=True),
    _copy("unaligned", aligned=False),
    _product("fits", 128, 64, warps=4),
    _product("spills", 256, 256, warps=4),
    AotCase("fp8", "", cast_to_fp8_kernel, {"source": "*fp32", "target": "*fp8e4nv"},
            {"BLOCK": 128}),
)  # fmt: skip
