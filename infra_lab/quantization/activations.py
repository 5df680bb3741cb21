"""What a quantized layer does to its input: rounded when it comes, back to numbers at once.

Answers "what are W8A8, W4A8 and W4A4, and why are activations the harder half?". The product of
codes and scales is that of the rounded numbers, so rounding alone (fake quantization) shows what a
format costs, without its kernels. Scales are dynamic, one a token, unless they were fixed
beforehand; a scale a channel would suit the outliers, but cannot be taken out of a product's sum
(smoothquant.py moves them, rotation.py spreads them, llm_int8.py leaves them out).
"""

from __future__ import annotations

import torch

from infra_lab.errors import UsageError
from infra_lab.formats.quantized_weight import ActivationFormat, QuantizedWeight
from infra_lab.quantization.float8 import LARGEST as FLOAT8_LARGEST
from infra_lab.quantization.float8 import TYPES
from infra_lab.quantization.integer import quantize_numbers


def round_input(x: torch.Tensor, form: ActivationFormat) -> torch.Tensor:
    """x [..., features] as the format leaves it, in its own type.

    Integers lie on symmetric narrow grids (kernels/quantize_int8), or on grids with a zero point.
    A fixed scale clips what it does not reach. With an outlier threshold whole columns stay as
    they are (llm_int8.py). NaN and infinity make their token NaN, or everything under one scale.
    Raises UsageError for a format that makes no sense.
    """
    _require_sensible(form)
    outlying = outlying_columns(x, form.outlier_threshold)
    rounded = _rounded(torch.where(outlying, 0.0, x.float()), form)
    return torch.where(outlying, x.float(), rounded).to(x.dtype)


def outlying_columns(x: torch.Tensor, threshold: float | None) -> torch.Tensor:
    """bool [features], where any token reaches the threshold; none without one."""
    if threshold is None:
        return torch.zeros(x.shape[-1], dtype=torch.bool, device=x.device)
    return (x.float().abs() >= threshold).flatten(0, -2).any(0)


def quantized_product(
    x: torch.Tensor, weight: QuantizedWeight, form: ActivationFormat | None = None
) -> torch.Tensor:
    """x [..., in] times the weight, fp64 [..., out]: what a kernel for both must come to."""
    inputs = x if form is None else round_input(x, form)
    return inputs.double() @ weight.dequantize().double().T


def _rounded(x: torch.Tensor, form: ActivationFormat) -> torch.Tensor:
    if form.kind == "fp8":
        return _rounded_to_float8(x, form)
    if form.scale is None:
        granularity = form.granularity
        return quantize_numbers(x, form.bits, form.symmetric, granularity).dequantize()
    reach = 2 ** (form.bits - 1) - 1
    return (x / form.scale).round().clamp(-reach, reach) * form.scale


def _rounded_to_float8(x: torch.Tensor, form: ActivationFormat) -> torch.Tensor:
    largest = FLOAT8_LARGEST["e4m3"]
    if form.scale is not None:
        scales = torch.tensor(form.scale, device=x.device)
    else:
        magnitudes = x.abs()
        of_tokens = form.granularity == "token"
        reach = magnitudes.amax(-1, keepdim=True) if of_tokens else magnitudes.amax()
        # By a tensor, as torch on a GPU multiplies by the inverse of a number.
        scales = reach / reach.new_tensor(largest)
        scales = torch.where(scales == 0, 1.0, scales)
        scales = torch.where(scales.isfinite(), scales, float("nan"))
    return (x / scales).clamp(-largest, largest).to(TYPES["e4m3"]).float() * scales


def _require_sensible(form: ActivationFormat) -> None:
    if form.kind == "fp8" and form.bits != 8:
        raise UsageError(f"fp8 activations have 8 bits, not {form.bits}")
    if form.scale is not None:
        if form.granularity != "tensor" or not form.symmetric:
            raise UsageError("a fixed scale is one for the tensor, on a symmetric grid")
        if not 0 < form.scale < float("inf"):
            raise UsageError(f"a fixed scale is a positive number, not {form.scale}")
    if form.outlier_threshold is not None and not form.outlier_threshold > 0:
        raise UsageError(f"an outlier threshold is above 0, not {form.outlier_threshold}")
