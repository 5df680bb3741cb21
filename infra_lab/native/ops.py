"""The C kernels as functions of tensors: they check nothing and copy nothing."""

from __future__ import annotations

import ctypes
from collections.abc import Callable

import numpy as np
import torch

from infra_lab.native.library import load_library
from infra_lab.native.recording import Kernel, active, run


def pack_weight(
    weight: torch.Tensor, empty: Callable[..., torch.Tensor] = torch.empty
) -> torch.Tensor:
    """fp32 [out, in], as checkpoints store it -> [panels, in, panel width], zero-padded;
    `empty` gives its memory."""
    width = load_library().panel_width()
    out_features, in_features = weight.shape
    panels = num_panels(out_features)
    packed = empty(panels, in_features, width)
    whole = out_features // width
    packed[:whole].copy_(weight[: whole * width].view(whole, width, in_features).transpose(1, 2))
    if whole < panels:
        packed[whole].zero_()
        packed[whole, :, : out_features - whole * width].copy_(weight[whole * width :].T)
    return packed


def num_panels(out_features: int) -> int:
    return -(-out_features // int(load_library().panel_width()))


def empty_output(rows: int, out_features: int) -> torch.Tensor:
    """fp32 [rows, out_features], each row contiguous, for a product to write."""
    # Rows a multiple of a page apart would all fall into one set of the L1 cache.
    if rows > 1 and out_features % 1024 == 0:
        return torch.empty(rows, out_features + 16)[:, :out_features]
    return torch.empty(rows, out_features)


def linear(
    x: torch.Tensor, packed: torch.Tensor, out_features: int, out: torch.Tensor | None = None
) -> torch.Tensor:
    """x: fp32 [m, in], contiguous; packed: as `pack_weight` gives it -> [m, out_features], into
    `out`, each row contiguous, if given."""
    rows, in_features = x.shape
    y = empty_output(rows, out_features) if out is None else out
    scratch = torch.empty(x.numel()) if rows > 1 else None
    scratch_pointer = 0 if scratch is None else scratch.data_ptr()
    pointers = (x.data_ptr(), packed.data_ptr(), y.data_ptr(), scratch_pointer)
    sizes = (rows, out_features, in_features, y.stride(0))
    run(Kernel.LINEAR, load_library().linear, pointers, sizes, (x, packed, y, scratch))
    return y


def rms_norm(
    x: torch.Tensor, delta: torch.Tensor | None, weight: torch.Tensor, eps: float
) -> torch.Tensor:
    """x: fp32 [m, n], contiguous; x += delta (each row contiguous), if given, then normalised."""
    out = torch.empty_like(x)
    delta_pointer, delta_stride = (0, 0) if delta is None else (delta.data_ptr(), delta.stride(0))
    pointers = (x.data_ptr(), delta_pointer, weight.data_ptr(), out.data_ptr())
    sizes = (*x.shape, delta_stride)
    tensors = (x, delta, weight, out)
    run(Kernel.RMS_NORM, load_library().rms_norm, pointers, sizes, tensors, eps)
    return out


def silu_and_mul(gate_up: torch.Tensor) -> torch.Tensor:
    """gate_up: fp32 [m, 2 n], each row contiguous -> silu(gate) * up, [m, n]."""
    rows, size = gate_up.shape[0], gate_up.shape[1] // 2
    out = torch.empty(rows, size)
    pointers, sizes = (gate_up.data_ptr(), out.data_ptr()), (rows, size, gate_up.stride(0))
    run(Kernel.SILU_AND_MUL, load_library().silu_and_mul, pointers, sizes, (gate_up, out))
    return out


def round_rows(x: torch.Tensor, largest: int) -> torch.Tensor:
    """x: fp32 [m, n], contiguous -> each row as integers of at most `largest`, times a scale."""
    out = torch.empty_like(x)
    pointers, sizes = (x.data_ptr(), out.data_ptr()), tuple(x.shape)
    kernel = load_library().round_rows
    run(Kernel.ROUND_ROWS, kernel, pointers, sizes, (x, out), float(largest))
    return out


def rotate_(x: torch.Tensor, cos: torch.Tensor, signed_sin: torch.Tensor) -> None:
    """x: fp32 [m, heads, head_dim], each row contiguous, rotated in place; cos, signed_sin:
    [m, 1, head_dim], contiguous."""
    rows, heads, head_dim = x.shape
    pointers = (x.data_ptr(), cos.data_ptr(), signed_sin.data_ptr())
    sizes = (rows, heads, head_dim // 2, x.stride(0))
    run(Kernel.ROTATE, load_library().rotate, pointers, sizes, (x, cos, signed_sin))


class _Step(ctypes.Structure):
    """The C struct of the same name, field for field."""

    _fields_ = (
        ("query", ctypes.c_void_p),
        ("key_value", ctypes.c_void_p),
        ("cache", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("scratch", ctypes.c_void_p),
        ("slot_mapping", ctypes.c_void_p),
        ("query_start_loc", ctypes.c_void_p),
        ("seq_lens", ctypes.c_void_p),
        ("block_tables", ctypes.c_void_p),
        ("tasks", ctypes.c_void_p),
        ("query_stride", ctypes.c_int64),
        ("key_value_stride", ctypes.c_int64),
        ("max_blocks", ctypes.c_int64),
        ("num_tokens", ctypes.c_int64),
        ("num_tasks", ctypes.c_int64),
        ("num_heads", ctypes.c_int64),
        ("num_kv_heads", ctypes.c_int64),
        ("head_dim", ctypes.c_int64),
        ("block_size", ctypes.c_int64),
        ("window", ctypes.c_int64),
        ("scale", ctypes.c_float),
    )


class PagedAttentionStep:
    """One step's attention, prepared once and run by every layer.

    All arrays are int64 and contiguous; of their contents nothing is checked.

    Attributes:
        slot_mapping: [num_tokens].
        query_start_loc: [num_requests + 1].
        seq_lens: [num_requests], this step's tokens included, all at least 1.
        block_tables: [num_requests, max_blocks].
        tasks: [num_tasks, 5], what one thread does at a time: request, first and end KV head,
            first and end token of those that the request has in this step. A request with one
            token is a decode; its tasks take that token.
    """

    def __init__(
        self,
        shape: tuple[int, int, int],
        block_size: int,
        scale: float,
        window: int | None,
        arrays: dict[str, np.ndarray],
        scratch: torch.Tensor,
    ) -> None:
        """shape: (num_heads, num_kv_heads, head_dim); scratch: `attention_scratch_floats` for
        each thread."""
        self._kept_alive = (arrays, scratch)
        self._num_threads = torch.get_num_threads()
        self._step = _Step(
            scratch=scratch.data_ptr(),
            max_blocks=arrays["block_tables"].shape[1],
            num_tokens=len(arrays["slot_mapping"]),
            num_tasks=len(arrays["tasks"]),
            num_heads=shape[0],
            num_kv_heads=shape[1],
            head_dim=shape[2],
            block_size=block_size,
            window=window or 0,
            scale=scale,
            **{name: array.ctypes.data for name, array in arrays.items()},
        )
        self._pointer = ctypes.byref(self._step)

    def run(
        self, query: torch.Tensor, key_value: torch.Tensor, cache: torch.Tensor, out: torch.Tensor
    ) -> None:
        """Writes the step's keys and values, then attends.

        Args:
            query: fp32 [num_tokens, num_heads, head_dim], each row contiguous.
            key_value: fp32 [num_tokens, 2, num_kv_heads, head_dim], likewise.
            cache: fp32 [num_blocks, block_size, 2, num_kv_heads, head_dim], contiguous.
            out: fp32 [num_tokens, num_heads, head_dim], contiguous, overwritten.
        """
        step = self._step
        step.query = query.data_ptr()
        step.key_value = key_value.data_ptr()
        step.cache = cache.data_ptr()
        step.out = out.data_ptr()
        step.query_stride = query.stride(0)
        step.key_value_stride = key_value.stride(0)
        recording = active()
        if recording is None:
            load_library().paged_attention(self._pointer, self._num_threads)
            return
        tensors = (query, key_value, cache, out)
        pointers = (ctypes.addressof(step), *(tensor.data_ptr() for tensor in tensors))
        sizes = (step.query_stride, step.key_value_stride)
        recording.add(Kernel.PAGED_ATTENTION, pointers, sizes, (self, *tensors))

    def become(self, other: PagedAttentionStep) -> None:
        """Takes another step's place: what was recorded of this one will attend for that one."""
        ctypes.pointer(self._step)[0] = other._step
        self._kept_alive = other._kept_alive


def attention_tokens_per_task(num_heads: int, num_kv_heads: int) -> int:
    """How many tokens of a prompt chunk one task takes."""
    return int(load_library().paged_attention_tokens(num_heads, num_kv_heads))


def attention_scratch_floats(num_heads: int, num_kv_heads: int, head_dim: int) -> int:
    """Floats that each thread of a PagedAttentionStep needs."""
    return int(load_library().paged_attention_scratch(num_heads, num_kv_heads, head_dim))
