"""Ragged batches over a paged cache in which everything that is nobody's is NaN or garbage."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from hypothesis import strategies as st

from kernels.paged_attention import paged_attention, paged_attention_reference
from kernels.testing.accuracy import assert_as_accurate_as_torch
from tests.kernels.on_device import watched
from tests.kernels.strategies import DTYPES, SEEDS

E4M3 = torch.float8_e4m3fn
LARGEST_CODE = {torch.int8: 127.0, E4M3: 448.0}
GARBAGE_IDS = (-1, 2**31 - 1, -(2**31))


NUM_ORDERS = 4


@dataclass(frozen=True)
class Batch:
    """The arguments of `paged_attention`, under its names."""

    query: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    block_tables: torch.Tensor
    seq_lens: torch.Tensor
    query_start_loc: torch.Tensor
    key_scales: torch.Tensor | None
    value_scales: torch.Tensor | None

    @property
    def max_query_len(self) -> int:
        return max(self.query_start_loc.diff().tolist(), default=0)

    @property
    def scale(self) -> float:
        return float(self.query.shape[-1] ** -0.5)

    def attend(self, **options: Any) -> torch.Tensor:
        """By the kernel, under the sanitizer where there is one."""
        longest = options.pop("max_query_len", self.max_query_len)
        options = {"scale": self.scale, **options}
        with watched(self.query.device.type) as watch:
            out = paged_attention(
                self.query,
                self.key_cache,
                self.value_cache,
                self.block_tables,
                self.seq_lens,
                self.query_start_loc,
                longest,
                key_scales=self.key_scales,
                value_scales=self.value_scales,
                **options,
            )
            watch.require_written(out=out)
        return out

    def reference(self, dtype: torch.dtype, **options: Any) -> torch.Tensor:
        """By plain torch in that dtype; its error is the dtype's and not that of the cache."""
        options = {"scale": self.scale, **options}
        return paged_attention_reference(
            self.query.to(dtype),
            self.key_cache,
            self.value_cache,
            self.block_tables,
            self.seq_lens,
            self.query_start_loc,
            key_scales=self.key_scales,
            value_scales=self.value_scales,
            **options,
        )

    def assert_accurate(self, out: torch.Tensor, **options: Any) -> None:
        """At most twice torch's error: the largest over several orders of products and sums.

        A small batch has a handful of roundings: in one order torch may be right by luck.
        """
        truth = self.reference(torch.float64, **options)
        peer = self.reference(self.query.dtype, **options)
        for order in range(1, NUM_ORDERS):
            factor = 1 + 0.3 * order
            scale = options.get("scale", self.scale) / factor
            other = self._in_order(order, factor).reference(
                self.query.dtype, **{**options, "scale": scale}
            )
            is_worse = (other.double() - truth).abs() > (peer.double() - truth).abs()
            peer = torch.where(is_worse, other, peer)
        assert_as_accurate_as_torch(out, truth, peer)

    def _in_order(self, order: int, factor: float) -> Batch:
        """The elements of a head summed in another order, and a part of the scale taken first."""
        generator = torch.Generator().manual_seed(order)
        places = torch.randperm(self.query.shape[-1], generator=generator).to(self.query.device)
        codes = self.key_cache.view(torch.uint8) if self.key_cache.itemsize == 1 else self.key_cache
        keys = codes.index_select(-1, places).view(self.key_cache.dtype)
        query = self.query.index_select(-1, places) * factor
        return replace(self, query=query, key_cache=keys)

    def request(self, index: int) -> Batch:
        """That request as a batch of its own, on the same cache."""
        start, end = self.query_start_loc[index : index + 2].tolist()
        return replace(
            self,
            query=self.query[start:end],
            block_tables=self.block_tables[index : index + 1],
            seq_lens=self.seq_lens[index : index + 1],
            query_start_loc=self.query_start_loc.new_tensor([0, end - start]),
        )


def batch_of(
    lens: Sequence[tuple[int, int]],
    device: str,
    *,
    heads: tuple[int, int] = (4, 2),
    head_dim: int = 32,
    block_size: int = 16,
    dtype: torch.dtype = torch.float32,
    cache_dtype: torch.dtype | None = None,
    index_dtype: torch.dtype = torch.int32,
    side_by_side: bool = True,
    seed: int = 0,
    spare_blocks: int = 2,
) -> Batch:
    """Normal values for requests of (query_len, seq_len), at random places of the cache.

    The same seed, heads and head_dim give the same tokens, whatever the block size. Slots that no
    token owns are NaN, or the largest codes with scales of NaN. side_by_side: keys and values of
    a token are neighbours, as the engine keeps them. block_tables is two blocks wider than
    needed and full of garbage there.
    """
    generator = torch.Generator().manual_seed(seed)
    num_heads, num_kv_heads = heads
    query_lens = torch.tensor([query_len for query_len, _ in lens])
    seq_lens = [seq_len for _, seq_len in lens]
    query = torch.randn(int(query_lens.sum()), num_heads, head_dim, generator=generator).to(dtype)
    tokens = torch.randn(sum(seq_lens), 2, num_kv_heads, head_dim, generator=generator)

    needed = [-(-seq_len // block_size) for seq_len in seq_lens]
    num_blocks = sum(needed) + spare_blocks
    order = torch.randperm(num_blocks, generator=generator).tolist()
    tables = torch.tensor(GARBAGE_IDS * (max(needed) + 2))[: max(needed) + 2].repeat(len(lens), 1)
    slots = []
    for request, (count, seq_len) in enumerate(zip(needed, seq_lens, strict=True)):
        ids = torch.tensor([order.pop() for _ in range(count)], dtype=torch.int64)
        tables[request, :count] = ids
        key = torch.arange(seq_len)
        slots.append(ids[key // block_size] * block_size + key % block_size)
    slot = torch.cat(slots)

    scales = None
    if cache_dtype is None or cache_dtype == dtype:
        codes, nothing = tokens.to(dtype), float("nan")
    else:
        scale = tokens.abs().amax(-1) / LARGEST_CODE[cache_dtype]
        codes = tokens / scale[..., None]
        codes = (codes.round() if cache_dtype == torch.int8 else codes).to(cache_dtype)
        nothing = 127.0 if cache_dtype == torch.int8 else float("nan")
        scales = torch.full((num_blocks * block_size, 2, num_kv_heads), float("nan"))
        scales[slot] = scale
    storage = torch.full((num_blocks * block_size, 2, num_kv_heads, head_dim), nothing)
    storage[slot] = codes.float()
    storage = storage.to(codes.dtype)
    key_cache, value_cache = _blocks(storage, block_size, side_by_side, device)
    key_scales, value_scales = (
        (None, None) if scales is None else _blocks(scales, block_size, side_by_side, device)
    )
    return Batch(
        query.to(device),
        key_cache,
        value_cache,
        tables.to(device, index_dtype),
        torch.tensor(seq_lens, dtype=index_dtype, device=device),
        torch.cat([torch.zeros(1), query_lens.cumsum(0)]).to(device, index_dtype),
        key_scales,
        value_scales,
    )


def _blocks(
    tokens: torch.Tensor, block_size: int, side_by_side: bool, device: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """[slots, 2, ...] as keys and values [num_blocks, block_size, ...]."""
    storage = tokens.to(device).unflatten(0, (-1, block_size))
    keys, values = storage[:, :, 0], storage[:, :, 1]
    return (keys, values) if side_by_side else (keys.contiguous(), values.contiguous())


@st.composite
def batches(draw: st.DrawFn, device: str, largest: int = 70) -> Batch:
    """Ragged batches: prefill chunks, decodes, requests without a token or with too few keys."""
    lens = []
    for _ in range(draw(st.integers(1, 3))):
        query_len = draw(st.sampled_from([0, 1, 1, 2, 5, 17]))
        context = draw(st.integers(-2, largest))
        lens.append((query_len, max(0, query_len + context)))
    dtype = draw(DTYPES)
    return batch_of(
        lens,
        device,
        heads=draw(st.sampled_from([(4, 4), (8, 2), (5, 1), (9, 3), (20, 1)])),
        head_dim=draw(st.sampled_from([8, 16, 32, 40, 64, 80, 96])),
        block_size=draw(st.sampled_from([1, 3, 16, 17, 32, 128])),
        dtype=dtype,
        cache_dtype=draw(st.sampled_from([dtype, dtype, torch.int8, E4M3])),
        index_dtype=draw(st.sampled_from([torch.int32, torch.int64])),
        side_by_side=draw(st.booleans()),
        seed=draw(SEEDS),
    )


OPTIONS = st.fixed_dictionaries(
    {},
    optional={
        "window": st.sampled_from([1, 2, 15, 16, 17, 40, 90, 1000]),
        "softcap": st.sampled_from([1.0, 30.0]),
        "scale": st.sampled_from([0.125, 1.0, -0.3, 0.0]),
    },
)
SPLITS = st.sampled_from([None, 1, 2, 3, 8])
