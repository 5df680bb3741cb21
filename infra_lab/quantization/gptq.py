"""GPTQ: round column after column, and let the columns still to come make up for each error.

Answers "how does GPTQ differ from rounding to nearest?" (Frantar et al. 2022). When column i is
rounded with error e, the best correction of the columns after it is -e / U_ii * U[i, i+1:], with
U^T U = H^-1 (their equation 3, for all rows at once and in a fixed order). It is Optimal Brain
Surgeon done in the order of the columns; where inputs do not go together (H diagonal) it rounds
to nearest. Corrections within a block are made at once, those of later columns by one product a
block: the result is the same, the time that of products.

One choice differs from the authors' code: a group's scale is taken from its columns after *all*
corrections so far. There columns beyond a block are still uncorrected when a group begins inside
one, and the result depends on the size of the block.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from infra_lab.errors import UsageError
from infra_lab.formats.quantized_weight import QuantizedWeight
from infra_lab.quantization.clipping import ClippingSearch, clipped_grid
from infra_lab.quantization.hessian import inverse_factor, require_hessian
from infra_lab.quantization.integer import (
    IntegerGrid,
    IntegerScheme,
    integer_weight,
    require_weight,
)


@dataclass(frozen=True, slots=True)
class GptqOptions:
    """Attributes:
    damping: part of the mean of H's diagonal that is added to it.
    act_order: columns of large inputs first, while there are others to make up for them. Groups
        are then of columns in that order, and the weight has a g_idx, unless `static_groups`.
    static_groups: scales of the weight as it was, by groups in its own order: no g_idx.
    block_size: columns corrected at once; it changes the time only.
    clipping: shrinks each group's range to where rounding it costs least.
    """

    damping: float = 0.01
    act_order: bool = False
    static_groups: bool = False
    block_size: int = 128
    clipping: ClippingSearch | None = None

    def __post_init__(self) -> None:
        if self.block_size < 1:
            raise UsageError(f"a block has at least 1 column, not {self.block_size}")


DEFAULT_OPTIONS = GptqOptions()


def gptq(
    weight: torch.Tensor,
    hessian: torch.Tensor,
    scheme: IntegerScheme,
    options: GptqOptions = DEFAULT_OPTIONS,
) -> QuantizedWeight:
    """A weight [out, in] as integers, by the Hessian [in, in] of its inputs.

    Raises UsageError for NaN or infinity in either, and for shapes that do not fit.
    """
    weight = require_weight(weight)
    in_features = weight.shape[1]
    hessian = require_hessian(hessian, in_features)
    order = torch.arange(in_features, device=weight.device)
    if options.act_order:
        order = hessian.diagonal().argsort(descending=True, stable=True)
    upper = inverse_factor(hessian[order][:, order], options.damping).to(weight.dtype)
    group_size = scheme.group_size(in_features)
    # A scale for whole rows is that of the weight as it was: nothing is corrected before column 0.
    fixed = options.static_groups or not isinstance(scheme.granularity, int)
    grids = clipped_grid(weight, scheme, options.clipping) if fixed else None
    columns = weight.T[order].contiguous()  # a column lies in one piece, and is changed in place
    codes = torch.empty_like(columns)
    group_of = (order // group_size).tolist()
    fitted: list[IntegerGrid] = []
    # A group's columns must all be corrected when it begins: no group lies in two blocks.
    block_size = options.block_size
    if not fixed:
        block_size = max(block_size // group_size, 1) * group_size
    for start in range(0, in_features, block_size):
        end = min(start + block_size, in_features)
        errors = torch.empty_like(columns[start:end])
        for i in range(start, end):
            if grids is not None:
                grid = grids[:, group_of[i]]
            else:
                if i % group_size == 0:
                    group = columns[i : i + group_size].T
                    fitted.append(clipped_grid(group, scheme, options.clipping)[:, 0])
                grid = fitted[-1]
            codes[i] = grid.encode(columns[i])
            error = (columns[i] - grid.decode(codes[i])) / upper[i, i]
            columns[i + 1 : end].addr_(upper[i, i + 1 : end], error, alpha=-1)
            errors[i - start] = error
        columns[end:].addmm_(upper[start:end, end:].T, errors, alpha=-1)
    if grids is None:
        scales = torch.stack([grid.scales for grid in fitted], 1)
        grids = IntegerGrid(scheme.bits, scales, torch.stack([grid.zeros for grid in fitted], 1))
    back = order.argsort()
    g_idx = back // group_size if options.act_order and not fixed else None
    return integer_weight(codes[back].T.contiguous(), grids, scheme, g_idx)
