"""Weights that each format can hold, drawn at random; tests of codecs and writers share them."""

from __future__ import annotations

import torch

from infra_lab.formats.bitsandbytes import FourBitFormat, RowInt8Format
from infra_lab.formats.compressed_tensors import (
    FloatQuantizedFormat,
    IntQuantizedFormat,
    MXFP4Format,
)
from infra_lab.formats.fp8_block import FP8BlockFormat
from infra_lab.formats.gguf_blocks import GGUFFormat
from infra_lab.formats.quantized_weight import QuantizedWeight
from infra_lab.formats.tables import e2m1_table, e4m3_table, nf4_table
from infra_lab.formats.weight_format import WeightFormat, integer_table


def same(one: QuantizedWeight, other: QuantizedWeight) -> bool:
    """Whether all parts are equal, bit for bit but for the sign of zero."""
    if (one.bits, one.group_size) != (other.bits, other.group_size):
        return False
    for name in ("codes", "values", "scales", "zeros", "offsets", "g_idx"):
        mine, theirs = getattr(one, name), getattr(other, name)
        if (mine is None) != (theirs is None):
            return False
        if mine is not None and not torch.equal(mine.nan_to_num(), theirs.nan_to_num()):
            return False
    return True


def random_codes(
    generator: torch.Generator, rows: int, columns: int, values: torch.Tensor
) -> torch.Tensor:
    """uint8 [rows, columns], none of which stands for NaN."""
    codes = torch.randint(len(values), (rows, columns), generator=generator, dtype=torch.uint8)
    return torch.where(values[codes.int()].isnan(), 0, codes).to(torch.uint8)


def integer_weight(
    rows: int,
    columns: int,
    bits: int,
    group_size: int | None,
    *,
    symmetric: bool = True,
    act_order: bool = False,
    seed: int = 0,
) -> QuantizedWeight:
    """Codes and zero points from the whole range, scales like those of a trained layer."""
    generator = torch.Generator().manual_seed(seed)
    size = columns if group_size is None else group_size
    groups = -(-columns // size)
    values = integer_table(bits, signed=symmetric)
    zeros = torch.randint(2**bits, (rows, groups), generator=generator).float()
    order = torch.randperm(columns, generator=generator)
    return QuantizedWeight(
        random_codes(generator, rows, columns, values),
        values,
        torch.rand(rows, groups, generator=generator) * 0.02 + 1e-4,
        bits,
        size,
        zeros=None if symmetric else zeros,
        g_idx=(torch.arange(columns) // size)[order] if act_order else None,
    )


def weight_for(
    weight_format: WeightFormat | GGUFFormat, rows: int, columns: int, seed: int = 0
) -> QuantizedWeight:
    """One that the format can hold, with fp32 scales that it may have to round."""
    generator = torch.Generator().manual_seed(seed)

    def positive(*shape: int) -> torch.Tensor:
        return torch.rand(shape, generator=generator) * 0.02 + 1e-4

    match weight_format:
        case FourBitFormat():
            size = weight_format.block_size
            codes = random_codes(generator, rows, columns, nf4_table())
            return QuantizedWeight(codes, nf4_table(), positive(rows, columns // size), 4, size)
        case RowInt8Format():
            return integer_weight(rows, columns, 8, None, seed=seed)
        case IntQuantizedFormat():
            weight = integer_weight(
                rows, columns, 8, None, symmetric=weight_format.symmetric, seed=seed
            )
            if weight_format.granularity == "tensor":
                weight.scales[:] = weight.scales[0, 0]
                if weight.zeros is not None:
                    weight.zeros[:] = weight.zeros[0, 0]
            return weight
        case FloatQuantizedFormat():
            codes = random_codes(generator, rows, columns, e4m3_table())
            scales = positive(rows, 1)
            if weight_format.granularity == "tensor":
                scales[:] = scales[0, 0]
            return QuantizedWeight(codes, e4m3_table(), scales, 8, columns)
        case FP8BlockFormat():
            high, wide = weight_format.block
            codes = random_codes(generator, rows, columns, e4m3_table())
            scales = positive(-(-rows // high), -(-columns // wide))
            scales = scales.repeat_interleave(high, dim=0)[:rows]
            return QuantizedWeight(codes, e4m3_table(), scales, 8, wide)
        case MXFP4Format():
            codes = random_codes(generator, rows, columns, e2m1_table())
            exponents = torch.randint(-127, 120, (rows, columns // 32), generator=generator)
            scales = (2.0 ** exponents.double()).float()
            return QuantizedWeight(codes, e2m1_table(), scales, 4, 32)
        case GGUFFormat():
            return integer_weight(
                rows,
                columns,
                weight_format.bits,
                32,
                symmetric=weight_format.kind != "Q4_1",
                seed=seed,
            )
    return integer_weight(
        rows,
        columns,
        weight_format.bits,
        weight_format.group_size,
        symmetric=weight_format.symmetric,
        act_order=getattr(weight_format, "act_order", False),
        seed=seed,
    )
