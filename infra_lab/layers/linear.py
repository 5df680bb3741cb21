"""Linear layers, where nearly all of a model's time goes: y = x W + b.

Answers "why is decoding memory-bound and prefill compute-bound?": a step reads W once, for
one row or for a thousand. On a CPU with MKL the weight is packed once into the layout that
its kernels read (`PackedLinear`); elsewhere it is kept as [in_features, out_features].
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Protocol

import torch


class Linear(Protocol):
    """What a model needs of a linear layer."""

    in_features: int
    out_features: int

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [num_tokens, in_features] -> a new tensor [num_tokens, out_features]."""
        ...


class DenseLinear:
    """A plain product with W as [in_features, out_features].

    Checkpoints store [out, in]. At the few rows of a decode step `x @ W` on the transposed
    copy streams the weight faster than `F.linear` on the stored layout.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.in_features, self.out_features = weight.shape
        self.weight = weight
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.bias is None:
            return torch.mm(x, self.weight)
        return torch.addmm(self.bias, x, self.weight)


class PackedLinear:
    """fp32 on a CPU, W in MKL's own blocked layout (cblas_sgemm_pack): about 1.2 times as fast
    as a plain product from 4 rows on, for the packing is not done again in every call.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """weight: [out_features, in_features]; it is copied, not kept."""
        self.out_features, self.in_features = weight.shape
        self.bias = bias
        self._packed = torch.ops.mkl._mkl_reorder_linear_weight(weight.contiguous(), PACK_ROWS)
        # The operator wants the unpacked weight too, but reads only its shape.
        self._shape_only = torch.empty(1).expand(weight.shape)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y: torch.Tensor = torch.ops.mkl._mkl_linear(
            x, self._packed, self._shape_only, self.bias, x.shape[0]
        )
        return y


# The number of rows that MKL is told to pack for. The layout has been found not to depend on
# it, which `packing_works` makes sure of.
PACK_ROWS = 64


@cache
def packing_works() -> bool:
    """Whether this torch has MKL's packed product, and it is right at any number of rows.

    MKL promises the latter only for the rows it packed for, so it is tried: small and large,
    odd and even, against a plain product.
    """
    if not torch.backends.mkl.is_available():
        return False
    generator = torch.Generator().manual_seed(0)
    weight = torch.randn(200, 150, generator=generator)
    layer = PackedLinear(weight)
    for rows in (1, 2, 3, 5, 8, 13, 16, 17, 31, 32, 48, 63, 64, 65, 127, 200, 513, 1024):
        x = torch.randn(rows, 150, generator=generator)
        if not torch.allclose(layer(x), x @ weight.T, atol=1e-3, rtol=1e-3):
            return False
    return True


def make_linear(
    parts: Sequence[torch.Tensor],
    biases: Sequence[torch.Tensor] | None = None,
    device: torch.device | None = None,
) -> Linear:
    """One layer out of several matrices [out_i, in] that read the same input, side by side.

    Args:
        parts: as a checkpoint stores them, on the CPU.
        biases: [out_i] each, or None.
        device: where the layer shall live.
    """
    device = parts[0].device if device is None else device
    bias = None if biases is None else torch.cat(list(biases)).to(device)
    if device.type == "cpu" and parts[0].dtype == torch.float32 and packing_works():
        return PackedLinear(parts[0] if len(parts) == 1 else torch.cat(list(parts)), bias)
    return DenseLinear(_side_by_side(parts, device), bias)


def _side_by_side(parts: Sequence[torch.Tensor], device: torch.device) -> torch.Tensor:
    out_features = sum(part.shape[0] for part in parts)
    weight = torch.empty(parts[0].shape[1], out_features, dtype=parts[0].dtype, device=device)
    column = 0
    for part in parts:
        weight[:, column : column + part.shape[0]].copy_(part.T)
        column += part.shape[0]
    return weight
