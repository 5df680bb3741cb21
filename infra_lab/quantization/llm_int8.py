"""LLM.int8(): nearly all of a product in int8, the few columns of outliers in full precision.

Answers "how can W8A8 work on a model with outliers, without calibration?" (Dettmers et al. 2022).
Scales are one a token and one a row of the weight (vector-wise); a column of inputs in which any
token exceeds the threshold, 6, is taken out of both and multiplied apart. In large models that is
about 0.1 % of the columns, and with them goes what would set every token's scale. The price: the
split is made anew for every batch, and its shape is not known beforehand.
"""

from __future__ import annotations

import torch

from infra_lab.errors import UsageError
from infra_lab.formats.quantized_weight import ActivationFormat, QuantizedWeight
from infra_lab.quantization.integer import IntegerScheme, quantize_numbers
from infra_lab.quantization.rtn import round_to_nearest

THRESHOLD = 6.0
SCHEME = IntegerScheme(8, symmetric=True, narrow=True)
INPUT_FORMAT = ActivationFormat(outlier_threshold=THRESHOLD)


def quantize_llm_int8(weight: torch.Tensor) -> QuantizedWeight:
    """A weight [out, in] as int8 of -127 to 127, scale = the row's largest magnitude / 127."""
    return round_to_nearest(weight, SCHEME)


def outlying_columns(x: torch.Tensor, threshold: float | None = THRESHOLD) -> torch.Tensor:
    """bool [in], of inputs [num_tokens, in]: where any token exceeds the threshold."""
    if threshold is None:
        return torch.zeros(x.shape[1], dtype=torch.bool, device=x.device)
    return (x.abs() > threshold).any(0)


def llm_int8_product(
    x: torch.Tensor,
    weight: QuantizedWeight,
    threshold: float | None = THRESHOLD,
    full: torch.Tensor | None = None,
) -> torch.Tensor:
    """x [..., in] times the weight, fp32 [..., out]: an exact product of integers, scaled once,
    and beside it the outlying columns.

    full: the weight before it was quantized, for those columns; without it they are those of the
    codes, as bitsandbytes has them (it keeps no other copy).
    Raises UsageError for a weight that is not int8 with one scale a row.
    """
    if weight.bits != 8 or weight.num_groups != 1 or weight.zeros is not None:
        raise UsageError("LLM.int8() multiplies symmetric int8 weights with one scale a row")
    rows = x.reshape(-1, x.shape[-1]).float()
    outlying = outlying_columns(rows, threshold)
    inputs = quantize_numbers(torch.where(outlying, 0.0, rows))
    # Sums of products of 8-bit integers are exact in fp64.
    integers = inputs.codes.double() - inputs.zeros
    sums = integers @ weight.values[weight.codes.long()].double().T
    out = (sums * inputs.scales.double() * weight.scales[:, 0].double()).float()
    columns = (weight.dequantize() if full is None else full.float())[:, outlying]
    out += rows[:, outlying] @ columns.T
    return out.view(*x.shape[:-1], -1)
