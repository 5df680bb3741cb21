"""Codes in 32-bit words: every width, both axes, and what goes wrong at the borders of fields."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infra_lab.formats.packing import (
    AWQ_ORDER,
    less_one,
    num_words,
    pack,
    pack_awq,
    plus_one,
    unpack,
    unpack_awq,
)


@st.composite
def code_matrices(draw: st.DrawFn) -> tuple[torch.Tensor, int]:
    bits = draw(st.integers(2, 8))
    rows, columns = draw(st.integers(1, 4)), draw(st.integers(1, 100))
    generator = torch.Generator().manual_seed(draw(st.integers(0, 999)))
    shape = (rows, columns)
    return torch.randint(2**bits, shape, generator=generator, dtype=torch.uint8), bits


@settings(max_examples=40)
@given(code_matrices())
def test_words_read_as_one_long_number_have_each_code_at_its_bit(
    matrix: tuple[torch.Tensor, int],
) -> None:
    codes, bits = matrix
    words = pack(codes, bits)
    assert words.shape == (len(codes), num_words(codes.shape[1], bits))
    for row, line in zip(codes.tolist(), words.tolist(), strict=True):
        number = sum((word % 2**32) << (32 * index) for index, word in enumerate(line))
        assert number == sum(code << (bits * index) for index, code in enumerate(row))


@settings(max_examples=40)
@given(code_matrices())
def test_unpacking_gives_back_what_was_packed_along_either_axis(
    matrix: tuple[torch.Tensor, int],
) -> None:
    codes, bits = matrix
    assert torch.equal(unpack(pack(codes, bits), bits, codes.shape[1]), codes)
    turned = codes.T.contiguous()
    words = pack(turned, bits, axis=0)
    assert words.shape == (num_words(codes.shape[1], bits), len(codes))
    assert torch.equal(unpack(words, bits, codes.shape[1], axis=0), turned)


def test_three_bits_cross_word_borders() -> None:
    """32 codes in 3 words: the eleventh has two bits in the first word and one in the second."""
    codes = torch.zeros(1, 32, dtype=torch.uint8)
    codes[0, 10], codes[0, 21] = 0b101, 0b110
    words = [word % 2**32 for word in pack(codes, 3)[0].tolist()]
    assert words == [0b01 << 30, (0b1 << 0) | (0b0 << 31), 0b11]


def test_awq_takes_even_columns_first() -> None:
    codes = torch.arange(8, dtype=torch.uint8).view(1, 8)
    assert pack_awq(codes).tolist() == [[0x75316420]]
    assert AWQ_ORDER == (0, 2, 4, 6, 1, 3, 5, 7)


@settings(max_examples=40)
@given(st.integers(1, 4), st.integers(1, 6), st.integers(0, 999))
def test_awq_words_give_back_their_columns(rows: int, words: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    codes = torch.randint(16, (rows, 8 * words), generator=generator, dtype=torch.uint8)
    assert torch.equal(unpack_awq(pack_awq(codes)), codes)


def test_a_zero_point_of_zero_borrows_from_no_neighbour() -> None:
    """Packed words less 0x11111111 would be 0xffffffff, and 0x88888890 where one is added again."""
    zeros = torch.tensor([[0, 8, 8, 8, 8, 8, 8, 8]])
    stored = less_one(zeros, 4)
    assert pack(stored, 4).item() % 2**32 == 0x7777777F
    assert pack(plus_one(unpack(pack(stored, 4), 4, 8), 4), 4).item() % 2**32 == 0x88888880


@pytest.mark.parametrize("bits", [2, 3, 4, 8])
def test_every_zero_point_comes_back_from_one_less(bits: int) -> None:
    zeros = torch.arange(2**bits)
    assert torch.equal(plus_one(less_one(zeros, bits), bits), zeros.int())
