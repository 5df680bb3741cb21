"""W8A8 on a CPU: int8 weights by int8 tokens, an exact integer sum (native/int8_linear.c)."""

from __future__ import annotations

from collections.abc import Callable

import torch

from infra_lab.formats.quantized_weight import ActivationFormat, QuantizedWeight
from infra_lab.native import int8


class Int8Linear:
    """What `QuantizedInput` over `QuantizedLinear` computes, but for the rounding of its sums: here
    there is none before the end."""

    def __init__(
        self,
        weight: QuantizedWeight,
        bias: torch.Tensor | None,
        activation: ActivationFormat,
        empty: Callable[..., torch.Tensor] = torch.empty,
    ) -> None:
        """A weight and an activation that `serves_int8` says yes to; the weight is copied."""
        self.out_features, self.in_features = weight.out_features, weight.in_features
        self.bias = bias
        # Modulo 256: as the integer lies between -128 and 127, so the code does within a byte.
        codes = weight.codes + (int(weight.values[0]) + 128) % 256
        largest = 2 ** (activation.bits - 1) - 1
        scales = weight.scales.flatten()
        self.matrix = int8.Int8Matrix(codes, scales, largest, activation.scale, empty)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y = int8.int8_linear(x.contiguous(), self.matrix)
        return y if self.bias is None else y.add_(self.bias)

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        return self.matrix.rows(indices)


def serves_int8(weight: QuantizedWeight, activation: ActivationFormat | None) -> bool:
    """Whether the product is one of integers and the processor made for it: a scale for each row,
    one for each token or one fixed beforehand, and no zero points. Weights of up to 4 bits stay
    packed instead: that saves half of their bytes."""
    if activation is None or activation.kind != "int" or activation.outlier_threshold is not None:
        return False
    if not activation.symmetric or (activation.granularity == "tensor") != bool(activation.scale):
        return False  # a scale of the whole input would not be there before its last row
    if weight.bits <= 4 or weight.num_groups > 1 or weight.in_features > int8.LONGEST_ROW:
        return False
    if weight.zeros is not None or weight.offsets is not None:
        return False
    first, count = float(weight.values[0]), len(weight.values)
    fits = first.is_integer() and -128 <= first <= 128 - count
    if not fits or not torch.equal(weight.values, first + torch.arange(count)):
        return False
    return int8.multiplies_int8()
