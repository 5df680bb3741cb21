"""RMSNorm (Zhang and Sennrich 2019, eq. 4): x / sqrt(mean(x^2) + eps) * weight."""

from __future__ import annotations

import torch

from infra_lab.kernels_guard import kernels_serve
from infra_lab.layers import triton_ops
from infra_lab.native import library, ops


class RMSNorm:
    """Normalises the last dimension; the mean is taken in fp32 whatever the dtype of x.

    On a CPU torch's own rms_norm is a dozen operations, and at one row a step would spend a
    sixth of its time in them: hence the kernel.
    """

    def __init__(self, weight: torch.Tensor, eps: float) -> None:
        self.weight = weight
        self.eps = eps
        self._is_native = library.serves(weight)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [..., size] -> same shape and dtype."""
        if self._is_native and x.dim() == 2 and x.is_contiguous():
            return ops.rms_norm(x, None, self.weight, self.eps)
        if self._serves_triton(x):
            return triton_ops.rms_norm(x, self.weight, self.eps)
        wide = x.float()
        scale = torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (wide * scale).to(x.dtype) * self.weight

    def after_adding(self, x: torch.Tensor, delta: torch.Tensor | None) -> torch.Tensor:
        """Adds `delta`, if there is one, to the residual stream `x` [num_tokens, size] in place
        and normalises the sum: one pass over memory less than an addition of its own."""
        if delta is None:
            return self(x)
        if self._is_native and x.is_contiguous() and delta.stride(-1) == 1:
            return ops.rms_norm(x, delta, self.weight, self.eps)
        if self._serves_triton(x) and delta.stride(-1) == 1:
            return triton_ops.add_rms_norm(x, delta, self.weight, self.eps)
        return self(x.add_(delta))

    def _serves_triton(self, x: torch.Tensor) -> bool:
        return not self._is_native and x.stride(-1) == 1 and kernels_serve(x)
