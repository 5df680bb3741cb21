"""How the tests of the matrix products measure beside the rule of `kernels.testing.accuracy`."""

from __future__ import annotations

import torch


def mean_relative_error(out: torch.Tensor, truth: torch.Tensor) -> float:
    """mean |out - truth| / mean |truth|, as Marlin's tests measure it."""
    difference = (out.double() - truth).abs().mean()
    return float(difference / truth.abs().mean())
