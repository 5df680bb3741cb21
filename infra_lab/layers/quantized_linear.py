"""Linear layers of few bits: the codes stay packed, and only a product sees the weights.

Answers "why does weight-only quantization speed up decoding?": a step of few rows takes as long as
reading W does, and of W there is now a sixth of what fp32 has. The values are to the bit those of
`QuantizedWeight.dequantize()`, so the products are those of the dequantized layer.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from infra_lab.formats.quantized_weight import QuantizedWeight
from infra_lab.native import library
from infra_lab.native.quantized import QuantizedMatrix, quantized_linear, quantized_rows


class QuantizedLinear:
    """fp32 in and out on a CPU, W packed in 4 or 8 bits a weight (native/quantized_linear.c)."""

    def __init__(
        self,
        weight: QuantizedWeight,
        bias: torch.Tensor | None = None,
        empty: Callable[..., torch.Tensor] = torch.empty,
    ) -> None:
        """weight: on the CPU; it is copied, not kept. `empty` gives the memory of the copy."""
        self.out_features, self.in_features = weight.out_features, weight.in_features
        self.bias = bias
        self.matrix = QuantizedMatrix(
            weight.codes,
            weight.values,
            weight.scales,
            weight.group_size,
            weight.zeros,
            weight.offsets,
            weight.g_idx,
            empty,
        )

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        y = quantized_linear(x.contiguous(), self.matrix)
        return y if self.bias is None else y.add_(self.bias)

    def write(self, x: torch.Tensor, out: torch.Tensor) -> None:
        """The same product into `out`, each row contiguous, without the bias."""
        quantized_linear(x, self.matrix, out)

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        return quantized_rows(self.matrix, indices)


def runs_packed(dtype: torch.dtype, device: torch.device) -> bool:
    """Whether products with codes exist there: else layers are dequantized once."""
    return dtype == torch.float32 and device.type == "cpu" and library.is_available()
