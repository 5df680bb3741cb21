"""What `python -m kernels.bench` measures: a kernel on sizes of today's models, and its yardstick.

A yardstick is the best that torch offers for the same work (SDPA's own kernels, a matrix product),
or, where the work is moving bytes, the bandwidth of a copy on the same card. `Sizes.tiny` shrinks
everything, so that each case can be run without a GPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

from kernels.bench_case import Case, Run, Sizes, name_of
from kernels.bench_products import products
from kernels.bench_sampling import choices
from kernels.flash_attention import flash_attention
from kernels.kv_cache_write import kv_cache_write
from kernels.layer_norm import layer_norm
from kernels.paged_attention import paged_attention
from kernels.rms_norm import add_rms_norm, rms_norm
from kernels.rotary import rotary
from kernels.rotary_table import rotary_table
from kernels.softmax import softmax
from kernels.swiglu import swiglu


def cases(sizes: Sizes, device: str, dtype: torch.dtype = torch.bfloat16) -> Iterator[Case]:
    """Every case, its tensors made when it is asked for, so that one at a time takes memory."""
    for head_dim in (64, 128):
        for causal in (False, True):
            yield _flash(sizes, device, dtype, head_dim, causal)
            yield _flash(sizes, device, dtype, head_dim, causal, backward=True)
    for group in (sizes.heads // sizes.kv_heads, 1):
        yield _decode(sizes, device, dtype, 128, group)
    yield from _rows(sizes, device, dtype)
    yield from _cache(sizes, device, dtype)
    yield from products(sizes, device)
    yield from choices(sizes, device)


def _flash(
    sizes: Sizes,
    device: str,
    dtype: torch.dtype,
    head_dim: int,
    causal: bool,
    backward: bool = False,
) -> Case:
    """FLOPs as FlashAttention's papers count them: 4 n^2 d a head, half if causal, and 2.5 times
    as many backward."""
    shape = (sizes.batch, sizes.tokens, sizes.heads, head_dim)
    kv_shape = (sizes.batch, sizes.tokens, sizes.kv_heads, head_dim)
    q, k, v = (
        torch.randn(which, device=device, dtype=dtype, requires_grad=backward)
        for which in (shape, kv_shape, kv_shape)
    )
    ours = partial(flash_attention, q, k, v, causal=causal)
    peers = {
        "SDPA flash": partial(_sdpa, SDPBackend.FLASH_ATTENTION, q, k, v, causal),
        "SDPA cuDNN": partial(_sdpa, SDPBackend.CUDNN_ATTENTION, q, k, v, causal),
    }
    flops = 4.0 * sizes.batch * sizes.heads * sizes.tokens**2 * head_dim / (2 if causal else 1)
    config = f"{name_of(dtype)} {sizes.batch}x{sizes.tokens} {sizes.heads}/{sizes.kv_heads} heads "
    config += f"of {head_dim}{' causal' if causal else ''}"
    if not backward:
        wanted = 0.7 if head_dim == 128 else None
        return Case("flash_attention", config, ours, flops, peers=peers, wanted=wanted)
    inputs = (q, k, v)
    return Case(
        "flash_attention backward",
        config,
        _Backward(ours, inputs),
        2.5 * flops,
        peers={name: _Backward(run, inputs) for name, run in peers.items()},
    )


def _sdpa(
    backend: SDPBackend, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, causal: bool
) -> torch.Tensor:
    q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal, enable_gqa=True)


class _Backward:
    """A backward pass alone. The forward one is run at the first call, its graph kept: not
    before, since a backend may refuse it."""

    def __init__(self, forward: Callable[[], object], inputs: tuple[torch.Tensor, ...]) -> None:
        self._forward, self._inputs = forward, inputs
        self._run: Run | None = None

    def __call__(self) -> object:
        if self._run is None:
            out = self._forward()
            assert isinstance(out, torch.Tensor)
            gradient = torch.randn_like(out)
            self._run = partial(torch.autograd.grad, out, self._inputs, gradient, retain_graph=True)
        return self._run()


def _decode(
    sizes: Sizes, device: str, dtype: torch.dtype, head_dim: int, group: int, block_size: int = 16
) -> Case:
    """One query token a request: every key and value is read once."""
    blocks = -(-sizes.context // block_size)
    kv_heads = sizes.heads // group
    storage = torch.randn(
        sizes.decodes * blocks, block_size, 2, kv_heads, head_dim, device=device, dtype=dtype
    )
    tables = torch.randperm(len(storage), device=device, dtype=torch.int64).int()
    query = torch.randn(sizes.decodes, sizes.heads, head_dim, device=device, dtype=dtype)
    run = partial(
        paged_attention,
        query,
        storage[:, :, 0],
        storage[:, :, 1],
        tables.view(sizes.decodes, blocks),
        torch.full((sizes.decodes,), sizes.context, device=device, dtype=torch.int32),
        torch.arange(sizes.decodes + 1, device=device, dtype=torch.int32),
        1,
        scale=head_dim**-0.5,
    )
    moved = sizes.decodes * sizes.context * 2 * kv_heads * head_dim * dtype.itemsize
    config = f"{name_of(dtype)} decode {sizes.decodes}x{sizes.context} "
    config += f"{sizes.heads}/{kv_heads} heads of {head_dim}"
    return Case("paged_attention", config, run, bytes=moved, wanted=0.8)


def _rows(sizes: Sizes, device: str, dtype: torch.dtype) -> Iterator[Case]:
    """What reads each row once and writes it once."""
    rows = sizes.tokens * sizes.batch
    x = torch.randn(rows, sizes.hidden, device=device, dtype=dtype)
    residual, weight = torch.randn_like(x), torch.ones(sizes.hidden, device=device, dtype=dtype)
    config = f"{name_of(dtype)} {rows}x{sizes.hidden}"
    moved = x.numel() * dtype.itemsize
    norm = partial(rms_norm, x, weight, 1e-5)
    yield Case("rms_norm", config, norm, bytes=2 * moved, wanted=0.85)
    norm = partial(add_rms_norm, x, residual, weight, 1e-5)
    yield Case("add_rms_norm", config, norm, bytes=4 * moved, wanted=0.85)
    norm = partial(layer_norm, x, weight, weight, 1e-5)
    yield Case("layer_norm", config, norm, bytes=2 * moved, wanted=0.85)
    gate_up = torch.randn(rows, 2 * sizes.intermediate, device=device, dtype=dtype)
    config = f"{name_of(dtype)} {rows}x{sizes.intermediate}"
    moved = gate_up.numel() * dtype.itemsize
    yield Case("swiglu", config, partial(swiglu, *gate_up.chunk(2, -1)), bytes=1.5 * moved)
    logits = torch.randn(sizes.decodes, sizes.vocabulary, device=device)
    config = f"fp32 {sizes.decodes}x{sizes.vocabulary}"
    # Long rows are read twice: once for their sum, once to be divided by it.
    yield Case("softmax", config, partial(softmax, logits), bytes=3 * logits.numel() * 4)


def _cache(sizes: Sizes, device: str, dtype: torch.dtype, head_dim: int = 128) -> Iterator[Case]:
    rows = sizes.tokens * sizes.batch
    storage = torch.zeros(
        -(-rows // 16), 16, 2, sizes.kv_heads, head_dim, device=device, dtype=dtype
    )
    kv = torch.randn(rows, 2, sizes.kv_heads, head_dim, device=device, dtype=dtype)
    slots = torch.randperm(16 * len(storage), device=device)[:rows]
    write = partial(kv_cache_write, kv[:, 0], kv[:, 1], storage[:, :, 0], storage[:, :, 1], slots)
    config = f"{name_of(dtype)} {rows} tokens, {sizes.kv_heads} heads of {head_dim}"
    yield Case("kv_cache_write", config, write, bytes=2 * kv.numel() * dtype.itemsize)
    query = torch.randn(rows, sizes.heads, head_dim, device=device, dtype=dtype)
    frequencies = 10000.0 ** -(torch.arange(0, head_dim, 2, dtype=torch.float64) / head_dim)
    table = rotary_table(frequencies, sizes.tokens).to(device)
    positions = torch.arange(rows, device=device) % sizes.tokens
    turn = partial(rotary, query, kv[:, 0], positions, table)
    moved = 2 * (query.numel() + kv.numel() // 2) * dtype.itemsize
    config = f"{name_of(dtype)} {rows} tokens, {sizes.heads}/{sizes.kv_heads} heads of {head_dim}"
    yield Case("rotary", config, turn, bytes=moved)
