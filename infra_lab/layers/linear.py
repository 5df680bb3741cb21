"""Linear layers, where nearly all of a model's time goes: y = x W + b.

Answers "why is decoding memory-bound and prefill compute-bound?": a step reads W once, for
one row or for a thousand. In fp32 on a CPU the weight is packed for our own kernel
(`PackedLinear`); elsewhere, and where that kernel cannot be compiled, torch multiplies.
"""

from __future__ import annotations

from collections.abc import Callable
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

    def __init__(
        self,
        weight: torch.Tensor,
        bias: torch.Tensor | None = None,
        empty: Callable[..., torch.Tensor] = torch.empty,
    ) -> None:
        """weight: [out_features, in_features]; it is copied, not kept. `empty` gives the memory
        of the copy."""
        self.out_features, self.in_features = weight.shape
        self.bias = bias
        self.packed = ops.pack_weight(weight, empty)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y = ops.linear(x.contiguous(), self.packed, self.out_features)
        return y if self.bias is None else y.add_(self.bias)

    def write(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """The same product into `out`, each row contiguous, without the bias."""
        ops.linear(x, self.packed, self.out_features, out)

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        width = self.packed.shape[2]
        return self.packed[indices // width, :, indices % width]


def make_linear(
    weight: torch.Tensor,
    bias: torch.Tensor | None = None,
    device: torch.device | None = None,
    empty: Callable[..., torch.Tensor] = torch.empty,
) -> Linear:
    """The layer for a matrix as a checkpoint stores it, in the fastest form there is for it.

    Args:
        weight: [out_features, in_features], on the CPU; it is copied, not kept.
        bias: [out_features], or None.
        device: where the layer shall live; the CPU if None.
        empty: gives the copy's memory on a CPU, such as `native.memory.Arena.empty`.
    """
    if device is None or device.type == "cpu":
        if library.serves(weight):
            return PackedLinear(weight, bias, empty)
        turned = empty(*weight.T.shape, dtype=weight.dtype)
    else:
        bias = None if bias is None else bias.to(device)
        turned = torch.empty(*weight.T.shape, dtype=weight.dtype, device=device)
    return DenseLinear(turned.copy_(weight.T), bias)
