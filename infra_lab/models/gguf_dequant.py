"""Turns GGUF's quantized blocks into float32, rows at a time.

`gguf.quants` is right but builds many temporaries. The types that models are mostly made of
are written out here in a third of its time and with no copy of the output; the rest go
through it. Tests hold the two to the same bits. Answers "how is a Q4_1 block laid out?".
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

_NAMES = (
    *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS"),
)
SUPPORTED_QUANTIZATIONS = frozenset(GGMLQuantizationType[name] for name in _NAMES)

_NIBBLE = np.uint8(0x0F)


def dequantize_rows(rows: Bytes, quantization: GGMLQuantizationType, out: Floats) -> None:
    """Dequantizes `rows` [n, row_bytes] into `out` [n, columns], which must be contiguous."""
    fast = _FAST.get(quantization)
    if fast is None:
        out[...] = dequantize(rows, quantization)
        return
    block_size, block_bytes = GGML_QUANT_SIZES[quantization]
    fast(rows.reshape(-1, block_bytes), out.reshape(-1, block_size))


def _halves(blocks: Bytes, start: int, count: int) -> Floats:
    """`count` fp16 numbers from byte `start` of every block, as float32 [blocks, count]."""
    return blocks[:, start : start + 2 * count].copy().view(np.float16).astype(np.float32)


def _f32(blocks: Bytes, out: Floats) -> None:
    out[...] = blocks.view(np.float32)


def _f16(blocks: Bytes, out: Floats) -> None:
    out[...] = blocks.view(np.float16)


def _bf16(blocks: Bytes, out: Floats) -> None:
    # A bfloat16 is the upper half of the float32 with the same value.
    np.left_shift(blocks.view(np.uint16), 16, out=out.view(np.uint32), dtype=np.uint32)


def _q4_0(blocks: Bytes, out: Floats) -> None:
    """18 bytes for 32 weights: scale d (fp16), 16 bytes of nibbles; w = d * (q - 8)."""
    _spread_nibbles(blocks[:, 2:], out)
    out -= 8
    out *= _halves(blocks, 0, 1)


def _q4_1(blocks: Bytes, out: Floats) -> None:
    """20 bytes for 32 weights: scale d and minimum m (fp16), 16 bytes of nibbles; w = d * q + m."""
    _spread_nibbles(blocks[:, 4:], out)
    scale_and_min = _halves(blocks, 0, 2)
    out *= scale_and_min[:, :1]
    out += scale_and_min[:, 1:]


def _spread_nibbles(packed: Bytes, out: Floats) -> None:
    """Byte i of a block holds weight i in its low nibble and weight i + 16 in its high one."""
    np.bitwise_and(packed, _NIBBLE, out=out[:, :16], casting="unsafe", dtype=np.uint8)
    np.right_shift(packed, 4, out=out[:, 16:], casting="unsafe", dtype=np.uint8)


def _q8_0(blocks: Bytes, out: Floats) -> None:
    """34 bytes for 32 weights: scale d (fp16), 32 signed bytes; w = d * q."""
    np.multiply(blocks[:, 2:].view(np.int8), _halves(blocks, 0, 1), out=out)


def _q6_k(blocks: Bytes, out: Floats) -> None:
    """210 bytes for 256 weights: low 4 bits (128), high 2 bits (64), 16 signed scales, d (fp16);
    each run of 16 weights has w = d * scale * (q - 32)."""
    n = len(blocks)
    low = blocks[:, :128].reshape(n, 2, 2, 32)  # [half, which 32 bytes]
    high = blocks[:, 128:192].reshape(n, 2, 32)
    quants = np.empty((n, 2, 4, 32), np.uint8)
    np.bitwise_and(low, _NIBBLE, out=quants[:, :, :2])
    np.right_shift(low, 4, out=quants[:, :, 2:])
    for quarter in range(4):
        quants[:, :, quarter] |= ((high >> np.uint8(2 * quarter)) & np.uint8(3)) << np.uint8(4)
    scales = blocks[:, 192:208].view(np.int8) * _halves(blocks, 208, 1)
    quants -= np.uint8(32)  # wraps; read back as signed
    np.multiply(
        quants.view(np.int8).reshape(n, 16, 16), scales[:, :, None], out=out.reshape(n, 16, 16)
    )


_FAST: dict[GGMLQuantizationType, Callable[[Bytes, Floats], None]] = {
    GGMLQuantizationType.F32: _f32,
    GGMLQuantizationType.F16: _f16,
    GGMLQuantizationType.BF16: _bf16,
    GGMLQuantizationType.Q4_0: _q4_0,
    GGMLQuantizationType.Q4_1: _q4_1,
    GGMLQuantizationType.Q8_0: _q8_0,
    GGMLQuantizationType.Q6_K: _q6_k,
}
