"""RMSNorm (Zhang and Sennrich 2019, eq. 4): x / sqrt(mean(x^2) + eps) * weight."""

from __future__ import annotations

import torch
import torch.nn.functional as F


class RMSNorm:
    """Normalises the last dimension; the mean is taken in fp32 whatever the dtype of x."""

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = eps

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [..., size] -> same shape and dtype."""
        if x.dtype == torch.float32:
            return F.rms_norm(x, self.weight.shape, self.weight, self.eps)
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return self.weight * (wide * scale).to(x.dtype)
