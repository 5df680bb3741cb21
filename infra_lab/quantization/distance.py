"""How far numbers are from those they stand for, as one figure without a unit."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


def relative_error(found: torch.Tensor, wanted: torch.Tensor) -> float:
    """|found - wanted| / |wanted|, Frobenius norms, of any one shape.

    Computed in the type that the two promote to: give `wanted` in float64 where the error may be
    near a narrower type's own rounding.
    """
    return float((found - wanted).norm() / wanted.norm())
