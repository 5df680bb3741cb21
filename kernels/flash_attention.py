"""Exact attention without the matrix of scores, forward and backward, on a batch or packed.

Which mask does `causal` mean when lengths differ, what may a row with nothing to see return, and
why does the backward pass keep one number a row? Dao et al. 2022, "FlashAttention"; Dao 2023,
"FlashAttention-2". The kernels are in flash_attention_forward and flash_attention_backward.
"""

from __future__ import annotations

import math
from typing import Any, Literal, overload

import torch
from torch.autograd.function import once_differentiable

from kernels.checks import (
    FLOATS,
    require_adjacent,
    require_dimensions,
    require_dtype,
    require_runnable,
    require_shape,
)
from kernels.errors import KernelInputError
from kernels.flash_attention_backward import backward
from kernels.flash_attention_forward import forward
from kernels.flash_attention_problem import Problem

MAX_HEAD_DIM = 256
MAX_TOKEN_STRIDE = 2**23  # times the 128 rows of a tile: within 2^31, as the kernels' offsets


@overload
def flash_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False,
    scale: float | None = None, window: int | None = None, softcap: float = 0.0,
    return_lse: Literal[False] = False,
) -> torch.Tensor: ...  # fmt: skip
@overload
def flash_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *, causal: bool = False,
    scale: float | None = None, window: int | None = None, softcap: float = 0.0,
    return_lse: Literal[True],
) -> tuple[torch.Tensor, torch.Tensor]: ...  # fmt: skip
def flash_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: int | None = None,
    softcap: float = 0.0,
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """softmax(scale * q k^T) v for every head; differentiable in q, k and v.

    q: [batch, query_len, heads, head_dim]; k, v: [batch, key_len, kv_heads, head_dim], heads a
    multiple of kv_heads: query head h reads kv head h // (heads / kv_heads). fp16, bf16 or fp32
    (in full precision), head_dim 1 to 256, any strides with the last dimension adjacent.
    causal: query i sees key j if j <= i + key_len - query_len.
    scale: head_dim ** -0.5 unless given; of any sign.
    window: only with causal, the keys that a query sees, itself included.
    softcap: c > 0 makes a score s into c * tanh(s / c), before the mask; 0 leaves it.

    Returns the result, like q and contiguous; a query that sees no key gets 0. With return_lse
    also the natural logarithm of each row's sum of exponentials, fp32 [batch, heads, query_len],
    -inf where there is no key; it has no gradient.
    Raises KernelInputError for tensors and options that do not fit.
    """
    name = "flash_attention"
    _require_tensors(name, q, k, v, "[batch, tokens, heads, head_dim]")
    if q.shape[0] != k.shape[0]:
        raise KernelInputError(f"{name}: q has a batch of {q.shape[0]}, k of {k.shape[0]}")
    problem = _problem(
        name, q, (q.shape[0], q.shape[1], k.shape[1]), causal, scale, window, softcap
    )
    out, lse = _apply(problem, q, k, v)
    return (out, lse) if return_lse else out


@overload
def flash_attention_varlen(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, query_start_loc: torch.Tensor,
    key_start_loc: torch.Tensor, max_query_len: int, max_key_len: int, *, causal: bool = False,
    scale: float | None = None, window: int | None = None, softcap: float = 0.0,
    return_lse: Literal[False] = False,
) -> torch.Tensor: ...  # fmt: skip
@overload
def flash_attention_varlen(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, query_start_loc: torch.Tensor,
    key_start_loc: torch.Tensor, max_query_len: int, max_key_len: int, *, causal: bool = False,
    scale: float | None = None, window: int | None = None, softcap: float = 0.0,
    return_lse: Literal[True],
) -> tuple[torch.Tensor, torch.Tensor]: ...  # fmt: skip
def flash_attention_varlen(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    query_start_loc: torch.Tensor,
    key_start_loc: torch.Tensor,
    max_query_len: int,
    max_key_len: int,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: int | None = None,
    softcap: float = 0.0,
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """`flash_attention` of sequences that lie one after the other, without padding.

    q: [query tokens, heads, head_dim]; k, v: [key tokens, kv_heads, head_dim].
    query_start_loc, key_start_loc: int32 [batch + 1], rising: sequence b has the tokens from
    start_loc[b] to start_loc[b + 1]. Their values stay on the GPU unchecked: none may pass the
    end of its tensor, no sequence may be longer than max_query_len and max_key_len.

    Returns [query tokens, heads, head_dim]; with return_lse also fp32 [heads, query tokens].
    Tokens outside all sequences are not read; their results and gradients are 0, LSE -inf.
    Raises KernelInputError as `flash_attention` does, and for start offsets that do not fit.
    """
    name = "flash_attention_varlen"
    _require_tensors(name, q, k, v, "[tokens, heads, head_dim]")
    for key, starts in (("query_start_loc", query_start_loc), ("key_start_loc", key_start_loc)):
        require_dtype(name, key, starts, (torch.int32,))
        if starts.dim() != 1 or not starts.numel() or not starts.is_contiguous():
            raise KernelInputError(
                f"{name}: {key} has shape {tuple(starts.shape)} and strides {starts.stride()}, "
                "wanted contiguous [batch + 1]"
            )
    require_shape(name, "key_start_loc", key_start_loc, query_start_loc.shape)
    require_runnable(name, q=q, query_start_loc=query_start_loc, key_start_loc=key_start_loc)
    if max_query_len < 0 or max_key_len < 0:
        raise KernelInputError(
            f"{name}: max_query_len is {max_query_len} and max_key_len {max_key_len}, wanted 0 "
            "or more"
        )
    sizes = (query_start_loc.numel() - 1, max_query_len, max_key_len)
    problem = _problem(
        name, q, sizes, causal, scale, window, softcap, (query_start_loc, key_start_loc)
    )
    out, lse = _apply(problem, *(tensor.unsqueeze(0) for tensor in (q, k, v)))
    return (out[0], lse[0]) if return_lse else out[0]


class _FlashAttention(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, problem: Problem
    ) -> tuple[torch.Tensor, torch.Tensor]:
        out, lse, rest = forward(problem, q, k, v, keeps_rest=True)
        ctx.problem = problem
        ctx.save_for_backward(q, k, v, out, rest, lse)
        ctx.mark_non_differentiable(lse)
        ctx.set_materialize_grads(False)
        return out, lse

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, d_out: torch.Tensor | None, d_lse: None
    ) -> tuple[torch.Tensor | None, ...]:
        if d_out is None:
            return None, None, None, None
        if d_out.shape[-1] > 1 and d_out.stride(-1) != 1:  # out.sum() sends an expanded scalar
            d_out = d_out.contiguous()
        d_out = _near(d_out)
        q, k, v, out, rest, lse = ctx.saved_tensors
        return *backward(ctx.problem, q, k, v, out, rest, lse, d_out), None


def _apply(
    problem: Problem, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    q, k, v = _near(q), _near(k), _near(v)
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        out, lse = _FlashAttention.apply(q, k, v, problem)  # type: ignore[no-untyped-call]
        return out, lse
    out, lse, _ = forward(problem, q, k, v)
    return out, lse


def _near(tensor: torch.Tensor) -> torch.Tensor:
    """Within a tile the kernels count in 32 bits: tokens too far apart are brought together."""
    return tensor if tensor.stride(1) < MAX_TOKEN_STRIDE else tensor.contiguous()


def _require_tensors(
    name: str, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, dimensions: str
) -> None:
    require_dtype(name, "q", q, FLOATS)
    for key, tensor in (("q", q), ("k", k), ("v", v)):
        require_dtype(name, key, tensor, (q.dtype,))
        require_dimensions(name, key, tensor, dimensions)
        require_adjacent(name, key, tensor, "head")
    require_shape(name, "v", v, k.shape)
    (heads, head_dim), (kv_heads, key_dim) = q.shape[-2:], k.shape[-2:]
    if not 1 <= head_dim <= MAX_HEAD_DIM or key_dim != head_dim:
        raise KernelInputError(
            f"{name}: q has a head_dim of {head_dim} and k of {key_dim}, wanted one from 1 to "
            f"{MAX_HEAD_DIM}"
        )
    if not kv_heads or heads % kv_heads or heads * head_dim >= MAX_TOKEN_STRIDE:
        raise KernelInputError(
            f"{name}: q has {heads} heads and k {kv_heads}, wanted a multiple of k's, "
            f"below {MAX_TOKEN_STRIDE // head_dim}"
        )
    require_runnable(name, q=q, k=k, v=v)


def _problem(
    name: str,
    q: torch.Tensor,
    sizes: tuple[int, int, int],
    causal: bool,
    scale: float | None,
    window: int | None,
    softcap: float,
    starts: tuple[torch.Tensor | None, torch.Tensor | None] = (None, None),
) -> Problem:
    if window is not None and (window < 1 or not causal):
        raise KernelInputError(
            f"{name}: window is {window} with causal={causal}, wanted at least 1 and causal=True"
        )
    if not (0.0 <= softcap < math.inf):
        raise KernelInputError(f"{name}: softcap is {softcap}, wanted a number above 0, or 0")
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    if not math.isfinite(scale):
        raise KernelInputError(f"{name}: scale is {scale}, wanted a finite number")
    batch, query_len, key_len = sizes
    if window is not None and window >= key_len:
        window = None  # no sequence is long enough to lose a key
    return Problem(batch, query_len, key_len, causal, scale, window, softcap, *starts)


def flash_attention_reference(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    causal: bool = False,
    scale: float | None = None,
    window: int | None = None,
    softcap: float = 0.0,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The result and the LSE by the formula, in the dtype of q; differentiable by autograd."""
    group = q.shape[2] // k.shape[2]
    k, v = (tensor.repeat_interleave(group, dim=2) for tensor in (k, v))
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    score = torch.einsum("bqhd,bkhd->bhqk", q, k) * scale
    if softcap:
        score = softcap * torch.tanh(score / softcap)
    diagonal = torch.arange(q.shape[1], device=q.device)[:, None] + k.shape[1] - q.shape[1]
    key = torch.arange(k.shape[1], device=q.device)
    visible = (key <= diagonal) if causal else torch.ones_like(key <= diagonal)
    if window is not None:
        visible = visible & (key > diagonal - window)
    # A row that sees nothing: any finite scores do, their weights are set to 0.
    score = score.masked_fill(~visible & visible.any(-1, keepdim=True), -math.inf)
    weight = torch.softmax(score, -1).masked_fill(~visible, 0.0)
    lse = torch.logsumexp(score.detach().masked_fill(~visible, -math.inf), -1)
    return torch.einsum("bhqk,bkhd->bqhd", weight, v), lse
