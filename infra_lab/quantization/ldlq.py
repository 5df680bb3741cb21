"""LDLQ: QuIP's rounding, each column with the linear feedback of all errors before it.

Answers "is QuIP something else than GPTQ?" (Chee et al. 2023). With H = (U + I) D (U + I)^T, U
strictly upper triangular, column k becomes round(W_k + (W - Q)_{<k} U_{<k, k}): of all linear
feedbacks this one costs least, in the worst case and on average (theorem 1), about tr(D) a row.
GPTQ, written column by column, does exactly that (theorem 6): here another road to the same codes,
and what QuIP adds is the rotation before it (rotation.py), which makes tr(D) small and weights
even. The feedback needs the grid to be fixed before: each group's is that of the given weight.
"""

from __future__ import annotations

import torch

from infra_lab.formats.quantized_weight import QuantizedWeight
from infra_lab.quantization.clipping import ClippingSearch, clipped_grid
from infra_lab.quantization.hessian import damped, require_hessian
from infra_lab.quantization.integer import IntegerScheme, integer_weight, require_weight

BLOCK = 128  # columns whose feedback from earlier blocks is one product


def ldlq(
    weight: torch.Tensor,
    hessian: torch.Tensor,
    scheme: IntegerScheme,
    damping: float = 0.01,
    clipping: ClippingSearch | None = None,
) -> QuantizedWeight:
    """A weight [out, in] as integers, by the Hessian [in, in] of its inputs.

    Raises UsageError for NaN or infinity in either, and for shapes that do not fit.
    """
    weight = require_weight(weight)
    in_features = weight.shape[1]
    hessian = damped(require_hessian(hessian, in_features), damping)[0]
    feedback = ldl(hessian)[0].to(weight.dtype)
    grids = clipped_grid(weight, scheme, clipping)
    group_size = scheme.group_size(in_features)
    columns = weight.T.contiguous()
    codes, errors = torch.empty_like(columns), torch.zeros_like(columns)
    for start in range(0, in_features, BLOCK):
        end = min(start + BLOCK, in_features)
        earlier = feedback[:start, start:end].T @ errors[:start]
        for k in range(start, end):
            grid = grids[:, k // group_size]
            within = feedback[start:k, k] @ errors[start:k]
            codes[k] = grid.encode(columns[k] + earlier[k - start] + within)
            errors[k] = columns[k] - grid.decode(codes[k])
    return integer_weight(codes.T.contiguous(), grids, scheme)


def ldl(hessian: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """U [n, n] strictly upper triangular and D [n] with H = (U + I) diag(D) (U + I)^T.

    The Cholesky factor of H with rows and columns in reverse order, put back: lower becomes upper.
    """
    factor = torch.linalg.cholesky(hessian.flip(0, 1)).flip(0, 1)
    diagonal = factor.diagonal()
    return (factor / diagonal).triu(1), diagonal.square()
