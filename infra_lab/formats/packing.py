"""Codes of a few bits, side by side in the 32-bit words of a checkpoint.

Answers "how do three-bit weights lie in int32 words?": one after the other from the lowest bit
up, and where 32 is no multiple of the bits, a code begins in one word and ends in the next.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

_WORD_BITS = 32
# AWQ's words hold eight columns so that its GPU kernel gets pairs of neighbours with two shifts.
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)


def num_words(count: int, bits: int) -> int:
    """32-bit words for that many codes."""
    return -(-count * bits // _WORD_BITS)


def pack(codes: torch.Tensor, bits: int, axis: int = 1) -> torch.Tensor:
    """Integers [rows, columns] below 2**bits -> int32, with ceil(n * bits / 32) words in place of
    the n codes along `axis`; what is left of the last word is zero."""
    lines = codes if axis == 1 else codes.T
    count = lines.shape[1]
    # 32 codes fill `bits` words exactly, and every 32 lie alike.
    padded = F.pad(lines.to(torch.int32), (0, -count % _WORD_BITS))
    padded = padded.view(len(lines), -1, _WORD_BITS)
    words = padded.new_zeros(padded.shape[0], padded.shape[1], bits)
    for index in range(_WORD_BITS):
        word, shift = divmod(index * bits, _WORD_BITS)
        field = padded[:, :, index]
        words[:, :, word] |= field << shift
        if shift + bits > _WORD_BITS:
            words[:, :, word + 1] |= field >> (_WORD_BITS - shift)
    words = words.flatten(1)[:, : num_words(count, bits)]
    return (words if axis == 1 else words.T).contiguous()


def unpack(words: torch.Tensor, bits: int, count: int, axis: int = 1) -> torch.Tensor:
    """int32 words -> uint8, `count` codes along `axis`: the reverse of `pack`."""
    lines = words if axis == 1 else words.T
    padded = F.pad(lines, (0, -lines.shape[1] % bits)).view(len(lines), -1, bits)
    codes = torch.empty(*padded.shape[:2], _WORD_BITS, dtype=torch.uint8)
    for index in range(_WORD_BITS):
        word, shift = divmod(index * bits, _WORD_BITS)
        field = padded[:, :, word] >> shift
        inside = _WORD_BITS - shift
        if inside < bits:
            # The shift dragged sign bits in: only the bits that were really there are kept.
            field = (field & (2**inside - 1)) | (padded[:, :, word + 1] << inside)
        codes[:, :, index] = field & (2**bits - 1)
    result = codes.flatten(1)[:, :count]
    return (result if axis == 1 else result.T).contiguous()


def pack_awq(codes: torch.Tensor) -> torch.Tensor:
    """4-bit codes [rows, columns] -> int32 [rows, columns / 8]: nibble i of a word is column
    AWQ_ORDER[i] of its eight."""
    return pack(_in_eights(codes, torch.tensor(AWQ_ORDER)), bits=4)


def unpack_awq(words: torch.Tensor) -> torch.Tensor:
    """The reverse of `pack_awq`: uint8 [rows, columns]."""
    codes = unpack(words, bits=4, count=8 * words.shape[1])
    return _in_eights(codes, torch.tensor(AWQ_ORDER).argsort())


def _in_eights(codes: torch.Tensor, order: torch.Tensor) -> torch.Tensor:
    return codes.view(codes.shape[0], -1, 8)[:, :, order].reshape(codes.shape)


def less_one(zeros: torch.Tensor, bits: int) -> torch.Tensor:
    """Zero points as GPTQ's first version keeps them: one less, each within its own field, so
    that a zero becomes 2**bits - 1 and borrows from no neighbour."""
    return torch.bitwise_and(zeros.to(torch.int32) - 1, 2**bits - 1)


def plus_one(stored: torch.Tensor, bits: int) -> torch.Tensor:
    """The reverse of `less_one`, likewise without a carry into the next field."""
    return torch.bitwise_and(stored.to(torch.int32) + 1, 2**bits - 1)
