"""Products of rounded weights and rounded inputs, for what they cost and not for their speed.

Answers "what are W8A8, W4A8 and W4A4, and why are activations the harder half?". Weights are there
beforehand and may be searched for an hour; inputs come and are rounded at once, by one scale a
token, which the largest channel sets. A scale a channel would suit them, but cannot be taken out
of a product's sum: so outliers move into the weights (smoothquant.py), spread (rotation.py) or are
left out (llm_int8.py).
"""

from __future__ import annotations

import torch

from infra_lab.formats.quantized_weight import ActivationFormat, QuantizedWeight
from infra_lab.layers.quantized_input import require_supported, rounded_input
from infra_lab.quantization import distance


def quantized_product(
    x: torch.Tensor, weight: QuantizedWeight, activation: ActivationFormat | None = None
) -> torch.Tensor:
    """x [num_tokens, in] times the weight, fp64 [num_tokens, out]: what any kernel for the two
    formats must come to. Without an activation format inputs stay as they are (W4A16).

    Raises UsageError for an activation format that no layer computes.
    """
    if activation is not None:
        require_supported(activation)
        x = rounded_input(x, activation)
    return x.double() @ weight.dequantize().double().T


def relative_error(
    x: torch.Tensor,
    weight: torch.Tensor,
    quantized: QuantizedWeight,
    activation: ActivationFormat | None = None,
) -> float:
    """|x Q^T - x W^T| / |x W^T|, of rounded inputs, in fp64."""
    wanted = x.double() @ weight.double().T
    return distance.relative_error(quantized_product(x, quantized, activation), wanted)
