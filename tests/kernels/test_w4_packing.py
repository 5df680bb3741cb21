"""Packed 4-bit weights, nibble by nibble against unpackers that loop."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.errors import KernelInputError
from kernels.w4_packing import PADDED_TO, from_awq, from_gptq, pack_int4
from tests.kernels.strategies import SEEDS

GROUPS = st.sampled_from([32, 64, 96, 128, 256, -1])


def integers(shape: tuple[int, ...], seed: int, high: int = 16) -> torch.Tensor:
    return torch.randint(0, high, shape, generator=torch.Generator().manual_seed(seed))


def scales_of(shape: tuple[int, ...], seed: int, dtype: torch.dtype) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return (torch.rand(shape, generator=generator) + 0.5).to(dtype) / 16


def words_of(nibbles: list[int]) -> int:
    """Eight nibbles, the lowest first, as the signed integer that int32 holds."""
    word = sum(nibble << 4 * place for place, nibble in enumerate(nibbles))
    return word - (1 << 32) if word >= 1 << 31 else word


@settings(max_examples=40)
@given(
    inputs=st.integers(1, 300),
    outputs=st.integers(1, 9),
    group=GROUPS,
    symmetric=st.booleans(),
    dtype=st.sampled_from([torch.float16, torch.bfloat16]),
    seed=SEEDS,
)
def test_a_packed_weight_is_scale_times_code_less_zero(
    inputs: int, outputs: int, group: int, symmetric: bool, dtype: torch.dtype, seed: int
) -> None:
    """Bit for bit, for every K: the last group and the last block may be short."""
    groups = 1 if group == -1 else -(-inputs // group)
    codes = integers((inputs, outputs), seed)
    scales = scales_of((groups, outputs), seed + 1, dtype)
    zeros = None if symmetric else integers((groups, outputs), seed + 2)
    packed = pack_int4(codes, scales, zeros, group)
    assert packed.codes.shape == (outputs, -(-inputs // PADDED_TO) * PADDED_TO // 2)
    dense = packed.dequantized(torch.float64)
    for k in range(inputs):
        byte = packed.codes[:, k // 64 * 32 + k % 32]
        assert torch.equal(byte >> 4 if k % 64 >= 32 else byte & 15, codes[k])
        at = 0 if group == -1 else k // group
        zero = 8 if zeros is None else zeros[at]
        assert torch.equal(dense[k], scales[at].double() * (codes[k] - zero))


@settings(max_examples=30)
@given(
    words=st.integers(1, 12),
    outputs=st.sampled_from([8, 16]),
    version=st.sampled_from([1, 2]),
    act_order=st.booleans(),
    seed=SEEDS,
)
def test_gptq_is_read_as_by_a_loop_over_nibbles(
    words: int, outputs: int, version: int, act_order: bool, seed: int
) -> None:
    inputs, group = 8 * words, 32
    groups = -(-inputs // group)
    codes, zeros = integers((inputs, outputs), seed), integers((groups, outputs), seed + 1)
    scales = scales_of((groups, outputs), seed + 2, torch.float16)
    g_idx = torch.arange(inputs) // group
    if act_order:
        g_idx = g_idx[torch.randperm(inputs, generator=torch.Generator().manual_seed(seed))]
    stored = (zeros - 1) % 16 if version == 1 else zeros
    qweight = torch.tensor(
        [
            [words_of([int(codes[8 * row + i, n]) for i in range(8)]) for n in range(outputs)]
            for row in range(words)
        ],
        dtype=torch.int32,
    )
    qzeros = torch.tensor(
        [
            [words_of([int(stored[g, 8 * c + i]) for i in range(8)]) for c in range(outputs // 8)]
            for g in range(groups)
        ],
        dtype=torch.int32,
    )
    packed = from_gptq(qweight, qzeros, scales, g_idx, version=version)
    wanted = scales[g_idx].double() * (codes - zeros[g_idx])
    assert torch.equal(packed.dequantized(torch.float64), wanted)
    in_order = bool((g_idx.diff() >= 0).all())
    assert (packed.permutation is None) == in_order
    if in_order:
        plain = from_gptq(qweight, qzeros, scales, group=group, version=version)
        assert torch.equal(plain.codes, packed.codes)


def test_gptq_zeros_of_version_1_are_counted_up_field_by_field() -> None:
    """z = [0, 8, ... 8] is stored as 15 and sevens: adding 0x11111111 to the word would carry."""
    stored = torch.tensor([[words_of([15] + [7] * 7)]], dtype=torch.int32)
    qweight = torch.zeros(4, 8, dtype=torch.int32)
    packed = from_gptq(qweight, stored, torch.ones(1, 8).half(), version=1)
    assert packed.zeros.tolist() == [[0] + [8] * 7]


@settings(max_examples=30)
@given(inputs=st.integers(1, 100), words=st.integers(1, 3), seed=SEEDS)
def test_awq_is_read_as_by_a_loop_over_nibbles(inputs: int, words: int, seed: int) -> None:
    outputs, group = 8 * words, 32
    groups = -(-inputs // group)
    codes, zeros = integers((inputs, outputs), seed), integers((groups, outputs), seed + 1)
    scales = scales_of((groups, outputs), seed + 2, torch.float16)

    def packed_words(values: torch.Tensor) -> torch.Tensor:
        """Nibble i of a word is output [0, 2, 4, 6, 1, 3, 5, 7][i] of its eight."""
        order = [0, 2, 4, 6, 1, 3, 5, 7]
        return torch.tensor(
            [
                [words_of([int(row[8 * c + order[i]]) for i in range(8)]) for c in range(words)]
                for row in values
            ],
            dtype=torch.int32,
        )

    packed = from_awq(packed_words(codes), packed_words(zeros), scales, group=group)
    group_of = torch.arange(inputs) // group
    wanted = scales[group_of].double() * (codes - zeros[group_of])
    assert torch.equal(packed.dequantized(torch.float64), wanted)


@given(bits=st.integers(0x00800000, 0x7F7FFFF0), negative=st.booleans())
def test_fp32_scales_keep_20_bits_rounded_to_even(bits: int, negative: bool) -> None:
    scale = torch.tensor([[bits]], dtype=torch.int32).view(torch.float32)
    scale = -scale if negative else scale
    kept = pack_int4(torch.zeros(1, 1).int(), scale, None, 32).scales
    below, rest = bits // 16 * 16, bits % 16
    up = rest > 8 or (rest == 8 and below // 16 % 2 == 1)
    wanted = torch.tensor([[below + 16 * up]], dtype=torch.int32).view(torch.float32)
    assert torch.equal(kept.abs(), wanted)
    assert torch.equal(kept.sign(), scale.sign())


def test_a_decoding_step_reads_a_little_over_half_a_byte_a_weight() -> None:
    """And 4 bytes for every 128 weights: 6 % more."""
    packed = pack_int4(torch.zeros(512, 80).int(), torch.ones(4, 80), None, 128)
    assert packed.weight_bytes == 512 * 80 // 2 + 4 * 4 * 80
    assert packed.weight_bytes / (512 * 80) == 0.53125


def test_a_weight_moves_to_a_device_whole(device: str) -> None:
    packed = from_gptq(
        torch.zeros(8, 8).int(), torch.zeros(2, 1).int(), torch.ones(2, 8), torch.arange(64) % 2
    )
    moved = packed.to(device)
    assert moved.permutation is not None
    assert {moved.codes.device.type, moved.words.device.type, moved.permutation.device.type} == {
        device
    }


def test_wrong_weights_are_refused_with_what_was_wanted() -> None:
    codes, scales = torch.zeros(64, 8).int(), torch.ones(2, 8)
    with pytest.raises(KernelInputError, match="group 48, wanted a multiple of 32, or -1"):
        pack_int4(codes, scales, None, 48)
    with pytest.raises(KernelInputError, match=r"scales has shape \(2, 8\), wanted \(1, 8\)"):
        pack_int4(codes, scales, None, 64)
    with pytest.raises(KernelInputError, match=r"zeros has shape \(1, 8\), wanted \(2, 8\)"):
        pack_int4(codes, scales, codes[:1], 32)
    with pytest.raises(KernelInputError, match="codes from 0 to 16, wanted 0 to 15"):
        pack_int4(codes + 16 * torch.eye(64, 8).int(), scales, None, 32)
    with pytest.raises(KernelInputError, match="zeros from -1 to -1"):
        pack_int4(codes, scales, codes[:2] - 1, 32)
    with pytest.raises(KernelInputError, match=r"codes are torch\.float32, wanted integers"):
        pack_int4(codes.float(), scales, None, 32)
    with pytest.raises(KernelInputError, match="scales must be finite"):
        pack_int4(codes, scales / 0, None, 32)
    with pytest.raises(KernelInputError, match="scales must be finite"):
        pack_int4(codes, scales * torch.finfo(torch.float32).max, None, 32)
    with pytest.raises(KernelInputError, match=r"shape \(0, 8\), wanted \[K, N\]"):
        pack_int4(codes[:0], scales[:0], None, 32)


def test_a_packed_weight_whose_tensors_do_not_fit_is_refused() -> None:
    """However it was made: a product looks at none of it again."""
    packed = pack_int4(torch.zeros(200, 8).int(), torch.ones(2, 8), None, 128)

    def refused(message: str, **changes: object) -> None:
        with pytest.raises(KernelInputError, match=message):
            replace(packed, **changes)

    assert replace(packed, permutation=torch.arange(200)).permutation is not None
    refused("codes is int8, wanted uint8", codes=packed.codes.to(torch.int8))
    refused("words is float32, wanted int32", words=packed.scales)
    refused(r"codes has shape \(1024,\), wanted \[N, K/2\]", codes=packed.codes.flatten())
    refused(r"codes has shape \(8, 64\), wanted \(8, 128\)", codes=packed.codes[:, :64])
    refused(r"words has shape \(1, 8\), wanted \(2, 8\)", words=packed.words[:1])
    refused(r"words has shape \(2, 8\), wanted \(1, 8\)", group=256)
    refused(r"in_features is 200 and group 100, wanted .* a multiple of 32", group=100)
    refused(r"codes must be adjacent.*contiguous\(\)", codes=packed.codes.t().contiguous().t())
    refused(r"permutation has shape \(199,\), wanted \(200,\)", permutation=torch.arange(199))
    refused("permutation is int32, wanted int64", permutation=torch.arange(200).int())


def test_wrong_checkpoints_are_refused_with_what_was_wanted() -> None:
    qweight, qzeros = torch.zeros(8, 8).int(), torch.zeros(2, 1).int()
    scales = torch.ones(2, 8)
    with pytest.raises(KernelInputError, match="version 3, wanted 1 or 2"):
        from_gptq(qweight, qzeros, scales, version=3)
    with pytest.raises(KernelInputError, match="qweight is int64, wanted int32"):
        from_gptq(qweight.long(), qzeros, scales)
    with pytest.raises(KernelInputError, match=r"qzeros has shape \(1, 1\), wanted \(2, 1\)"):
        from_gptq(qweight, qzeros[:1], scales)
    with pytest.raises(KernelInputError, match="N is 7, wanted a multiple of 8"):
        from_gptq(qweight[:, :7], qzeros, scales[:, :7])
    with pytest.raises(KernelInputError, match=r"different sizes.*shard after repacking"):
        from_gptq(qweight, qzeros, scales, torch.tensor([0] * 20 + [1] * 44))
    with pytest.raises(KernelInputError, match="g_idx from 0 to 2, but there are 2 groups"):
        from_gptq(qweight, qzeros, scales, torch.arange(64) % 3)
    with pytest.raises(KernelInputError, match=r"g_idx has shape \(63,\), wanted \(64,\)"):
        from_gptq(qweight, qzeros, scales, torch.arange(63) // 32)
    with pytest.raises(KernelInputError, match="K is 64 and group 128, but there are 2 groups"):
        from_gptq(qweight, qzeros, scales, group=128)
    with pytest.raises(KernelInputError, match="K is 63, which is no multiple of 2 groups"):
        from_awq(torch.zeros(63, 1).int(), qzeros, scales)
    with pytest.raises(KernelInputError, match=r"wanted \[K, N/8\] and \[groups, N\]"):
        from_awq(qweight[0], qzeros, scales)
