"""What the codes of the formats that are not integers stand for.

Answers "why these sixteen numbers?": NF4's are quantiles of a normal distribution (QLoRA,
appendix E), the others a sign, an exponent and a mantissa.
"""

from __future__ import annotations

import torch

_NF4 = (
    *(-1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453),
    *(-0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0),
    *(0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224),
    *(0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0),
)
_E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


def nf4_table() -> torch.Tensor:
    """fp32 [16], ascending."""
    return torch.tensor(_NF4)


def e2m1_table() -> torch.Tensor:
    """fp32 [16]: MXFP4's numbers, 0 to 6 and then the same with a sign, -0 included."""
    positive = torch.tensor(_E2M1)
    return torch.cat([positive, -positive])


def e4m3_table() -> torch.Tensor:
    """fp32 [256]: every e4m3 code (with no infinities); 0x7f and 0xff are NaN."""
    return torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()


def dynamic_table() -> torch.Tensor:
    """fp32 [256]: bitsandbytes' dynamic 8-bit numbers, ascending (Dettmers, "8-bit Approximations
    for Parallelism in Deep Learning"): 2**e evenly spaced fractions below every power of ten
    from 1e-6 to 1, e = 0 to 6, with both signs, and 0 and 1."""
    numbers = [torch.tensor([0.0, 1.0])]
    for exponent in range(7):
        borders = torch.linspace(0.1, 1, 2**exponent + 1)
        fractions = (borders[:-1] + borders[1:]) / 2
        numbers += [10.0 ** (exponent - 6) * fractions, -(10.0 ** (exponent - 6)) * fractions]
    return torch.cat(numbers).sort().values
