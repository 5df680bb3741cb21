"""Linear layers, where nearly all of a model's time goes: y = x W + b.

Answers "why is decoding memory-bound and prefill compute-bound?": a step reads W once, for
one row or for a thousand. In fp32 on a CPU the weight is packed for our own kernel
(`PackedLinear`); elsewhere, and where that kernel cannot be compiled, torch multiplies.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from infra_lab.native import library, ops


class Linear(Protocol):
    """What a model needs of a linear layer."""

    in_features: int
    out_features: int

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        """x: [num_tokens, in_features] -> a new tensor [num_tokens, out_features]."""
        ...

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        """Rows of the matrix as checkpoints store it, [out_features, in_features]."""
        ...


class DenseLinear:
    """A plain product with W as [in_features, out_features].

    At the few rows of a decode step `x @ W` streams this layout faster than `F.linear` does
    the checkpoint's own, [out, in].
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        self.in_features, self.out_features = weight.shape
        self.weight = weight
        self.bias = bias

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        if self.bias is None:
            return torch.mm(x, self.weight)
        return torch.addmm(self.bias, x, self.weight)

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        return self.weight.index_select(1, indices).T.contiguous()


class PackedLinear:
    """fp32 on a CPU: W lies in panels that the kernel reads as one stream (native/linear.c).

    From 4 to 64 rows it takes 0.75 to 0.9 of the time of MKL's product on a weight that MKL
    has packed, and of a plain product less still.
    """

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor | None = None) -> None:
        """weight: [out_features, in_features]; it is copied, not kept."""
        self.out_features, self.in_features = weight.shape
        self.bias = bias
        self.packed = ops.pack_weight(weight)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y = ops.linear(x.contiguous(), self.packed, self.out_features)
        return y if self.bias is None else y.add_(self.bias)

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        width = self.packed.shape[2]
        return self.packed[indices // width, :, indices % width]


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
    if device.type == "cpu" and library.serves(parts[0]):
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
