"""The cache write against a loop over tokens, byte by byte, under the sanitizer."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.errors import KernelInputError
from kernels.kv_cache_write import (
    choose_launch,
    kv_cache_write,
    kv_cache_write_kernel,
    kv_cache_write_reference,
)
from kernels.row_quantization import dequantize_rows_reference
from kernels.testing.faults import SanitizerError, WriteRaceError
from kernels.testing.sanitizer import sanitize
from tests.kernels.caches import CODES, LAYOUTS, cache_of, slots_of
from tests.kernels.on_device import bits, on, watched
from tests.kernels.strategies import DTYPES, SEEDS, rows_of

HEAD_DIMS = st.sampled_from([1, 7, 16, 64, 80, 96, 128])


@settings(max_examples=150)
@given(
    tokens=st.sampled_from([0, 1, 2, 7, 33]),
    heads=st.sampled_from([1, 3, 8]),
    head_dim=HEAD_DIMS,
    dtype=DTYPES,
    codes=st.sampled_from([None, *CODES]),
    layout=LAYOUTS,
    block_size=st.sampled_from([1, 4, 16, 5]),
    padding=st.booleans(),
    wide=st.booleans(),
    seed=SEEDS,
)
def test_tokens_go_to_their_slots_and_nothing_else_changes(
    device: str,
    tokens: int,
    heads: int,
    head_dim: int,
    dtype: torch.dtype,
    codes: torch.dtype | None,
    layout: str,
    block_size: int,
    padding: bool,
    wide: bool,
    seed: int,
) -> None:
    """Bit for bit, codes and scales too; NaN lies between the rows that are read."""
    gap = 3 if wide else 0
    key = on(device, rows_of((tokens, heads, head_dim), dtype, seed, padding=gap))
    value = on(device, rows_of((tokens, heads, head_dim), dtype, seed + 1, padding=2 * gap))
    blocks = -(-max(tokens, 1) // block_size) + 1
    slots = slots_of(tokens, blocks * block_size, seed, padding)
    slots = slots.to(torch.int32) if wide else slots
    shape = (codes or dtype, blocks, block_size, heads, head_dim, layout)
    cache, wanted = cache_of(device, *shape), cache_of("cpu", *shape)
    with watched(device):
        kv_cache_write(
            key, value, cache.key, cache.value, slots.to(device), **cache.scale_arguments
        )
    kv_cache_write_reference(
        key.cpu(), value.cpu(), wanted.key, wanted.value, slots, **wanted.scale_arguments
    )
    for written, expected in zip(cache.memory, wanted.memory, strict=True):
        assert torch.equal(written, expected)


def written_rows(
    rows: torch.Tensor, codes: torch.dtype, device: str
) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales of rows [tokens, head_dim] that went through a cache, on the CPU."""
    key = rows.to(device).unsqueeze(1)
    cache = cache_of(device, codes, len(rows), 1, 1, rows.shape[1])
    with watched(device):
        kv_cache_write(
            key,
            key,
            cache.key,
            cache.value,
            torch.arange(len(rows), device=device),
            **cache.scale_arguments,
        )
    assert torch.equal(bits(cache.key), bits(cache.value))
    return cache.key[:, 0, 0].cpu(), cache.scales[0, :, 0, 0].cpu()


@settings(max_examples=100)
@given(
    head_dim=HEAD_DIMS,
    dtype=DTYPES,
    codes=st.sampled_from(CODES),
    scale=st.sampled_from([1e-30, 1e-4, 1.0, 1e4]),
    outlier=st.sampled_from([1.0, 1e3]),
    seed=SEEDS,
)
def test_codes_read_back_within_half_a_step(
    device: str,
    head_dim: int,
    dtype: torch.dtype,
    codes: torch.dtype,
    scale: float,
    outlier: float,
    seed: int,
) -> None:
    """int8: half a scale. e4m3: 2^-4 of the value, or half of the smallest step, 2^-10 scales."""
    rows = rows_of((3, head_dim), torch.float32, seed) * scale
    rows[:, seed % head_dim] *= outlier
    rows = rows.clamp(-6e4, 6e4).to(dtype)
    written, scales = written_rows(rows, codes, device)
    assert scales.isfinite().all()
    error = (dequantize_rows_reference(written, scales) - rows.double()).abs()
    step = scales.double()[:, None]
    if codes == torch.int8:
        bound = step / 2
    else:
        bound = torch.maximum(rows.double().abs() * 2**-4, step * 2**-10)
    # The quotient is a product with a rounded inverse: a tie may go either way.
    assert (error <= bound * (1 + 2**-14) + 2**-126).all()


@settings(max_examples=20)
@given(codes=st.sampled_from(CODES), power=st.integers(-60, 60), seed=SEEDS)
def test_a_power_of_two_only_changes_the_scale(
    device: str, codes: torch.dtype, power: int, seed: int
) -> None:
    rows = rows_of((2, 64), torch.float32, seed)
    written, scales = written_rows(rows, codes, device)
    moved, moved_scales = written_rows(rows * 2.0**power, codes, device)
    assert torch.equal(bits(moved), bits(written))
    assert torch.equal(moved_scales, scales * 2.0**power)


@pytest.mark.parametrize("codes", CODES)
def test_the_largest_magnitude_gets_the_largest_code(device: str, codes: torch.dtype) -> None:
    limit = {torch.int8: 127.0, torch.float8_e4m3fn: 448.0}[codes]
    written, scales = written_rows(torch.tensor([[limit, -limit, limit / 2, 0.0]]), codes, device)
    assert scales.tolist() == [1.0]
    assert written.float().tolist() == [[limit, -limit, 64.0 if limit == 127 else 224.0, 0.0]]


def test_int8_ties_go_to_the_even_code(device: str) -> None:
    """Scale 1, because 127 is in the row."""
    row = torch.tensor([[127.0, 0.5, 1.5, 2.5, -0.5, -1.5, -2.5, 126.5]])
    written, _ = written_rows(row, torch.int8, device)
    assert written.tolist() == [[127, 0, 2, 2, 0, -2, -2, 126]]


@pytest.mark.parametrize("codes", CODES)
@pytest.mark.parametrize("row", [[0.0, -0.0], [1e-45, -1e-42], [1e-36, 0.0]])
def test_zeros_and_what_is_too_small_for_a_scale_are_zero(
    device: str, codes: torch.dtype, row: list[float]
) -> None:
    written, scales = written_rows(torch.tensor([row]), codes, device)
    assert scales.tolist() == [0.0]
    assert written.float().tolist() == [[0.0, 0.0]]


@pytest.mark.parametrize("codes", CODES)
@pytest.mark.parametrize("spoiler", [float("nan"), float("inf"), -float("inf")])
def test_a_row_with_a_nan_or_an_infinity_reads_back_as_nan_and_no_other_does(
    device: str, codes: torch.dtype, spoiler: float
) -> None:
    rows = torch.ones(3, 8)
    rows[1, 5] = spoiler
    written, scales = written_rows(rows, codes, device)
    back = dequantize_rows_reference(written, scales)
    assert back[1].isnan().all()
    assert torch.allclose(back[[0, 2]], torch.ones(2, 8).double())


def test_keys_and_values_keep_their_own_scales(device: str) -> None:
    cache = cache_of(device, torch.int8, 1, 1, 1, 2)
    key = torch.tensor([[[63.5, -0.5]]], device=device)
    value = torch.tensor([[[254.0, 4.0]]], device=device)
    slot = torch.tensor([0], device=device)
    kv_cache_write(key, value, cache.key, cache.value, slot, **cache.scale_arguments)
    assert cache.scales.flatten().tolist() == [0.5, 2.0]
    assert cache.key.flatten().tolist() == [127, -1]
    assert cache.value.flatten().tolist() == [127, 2]


def test_bits_of_floats_are_kept_as_they_are(device: str) -> None:
    """NaN with a payload, infinities, -0, subnormals."""
    key = torch.tensor([0x7FC1, 0x7F80, -0x8000, 1, -1, 0x3F80]).to(torch.int16)
    key = key.view(torch.bfloat16).view(1, 1, 6).to(device)
    cache = cache_of(device, torch.bfloat16, 1, 1, 1, 6)
    kv_cache_write(key, key, cache.key, cache.value, torch.tensor([0], device=device))
    assert torch.equal(bits(cache.key), bits(key).view(1, 1, 1, -1))


def test_only_padding_writes_nothing(device: str) -> None:
    cache = cache_of(device, torch.int8, 2, 4, 2, 16)
    before = cache.memory
    key = torch.full((3, 2, 16), float("nan"), device=device)
    slots = torch.tensor([-1, -1, -(2**40)], device=device)
    with watched(device):
        kv_cache_write(key, key, cache.key, cache.value, slots, **cache.scale_arguments)
    for now, then in zip(cache.memory, before, strict=True):
        assert torch.equal(now, then)


@pytest.mark.parametrize("shape", [(0, 2, 16), (3, 0, 16)])
def test_no_tokens_or_no_heads_launch_nothing(device: str, shape: tuple[int, int, int]) -> None:
    cache = cache_of(device, torch.float32, 2, 4, shape[1], 16)
    key = torch.zeros(shape, device=device)
    slots = torch.arange(shape[0], device=device)
    kv_cache_write(key, key, cache.key, cache.value, slots)


def test_two_tokens_in_one_slot_are_a_race() -> None:
    """Within one program's rows, and between two programs."""
    for tokens in (2, 200):
        key = rows_of((tokens, 1, 64), torch.float32, 0)
        cache = cache_of("cpu", torch.float32, tokens, 1, 1, 64)
        slots = torch.arange(tokens)
        slots[-1] = 0
        with pytest.raises(WriteRaceError), sanitize():
            kv_cache_write(key, key, cache.key, cache.value, slots)


def test_a_slot_beyond_the_cache_is_seen_by_the_sanitizer() -> None:
    key = torch.zeros(1, 1, 16)
    cache = cache_of("cpu", torch.float32, 2, 4, 1, 16)
    with pytest.raises(SanitizerError, match="out of bounds"), sanitize():
        kv_cache_write(key, key, cache.key, cache.value, torch.tensor([8]))


def test_offsets_are_64_bit() -> None:
    """Rows 2^30 elements apart in the input, blocks of 2^30 in the cache, and a slot's stride
    that leads back: every product but the sum is beyond 2^31."""
    key, cache = torch.ones(16), torch.zeros(16)
    slots = torch.tensor([3, -1, -1, -1], dtype=torch.int32)
    with sanitize():
        kv_cache_write_kernel[(1,)](
            key, key, cache, cache.clone(), None, None, slots, 4,
            2**30, 0, 2**30, 0, 2**31 - 1, 1 - 2**31, 0, 0, 0, 0,
            HEADS=1, HEAD_DIM=16, BLOCK_SIZE=2, ROWS=4, COLUMNS=16, CODING="as it is",
        )  # fmt: skip
        slots = torch.tensor([5, -1, -1, -1], dtype=torch.int32)
        kv_cache_write_kernel[(1,)](
            key, key, cache, cache.clone(), None, None, slots, 4,
            2**30, 0, 2**30, 0, 2**30, -(2**31), 0, 0, 0, 0,
            HEADS=1, HEAD_DIM=16, BLOCK_SIZE=2, ROWS=4, COLUMNS=16, CODING="as it is",
        )  # fmt: skip
        kv_cache_write_kernel[(1,)](  # heads 2 and 3 of 4, masked off, would wrap
            key, key, cache, cache.clone(), None, None, torch.tensor([0]), 1,
            0, 2**30, 0, 2**30, 0, 0, 2**30, 0, 0, 0,
            HEADS=4, HEAD_DIM=16, BLOCK_SIZE=2, ROWS=4, COLUMNS=16, CODING="as it is",
        )  # fmt: skip
    assert cache.eq(1).all()


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "gfx942"])
@pytest.mark.parametrize("head_dim", [1, 64, 80, 128, 1024])
def test_any_number_of_tokens_fits_the_grid(arch: str, head_dim: int) -> None:
    """65,536 tokens and more lie along x, whose limit is 2^31 - 1."""
    launch = choose_launch(head_dim, 2, arch)
    assert launch.columns >= head_dim
    assert -(-(2**20) * 128 // launch.rows) < 2**31


def test_wrong_tensors_are_refused_with_what_was_wanted() -> None:
    key = torch.zeros(3, 2, 16)
    slots = torch.zeros(3, dtype=torch.int64)
    plain = cache_of("cpu", torch.float32, 2, 4, 2, 16)
    codes = cache_of("cpu", torch.int8, 2, 4, 2, 16)

    def refused(message: str, *arguments: torch.Tensor, **scales: torch.Tensor) -> None:
        with pytest.raises(KernelInputError, match=message):
            kv_cache_write(*arguments, **scales)

    k, v = plain.key, plain.value
    refused(r"key has shape \(2, 16\), wanted \[num_tokens", key[0], key, k, v, slots)
    refused("key is int32, wanted float16", key.int(), key, k, v, slots)
    refused("value is float16, wanted float32", key, key.half(), k, v, slots)
    refused(r"value has shape \(2, 2, 16\)", key, key[:2], k, v, slots)
    refused("key_cache is bfloat16, wanted float32 or int8", key, key, k.bfloat16(), v, slots)
    refused("value_cache is float16", key, key, k, v.half(), slots)
    refused("value_cache has shape", key, key, k, v[:1], slots)
    refused(r"key has shape \(3, 2, 16\), wanted \(3, 1, 16\)", key, key, k[:, :, :1],
            v[:, :, :1], slots)  # fmt: skip
    refused("strides", key, key, k, v.contiguous(), slots)
    refused("adjacent", key, key, k.transpose(2, 3), v.transpose(2, 3), slots)
    refused("adjacent", key.transpose(1, 2).contiguous().transpose(1, 2), key, k, v, slots)
    refused("slot_mapping is float32, wanted int32 or int64", key, key, k, v, slots.float())
    refused(r"slot_mapping has shape \(2,\), wanted \(3,\)", key, key, k, v, slots[:2])
    refused("needs key_scales and value_scales", key, key, codes.key, codes.value, slots)
    refused("has no scales", key, key, k, v, slots, **codes.scale_arguments)
    bad = dict(codes.scale_arguments, key_scales=codes.scales[0].double())
    refused("key_scales is float64", key, key, codes.key, codes.value, slots, **bad)
    bad = dict(codes.scale_arguments, key_scales=codes.scales[0, :1])
    refused("key_scales has shape", key, key, codes.key, codes.value, slots, **bad)
    refused("key_cache has blocks of 0 tokens", key, key, k[:, :0], v[:, :0], slots)
    refused("one device", key, key, k, v, slots.to("meta"))


@pytest.mark.slow
@settings(max_examples=400)
@given(
    heads=st.integers(1, 9),
    head_dim=st.integers(1, 200),
    dtype=DTYPES,
    codes=st.sampled_from([None, *CODES]),
    layout=LAYOUTS,
    power=st.integers(-40, 14),
    seed=SEEDS,
)
def test_tokens_go_to_their_slots_widely(
    device: str,
    heads: int,
    head_dim: int,
    dtype: torch.dtype,
    codes: torch.dtype | None,
    layout: str,
    power: int,
    seed: int,
) -> None:
    rows = [rows_of((21, heads, head_dim), dtype, seed + i, scale=2.0**power) for i in (0, 1)]
    key, value = rows
    slots = slots_of(21, 24, seed, padding=True)
    shape = (codes or dtype, 6, 4, heads, head_dim, layout)
    cache, wanted = cache_of(device, *shape), cache_of("cpu", *shape)
    with watched(device):
        kv_cache_write(
            key.to(device),
            value.to(device),
            cache.key,
            cache.value,
            slots.to(device),
            **cache.scale_arguments,
        )
    kv_cache_write_reference(key, value, wanted.key, wanted.value, slots, **wanted.scale_arguments)
    for written, expected in zip(cache.memory, wanted.memory, strict=True):
        assert torch.equal(written, expected)
