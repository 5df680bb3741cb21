"""NF4: the sixteen numbers that a normal distribution would choose, and its scales quantized too.

Answers "why NF4 rather than int4, and what is double quantization?" (Dettmers et al. 2023, QLoRA).
Weights are about normal; the quantiles of a normal distribution, an exact zero among them, are
each met about equally often. A block of 64 weights is divided by its largest magnitude: 32 / 64 =
0.5 bits a weight, and 0.127 when the magnitudes in turn, less their mean, are 8 bits each in
blocks of 256. Bit for bit what bitsandbytes makes on a CPU.
"""

from __future__ import annotations

import torch

from infra_lab.errors import UsageError
from infra_lab.formats.bitsandbytes import double_quantization, undo_double_quantization
from infra_lab.formats.quantized_weight import QuantizedWeight
from infra_lab.formats.tables import nf4_table
from infra_lab.quantization.integer import require_weight

BLOCK_SIZE = 64
SMALLEST = 1e-38  # bitsandbytes divides by no less


def quantize_nf4(
    weight: torch.Tensor, double: bool = False, block_size: int = BLOCK_SIZE
) -> QuantizedWeight:
    """A weight [out, in] as NF4, in blocks along its rows.

    double: whether the scales are those that double quantization leaves; codes are chosen before,
    as bitsandbytes does.
    Raises UsageError for NaN, infinity or no matrix, and unless blocks divide the rows.
    """
    weight = require_weight(weight).float()
    out_features, in_features = weight.shape
    if block_size < 1 or in_features % block_size:
        raise UsageError(
            f"blocks of {block_size} do not divide rows of {in_features}: NF4's blocks run on into "
            "the next row there, which has no scales of its own"
        )
    blocks = weight.reshape(-1, block_size)
    largest = blocks.abs().amax(1)
    table = nf4_table()
    # The product with the inverse rounds twice, as theirs does.
    fractions = (blocks * (1.0 / largest.clamp(min=SMALLEST))[:, None]).clamp(-1, 1)
    codes = torch.bucketize(fractions, (table[1:] + table[:-1]) / 2)
    if double:
        largest = undo_double_quantization(*double_quantization(largest))
    return QuantizedWeight(
        codes.to(torch.uint8).view(weight.shape),
        table,
        largest.view(out_features, -1).contiguous(),
        4,
        block_size,
    )
