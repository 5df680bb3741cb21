"""Finds again how scales were quantized twice, from nothing but what is left of them.

A checkpoint with double quantization that is read and written must not be quantized a third time.
Answers "can you undo a sum of a mean and scaled table entries?": there are many equations, exact to
the last bit, for two unknowns a block and one for all, so least squares hits their very bits.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

_ROUNDS = 12
_NEIGHBOURS = range(-3, 4)  # fp32 numbers around what least squares in fp64 says


def recovered(
    scales: torch.Tensor, table: torch.Tensor, block_size: int
) -> tuple[torch.Tensor, torch.Tensor, float] | None:
    """Codes (uint8 [n]), magnitudes of blocks (fp32) and mean, of which table[code] * magnitude +
    mean are these scales, fp32 [n], bit for bit; None where there are none to be found, as may be
    with a handful of scales.

    table: fp32 [256], ascending, with 1 as its largest and 0 in it.
    """
    count = len(scales)
    blocks = F.pad(scales, (0, -count % block_size)).view(-1, block_size)
    real = F.pad(torch.ones(count), (0, -count % block_size)).view(blocks.shape).bool()
    mean = scales.double().mean()
    codes = torch.zeros(0)
    for _ in range(_ROUNDS):
        before = codes
        codes, magnitudes = _assigned(blocks, real, mean, table)
        mean, magnitudes = _least_squares(blocks, real, codes, table)
        if torch.equal(codes, before):
            break
    for step in _NEIGHBOURS:
        offset = _neighbour(mean.float(), step)
        exact = _exact_magnitudes(blocks, real, codes, magnitudes.float(), table, offset)
        if exact is not None:
            return codes.to(torch.uint8).flatten()[:count], exact, offset.item()
    return None


def _assigned(
    blocks: torch.Tensor, real: torch.Tensor, mean: torch.Tensor, table: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The nearest code of every scale, if the largest of its block has the table's largest."""
    centred = torch.where(real, blocks.double() - mean, 0.0)
    upper, lower = centred.amax(dim=1), -centred.amin(dim=1) / -table[0].double()
    magnitudes = torch.maximum(upper, lower)
    numbers = table.double()
    fractions = centred / torch.where(magnitudes == 0, 1.0, magnitudes)[:, None]
    codes = torch.searchsorted((numbers[1:] + numbers[:-1]) / 2, fractions)
    return codes, magnitudes


def _least_squares(
    blocks: torch.Tensor, real: torch.Tensor, codes: torch.Tensor, table: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """The mean and the magnitudes that fit best, for these codes: each block's magnitude is
    projected out of the equations for the mean first."""
    numbers = torch.where(real, table.double()[codes], 0.0)
    values, ones = torch.where(real, blocks.double(), 0.0), real.double()
    squares = numbers.square().sum(dim=1)
    safe = torch.where(squares == 0, 1.0, squares)
    share = numbers.sum(dim=1) / safe
    weight = ones - share[:, None] * numbers
    mean = (weight * values).sum() / (weight * ones).sum()
    magnitudes = (numbers * (values - mean * ones)).sum(dim=1) / safe
    return mean, magnitudes


def _exact_magnitudes(
    blocks: torch.Tensor,
    real: torch.Tensor,
    codes: torch.Tensor,
    near: torch.Tensor,
    table: torch.Tensor,
    offset: torch.Tensor,
) -> torch.Tensor | None:
    """fp32 [blocks] that give every scale its bits, or None."""
    found, open_ = near.clone(), torch.ones(len(near), dtype=torch.bool)
    numbers = table[codes]
    for step in _NEIGHBOURS:
        magnitudes = _neighbour(near, step)
        fits = ((numbers * magnitudes[:, None] + offset == blocks) | ~real).all(dim=1) & open_
        found = torch.where(fits, magnitudes, found)
        open_ &= ~fits
    return None if open_.any() else found


def _neighbour(numbers: torch.Tensor, step: int) -> torch.Tensor:
    direction = torch.full_like(numbers, torch.inf if step > 0 else -torch.inf)
    for _ in range(abs(step)):
        numbers = torch.nextafter(numbers, direction)
    return numbers
