"""Quantized layers on a GPU, where a kernel of ours takes their layout: 4-bit weights under 16-bit
activations, int8 by int8 and fp8 by fp8.

Answers "when is W8A8 the right choice, and when W4A16?": few rows wait for the bytes of W, many for
the arithmetic; `kernels/w4a16_gemm` and `kernels/w8a8_gemm` tell the two apart. Layers that none of
these take are dequantized once and multiplied by torch.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import torch

from infra_lab.formats.quantized_weight import ActivationFormat, QuantizedWeight
from infra_lab.kernels_guard import kernels_serve
from infra_lab.layers.linear import Linear
from infra_lab.layers.quantized_input import LARGEST_FP8

if TYPE_CHECKING:
    from kernels.w4_packing import PackedW4

HALVES = (torch.float16, torch.bfloat16)
FLOATS = (*HALVES, torch.float32)
TOKENS_OF_INT8 = ActivationFormat()


def triton_linear(
    weight: QuantizedWeight,
    bias: torch.Tensor | None,
    activation: ActivationFormat | None,
    dtype: torch.dtype,
    device: torch.device,
) -> Linear | None:
    """The layer on `device` with x of `dtype`; None where no kernel takes it as it is."""
    if dtype not in FLOATS or not kernels_serve(torch.empty(0, device=device)):
        return None
    if bias is not None:
        bias = bias.to(device)
    if activation is None:
        packed = _int4(weight) if dtype in HALVES else None
        return None if packed is None else W4A16Linear(packed.to(device), bias, dtype)
    if weight.num_groups > 1 or weight.zeros is not None or weight.offsets is not None:
        return None
    scales = weight.scales.flatten().to(device)
    if activation == TOKENS_OF_INT8 and _is_integers(weight, -128):
        codes = (weight.codes ^ 128).view(torch.int8).to(device)
        return W8A8Linear(codes, scales, bias, dtype)
    if activation.kind == "fp8" and _is_e4m3(weight, device):
        codes = weight.codes.view(torch.float8_e4m3fn).to(device)
        return FP8Linear(codes, scales, bias, activation, dtype)
    return None


class W4A16Linear:
    """scale * (code - zero), 4 bits a weight, unpacked in the kernel."""

    def __init__(self, weight: PackedW4, bias: torch.Tensor | None, dtype: torch.dtype) -> None:
        """dtype: of x, and of rows."""
        self.in_features, self.out_features = weight.in_features, weight.out_features
        self.weight = weight
        self.bias = bias
        self._dtype = dtype

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        from kernels.w4a16_gemm import w4a16_gemm

        return w4a16_gemm(x, self.weight, self.bias)

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        weight, words = self.weight, self.weight.words[:, indices]
        some = replace(weight, codes=weight.codes[indices], words=words.contiguous())
        return some.dequantized().t().to(self._dtype).contiguous()


class W8A8Linear:
    """int8 weights with a scale for each output, and int8 tokens with a scale each."""

    def __init__(
        self,
        weight: torch.Tensor,
        scales: torch.Tensor,
        bias: torch.Tensor | None,
        dtype: torch.dtype,
    ) -> None:
        """weight: int8 [out, in]; scales: fp32 [out]; dtype: of x, and of rows."""
        self.out_features, self.in_features = weight.shape
        self.weight = weight
        self.scales = scales
        self.bias = bias
        self._dtype = dtype

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        from kernels.quantize_int8 import quantize_per_token
        from kernels.w8a8_gemm import w8a8_gemm

        codes, scales = quantize_per_token(x)
        return w8a8_gemm(codes, self.weight, scales, self.scales, self.bias, x.dtype)

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        return (self.weight[indices] * self.scales[indices, None]).to(self._dtype)


class FP8Linear:
    """e4m3 weights with a scale for each output, or the same for all, and e4m3 activations."""

    def __init__(
        self,
        weight: torch.Tensor,
        scales: torch.Tensor,
        bias: torch.Tensor | None,
        activation: ActivationFormat,
        dtype: torch.dtype,
    ) -> None:
        """weight: float8_e4m3fn [out, in]; scales: fp32 [out]; dtype: of x, and of rows."""
        self.out_features, self.in_features = weight.shape
        self.weight = weight
        self.scales = scales
        self.bias = bias
        self._dtype = dtype
        self._activation = activation
        self._one = torch.ones(1, device=weight.device)

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        from kernels.fp8_gemm import fp8_gemm

        codes, scales = self._codes(x)
        y = fp8_gemm(codes, self.weight, self._one, self._one, dtype=torch.float32)
        y *= scales
        y *= self.scales
        if self.bias is not None:
            y += self.bias
        return y.to(x.dtype)

    def _codes(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """And the scale of each token, [num_tokens, 1], or of all."""
        from kernels.quantize_fp8 import quantize_fp8_per_tensor

        activation = self._activation
        if activation.granularity == "tensor" and activation.scale is None:
            return quantize_fp8_per_tensor(x)
        values = x.float()
        if activation.scale is None:
            scale = values.abs().amax(dim=-1, keepdim=True) / LARGEST_FP8
        else:
            scale = values.new_tensor([activation.scale])
        ratio = values / torch.where(scale > 0, scale, 1.0)
        return ratio.clamp_(-LARGEST_FP8, LARGEST_FP8).to(torch.float8_e4m3fn), scale

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        rows = self.weight.view(torch.uint8)[indices].view(torch.float8_e4m3fn).float()
        return (rows * self.scales[indices, None]).to(self._dtype)


def _is_integers(weight: QuantizedWeight, first: int) -> bool:
    """Whether code i means i + first, of as many bits as that takes."""
    count = 256 if first == -128 else 16
    return torch.equal(weight.values, torch.arange(float(first), float(first + count)))


def _is_e4m3(weight: QuantizedWeight, device: torch.device) -> bool:
    from kernels.devices import device_of

    gpu = device_of(torch.empty(0, device=device))
    if weight.bits != 8 or not gpu.has_fp8 or gpu.arch == "gfx942":
        return False
    table = torch.arange(256, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    return torch.equal(weight.values.nan_to_num(), table.nan_to_num())


def _int4(weight: QuantizedWeight) -> PackedW4 | None:
    """As the W4A16 kernel reads it: integers with zeros from 0 to 15, in groups of a multiple of 32
    columns that are consecutive once the columns are sorted."""
    from kernels.w4_packing import HALF, pack_int4

    first = float(weight.values[0])
    if weight.bits != 4 or weight.offsets is not None or not first.is_integer():
        return None
    is_one_group = weight.num_groups == 1
    if not _is_integers(weight, int(first)) or (weight.group_size % HALF and not is_one_group):
        return None
    zeros = torch.zeros_like(weight.scales) if weight.zeros is None else weight.zeros
    zeros = zeros - first
    if not torch.equal(zeros, zeros.round().clamp(0, 15)):
        return None
    codes, permutation = weight.codes, None
    if weight.g_idx is not None:
        permutation = torch.argsort(weight.g_idx, stable=True)
        codes = codes[:, permutation]
        consecutive = torch.arange(weight.in_features) // weight.group_size
        if not torch.equal(weight.g_idx[permutation], consecutive):
            return None
    packed = pack_int4(
        codes.t().contiguous(),
        weight.scales.t().contiguous(),
        zeros.t().to(torch.int32).contiguous(),
        -1 if is_one_group else weight.group_size,
    )
    return packed if permutation is None else replace(packed, permutation=permutation)
