"""Layers whose input is rounded to few bits too: W8A8, W4A8, fp8 and LLM.int8().

Answers "what does W8A8 change about the result?": x is taken to the nearest of 256 multiples of a
scale before the product. Here codes * scale goes into the product in place of x: the same numbers,
to the rounding of the sums, that an integer product scaled afterwards gives.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from infra_lab.errors import UsageError
from infra_lab.formats.quantized_weight import ActivationFormat
from infra_lab.layers.linear import Linear
from infra_lab.native import library, ops

LARGEST_FP8 = torch.finfo(torch.float8_e4m3fn).max  # 448


class QuantizedInput:
    """What `ActivationFormat` says, then a layer.

    With an outlier threshold the whole input decides which columns stay as they are (Dettmers et
    al. 2022, section 3.2), and with one scale a tensor it decides that: there a token's result
    depends on the tokens that share its step, as it does in the papers.
    """

    def __init__(self, base: Linear, activation: ActivationFormat) -> None:
        require_supported(activation)
        self.base = base
        self.activation = activation
        self.in_features, self.out_features = base.in_features, base.out_features

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        return self.base(rounded_input(x, self.activation))

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        return self.base.rows(indices)


def require_supported(activation: ActivationFormat) -> None:
    """Raises UsageError for a format that no layer here computes."""
    if activation.kind == "fp8" and (activation.bits != 8 or not activation.symmetric):
        raise UsageError(
            f"activations in fp8 have 8 bits and no zero point, not {activation.bits} bits"
            f"{'' if activation.symmetric else ' and one'}: give kind 'int'"
        )
    if not 2 <= activation.bits <= 8:
        raise UsageError(f"activations have 2 to 8 bits here, not {activation.bits}")
    if activation.scale is not None and activation.granularity == "token":
        raise UsageError("a scale fixed beforehand is one for the tensor, not one for each token")
    if activation.scale is not None and not activation.symmetric:
        raise UsageError("a scale fixed beforehand has no zero point here: use symmetric codes")


def rounded_input(x: torch.Tensor, activation: ActivationFormat) -> torch.Tensor:
    """x: [num_tokens, features] of any float type -> the same, of values that the format has."""
    threshold = activation.outlier_threshold
    if threshold is None:
        if _is_plain(activation) and library.serves(x):
            return ops.round_rows(x.contiguous(), 2 ** (activation.bits - 1) - 1)
        return _rounded(x.float(), activation).to(x.dtype)
    is_outlier = (x.abs() > threshold).any(dim=0)
    rounded = _rounded(x.float().masked_fill(is_outlier, 0.0), activation).to(x.dtype)
    return torch.where(is_outlier, x, rounded)


def _is_plain(activation: ActivationFormat) -> bool:
    """Symmetric integers with a scale for each token: what W8A8 mostly is."""
    return activation.kind == "int" and activation.symmetric and activation.granularity == "token"


def _rounded(x: torch.Tensor, activation: ActivationFormat) -> torch.Tensor:
    if activation.kind == "int" and not activation.symmetric:
        return _rounded_between(x, activation)
    largest = LARGEST_FP8 if activation.kind == "fp8" else float(2 ** (activation.bits - 1) - 1)
    if activation.scale is not None:
        scale = x.new_tensor(activation.scale)
    else:
        _, high = _extremes(x.abs(), activation)
        scale = high / largest
    ratio = (x / torch.where(scale > 0, scale, 1.0)).clamp(-largest, largest)
    if activation.kind == "fp8":
        return ratio.to(torch.float8_e4m3fn).float() * scale
    return ratio.round() * scale


def _rounded_between(x: torch.Tensor, activation: ActivationFormat) -> torch.Tensor:
    """Codes from the least to the largest number, zero among them: zeros stay zeros."""
    most = 2**activation.bits - 1
    low, high = _extremes(x, activation)
    scale = (high - low) / most
    safe = torch.where(scale > 0, scale, 1.0)
    zero = (-low / safe).round()
    codes = (x / safe).round().add_(zero).clamp_(0, most)
    rounded: torch.Tensor = (codes - zero) * scale
    return rounded


def _extremes(x: torch.Tensor, activation: ActivationFormat) -> tuple[torch.Tensor, torch.Tensor]:
    """The least and the largest of each token, [num_tokens, 1], or of all, [1, 1]; zero counts."""
    rows = x if activation.granularity == "token" else x.reshape(1, -1)
    rows = F.pad(rows, (0, 1))
    return rows.amin(dim=-1, keepdim=True), rows.amax(dim=-1, keepdim=True)
