"""GGUF's blocks as quantized weights and back: Q4_0, Q4_1, Q8_0, and Q4_K to read.

Answers "what is in a Q4_K block?": 256 weights as eight groups of 32, each with a 6-bit scale and a
6-bit minimum, which two fp16 numbers of the whole block scale.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from infra_lab.errors import UsageError
from infra_lab.formats.quantized_weight import QuantizedWeight
from infra_lab.formats.weight_format import (
    integer_table,
    integer_zeros,
    is_integer,
    rounded,
)

BLOCK = 32
READABLE = ("Q4_0", "Q4_1", "Q8_0", "Q4_K")
WRITABLE = ("Q4_0", "Q4_1", "Q8_0")


def read_blocks(rows: torch.Tensor, kind: str) -> QuantizedWeight:
    """uint8 [out_features, row_bytes], rows of whole blocks, of one of the READABLE kinds."""
    return _READERS[kind](rows)


def _halves(blocks: torch.Tensor, start: int, count: int) -> torch.Tensor:
    """`count` fp16 numbers from byte `start` of every block: fp32 [rows, blocks, count]."""
    return blocks[..., start : start + 2 * count].contiguous().view(torch.float16).float()


def _nibbles(packed: torch.Tensor) -> torch.Tensor:
    """Byte i of a run holds weight i in its low nibble and weight i + n in its high one."""
    return torch.cat([packed & 15, packed >> 4], dim=-1)


def _q4_0(rows: torch.Tensor) -> QuantizedWeight:
    """18 bytes: d (fp16), 16 bytes of nibbles; w = d * (q - 8)."""
    blocks = rows.view(len(rows), -1, 18)
    codes = _nibbles(blocks[..., 2:]).flatten(1)
    scales = _halves(blocks, 0, 1).flatten(1)
    return QuantizedWeight(codes, integer_table(4, signed=True), scales, 4, BLOCK)


def _q4_1(rows: torch.Tensor) -> QuantizedWeight:
    """20 bytes: d and m (fp16), 16 bytes of nibbles; w = d * q + m."""
    blocks = rows.view(len(rows), -1, 20)
    codes = _nibbles(blocks[..., 4:]).flatten(1)
    scales, offsets = _halves(blocks, 0, 2).unbind(dim=-1)
    return QuantizedWeight(
        codes,
        integer_table(4, signed=False),
        scales.contiguous(),
        4,
        BLOCK,
        offsets=offsets.contiguous(),
    )


def _q8_0(rows: torch.Tensor) -> QuantizedWeight:
    """34 bytes: d (fp16), 32 signed bytes; w = d * q."""
    blocks = rows.view(len(rows), -1, 34)
    codes = blocks[..., 2:].flatten(1) ^ 128
    scales = _halves(blocks, 0, 1).flatten(1)
    return QuantizedWeight(codes, integer_table(8, signed=True), scales, 8, BLOCK)


def _q4_k(rows: torch.Tensor) -> QuantizedWeight:
    """144 bytes for 256 weights: d and dmin (fp16), eight 6-bit scales and eight 6-bit minima in
    12 bytes, 128 bytes of nibbles, each 32 of which hold two groups; w = d * s * q - dmin * m."""
    blocks = rows.view(len(rows), -1, 144)
    factors = _halves(blocks, 0, 2)
    small = blocks[..., 4:16]
    low, high, rest = small[..., :4], small[..., 4:8], small[..., 8:]
    # The first four are the low six bits of their bytes; the last four have their low four bits
    # in a byte of their own and the two others above the first four.
    scale_codes = torch.cat([low & 63, (rest & 15) | (low >> 6 << 4)], dim=-1)
    minimum_codes = torch.cat([high & 63, (rest >> 4) | (high >> 6 << 4)], dim=-1)
    codes = _nibbles(blocks[..., 16:].reshape(len(rows), -1, 4, 32)).flatten(1)
    return QuantizedWeight(
        codes,
        integer_table(4, signed=False),
        (factors[..., :1] * scale_codes).flatten(1),
        4,
        BLOCK,
        offsets=-(factors[..., 1:] * minimum_codes).flatten(1),
    )


_READERS: dict[str, Callable[[torch.Tensor], QuantizedWeight]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
}


@dataclass(frozen=True, slots=True)
class GGUFFormat:
    """What a GGUF file keeps a matrix in: its rows are blocks of 32 weights, end to end.

    Attributes:
        kind: one of WRITABLE.
    """

    kind: str = "Q4_0"

    def __post_init__(self) -> None:
        if self.kind not in WRITABLE:
            raise UsageError(f"of GGUF's types {', '.join(WRITABLE)} are written, not {self.kind}")

    @property
    def bits(self) -> int:
        return 8 if self.kind == "Q8_0" else 4

    @property
    def label(self) -> str:
        return f"GGUF {self.kind}"

    def as_stored(self, weight: QuantizedWeight) -> QuantizedWeight:
        """In groups of 32, with scales (and in Q4_1 offsets, into which zero points go) in fp16.

        Raises UsageError, without the layer's name, when the format cannot hold the weight.
        """
        weight = self._in_blocks(weight)
        if self.kind == "Q4_1":
            offsets = weight.values[0].expand_as(weight.scales)
            if weight.zeros is not None:
                offsets = offsets - weight.zeros
            offsets = offsets * weight.scales
            if weight.offsets is not None:
                offsets = offsets + weight.offsets
            return replace(
                weight,
                values=integer_table(4, signed=False),
                scales=rounded(weight.scales, torch.float16, self.label),
                zeros=None,
                offsets=rounded(offsets, torch.float16, self.label),
            )
        if not torch.all(integer_zeros(weight, self.label) == 2 ** (self.bits - 1)):
            raise UsageError(f"{self.label} is symmetric, and this weight has zero points")
        return replace(
            weight,
            values=integer_table(self.bits, signed=True),
            scales=rounded(weight.scales, torch.float16, self.label),
            zeros=None,
        )

    def write(self, weight: QuantizedWeight) -> torch.Tensor:
        """uint8 [out_features, row_bytes]; raises like `as_stored`."""
        stored = self.as_stored(weight)
        codes = stored.codes.view(stored.out_features, -1, BLOCK)
        if self.kind == "Q8_0":
            quants = codes ^ 128
        else:
            quants = codes[..., : BLOCK // 2] | (codes[..., BLOCK // 2 :] << 4)
        parts = [stored.scales] if stored.offsets is None else [stored.scales, stored.offsets]
        halves = torch.stack(parts, dim=-1).to(torch.float16).view(torch.uint8)
        return torch.cat([halves, quants], dim=-1).flatten(1)

    def _in_blocks(self, weight: QuantizedWeight) -> QuantizedWeight:
        """The same with a scale for every 32 columns."""
        if not is_integer(weight) or weight.bits != self.bits:
            raise UsageError(
                f"{self.label} keeps integers of {self.bits} bits, and this weight is another's"
            )
        whole = weight.group_size >= weight.in_features
        if (
            weight.in_features % BLOCK
            or (weight.group_size % BLOCK and not whole)
            or weight.g_idx is not None
        ):
            raise UsageError(
                f"{self.label} keeps a scale for every {BLOCK} columns, and this weight has "
                f"{weight.in_features} in groups of {weight.group_size}"
                f"{'' if weight.g_idx is None else ' that are not consecutive'}"
            )
        group_of = torch.arange(0, weight.in_features, BLOCK) // weight.group_size

        def spread(numbers: torch.Tensor | None) -> torch.Tensor | None:
            return None if numbers is None else numbers[:, group_of]

        scales = spread(weight.scales)
        assert scales is not None
        return replace(
            weight,
            scales=scales,
            zeros=spread(weight.zeros),
            offsets=spread(weight.offsets),
            group_size=BLOCK,
        )
