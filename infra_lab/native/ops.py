"""The C kernels as functions of tensors: they check nothing and copy nothing."""

from __future__ import annotations

import ctypes

import numpy as np
import torch

from infra_lab.native.library import load_library

MAX_STACK_FLOATS = 1 << 16  # paged_decode keeps the queries of one task on its stack


def pack_weight(weight: torch.Tensor) -> torch.Tensor:
    """fp32 [out, in], as checkpoints store it -> [panels, in, panel width], zero-padded."""
    width = load_library().panel_width()
    out_features, in_features = weight.shape
    panels = -(-out_features // width)
    packed = torch.empty(panels, in_features, width)
    whole = out_features // width
    packed[:whole].copy_(weight[: whole * width].view(whole, width, in_features).transpose(1, 2))
    if whole < panels:
        packed[whole].zero_()
        packed[whole, :, : out_features - whole * width].copy_(weight[whole * width :].T)
    return packed


def linear(x: torch.Tensor, packed: torch.Tensor, out_features: int) -> torch.Tensor:
    """x: fp32 [m, in], contiguous; packed: as `pack_weight` gives it -> [m, out_features]."""
    rows, in_features = x.shape
    # Rows a multiple of a page apart would all fall into one set of the L1 cache.
    stride = out_features + (16 if out_features % 1024 == 0 else 0)
    y = torch.empty(rows, stride)
    scratch = torch.empty(x.numel() if rows > 1 else 0)
    load_library().linear(
        x.data_ptr(),
        packed.data_ptr(),
        y.data_ptr(),
        scratch.data_ptr(),
        rows,
        out_features,
        in_features,
        stride,
        torch.get_num_threads(),
    )
    return y[:, :out_features]


def rms_norm(
    x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """x: fp32 [m, n], contiguous; x += delta (each row contiguous), if given, then normalised."""
    out = torch.empty_like(x)
    load_library().rms_norm(
        x.data_ptr(),
        0 if delta is None else delta.data_ptr(),
        weight.data_ptr(),
        out.data_ptr(),
        x.shape[0],
        x.shape[1],
        0 if delta is None else delta.stride(0),
        eps,
        torch.get_num_threads(),
    )
    return out


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up: fp32 [m, 2 n], each row contiguous -> silu(gate) * up, [m, n]."""
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(rows, size)
    load_library().silu_and_mul(
        gate_up.data_ptr(),
        out.data_ptr(),
        rows,
        size,
        gate_up.stride(0),
        torch.get_num_threads(),
    )
    return out


def rotate_(x: torch.Tensor, cos: torch.Tensor, signed_sin: torch.Tensor) -> None:
    """x: fp32 [m, heads, head_dim], each row contiguous, rotated in place; cos, signed_sin:
    [m, 1, head_dim], contiguous."""
    rows, heads, head_dim = x.shape
    load_library().rotate(
        x.data_ptr(),
        cos.data_ptr(),
        signed_sin.data_ptr(),
        rows,
        heads,
        head_dim // 2,
        x.stride(0),
        torch.get_num_threads(),
    )


class _Step(ctypes.Structure):
    """The C struct of the same name, field for field."""

    _fields_ = (
        ("query", ctypes.c_void_p),
        ("cache", ctypes.c_void_p),
        ("block_tables", ctypes.c_void_p),
        ("seq_lens", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("query_stride", ctypes.c_int64),
        ("max_blocks", ctypes.c_int64),
        ("num_requests", ctypes.c_int64),
        ("num_heads", ctypes.c_int64),
        ("num_kv_heads", ctypes.c_int64),
        ("head_dim", ctypes.c_int64),
        ("block_size", ctypes.c_int64),
        ("window", ctypes.c_int64),
        ("scale", ctypes.c_float),
    )


def paged_decode(
    query: torch.Tensor,
    cache: torch.Tensor,
    block_tables: np.ndarray,
    seq_lens: np.ndarray,
    scale: float,
    window: int | None,
    out: torch.Tensor,
) -> None:
    """Attends one query token of each request to its cached tokens.

    Args:
        query: fp32 [n, num_heads, head_dim], each row contiguous.
        cache: fp32 [num_blocks, block_size, 2, num_kv_heads, head_dim], contiguous.
        block_tables: int64 [n, max_blocks], contiguous.
        seq_lens: int64 [n], the query token included, all at least 1.
        out: fp32 [n, num_heads, head_dim], contiguous, overwritten.
    """
    num_requests, num_heads, head_dim = query.shape
    step = _Step(
        query.data_ptr(),
        cache.data_ptr(),
        block_tables.ctypes.data,
        seq_lens.ctypes.data,
        out.data_ptr(),
        query.stride(0),
        block_tables.shape[1],
        num_requests,
        num_heads,
        cache.shape[3],
        head_dim,
        cache.shape[1],
        window or 0,
        scale,
    )
    load_library().paged_decode(ctypes.byref(step), torch.get_num_threads())
