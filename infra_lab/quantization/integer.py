"""Numbers as integers of 2 to 8 bits: where the grid lies, and who shares a scale.

Answers "symmetric or asymmetric, and per tensor, channel, group, token or head?". A grid is
(code - zero) * scale for the codes 0 to 2**bits - 1; whatever it must cover, zero is one of its
points, and every number inside comes back to within half a scale. What differs is only which
numbers share a grid: a scale costs its bits once for all of them, and the largest of them sets it.

Rounding is to nearest, ties to even. Symmetric grids are GPTQ's and compressed-tensors': all
2**bits codes, scale = 2 max|x| / (2**bits - 1). Narrow ones leave the lowest code out and have
scale = max|x| / (2**(bits - 1) - 1), as int8 products of activations do (kernels/quantize_int8).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

import torch

from infra_lab.errors import UsageError
from infra_lab.formats.quantized_weight import QuantizedWeight

# Below fp32's largest by enough that a rounded scale times a code is still finite.
LARGEST = torch.finfo(torch.float32).max * (1 - 2.0**-20)


@dataclass(frozen=True, slots=True)
class IntegerScheme:
    """How the integers of a weight are laid out.

    Attributes:
        bits: 2 to 8.
        symmetric: whether the grid has zero in its middle; otherwise it has a zero point of its
            own, and covers just what is there.
        granularity: what shares a scale: "tensor", "channel" (a row: one output feature), or that
            many consecutive columns of a row.
        narrow: of symmetric grids, without the code -2**(bits - 1).
        exact_extreme: of symmetric grids, the number farthest from zero is that code exactly, so
            the scale has its sign, and a step is a sixteenth narrower than otherwise in 4 bits;
            what lies as far on the other side is cut by up to a step. GGUF's Q4_0.
        scale_dtype: the type in which scales will be stored. They are rounded to it before codes
            are chosen, so that what a file gives back is what the method measured.
    """

    bits: int = 4
    symmetric: bool = False
    granularity: Literal["tensor", "channel"] | int = "channel"
    narrow: bool = False
    exact_extreme: bool = False
    scale_dtype: torch.dtype = torch.float32

    def __post_init__(self) -> None:
        if not 2 <= self.bits <= 8:
            raise UsageError(f"integers have 2 to 8 bits, not {self.bits}")
        if self.narrow and not self.symmetric:
            raise UsageError("only a symmetric grid can be narrow: an asymmetric one has no -2^b")
        if self.exact_extreme and (self.narrow or not self.symmetric):
            raise UsageError("an extreme is exact in a symmetric grid that has all its codes")
        if isinstance(self.granularity, int) and self.granularity < 1:
            raise UsageError(f"a group has at least 1 column, not {self.granularity}")
        if not self.scale_dtype.is_floating_point:
            raise UsageError(f"a scale is a floating-point number, not {self.scale_dtype}")

    def group_size(self, in_features: int) -> int:
        """Columns with one scale."""
        return self.granularity if isinstance(self.granularity, int) else in_features


@dataclass(frozen=True, slots=True)
class IntegerGrid:
    """The numbers (code - zero) * scale, for codes from `lowest_code` to 2**bits - 1.

    Attributes:
        scales: fp32, whatever broadcasts against the numbers.
        zeros: whole numbers from 0 to 2**bits - 1, fp32, of the same shape.
    """

    bits: int
    scales: torch.Tensor
    zeros: torch.Tensor
    lowest_code: int = 0

    def encode(self, numbers: torch.Tensor) -> torch.Tensor:
        """The code of the nearest point, as a whole number in the type of `numbers`."""
        codes = (numbers / self.scales).round_().add_(self.zeros)
        return codes.clamp_(self.lowest_code, 2**self.bits - 1)

    def decode(self, codes: torch.Tensor) -> torch.Tensor:
        return (codes - self.zeros) * self.scales

    def nearest(self, numbers: torch.Tensor) -> torch.Tensor:
        return self.decode(self.encode(numbers))

    def __getitem__(self, index: Any) -> IntegerGrid:
        """The grids at an index of their tensors."""
        return IntegerGrid(self.bits, self.scales[index], self.zeros[index], self.lowest_code)


def fit_grid(low: torch.Tensor, high: torch.Tensor, scheme: IntegerScheme) -> IntegerGrid:
    """The grids that cover zero and the numbers from `low` to `high`, one an element.

    Where there is nothing but zero, or what the type of scales cannot tell from it, the scale is 1
    and every number is zero. A grid never leaves fp32: the ends of one that would are clipped.
    """
    low, high = low.double().clamp(max=0), high.double().clamp(min=0)
    steps, middle = 2**scheme.bits - 1, 2 ** (scheme.bits - 1)
    if scheme.symmetric:
        reach = torch.maximum(high, -low)
        most = middle - 1 if scheme.narrow else middle if scheme.exact_extreme else steps / 2
        scales = storable(reach / most, scheme.scale_dtype)
        zeros = torch.full_like(scales, middle)
    else:
        scales = storable((high - low) / steps, scheme.scale_dtype)
        zeros = (-low / scales).round_().clamp_(0, steps)
    limit = LARGEST / torch.maximum(zeros, steps - zeros)
    scales = torch.minimum(scales, limit.clamp_(max=torch.finfo(scheme.scale_dtype).max))
    if scheme.exact_extreme:
        scales = torch.where(high > -low, -scales, scales)  # the code -2**(bits - 1) is the extreme
    return IntegerGrid(scheme.bits, scales.float(), zeros.float(), int(scheme.narrow))


def storable(scales: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Scales, fp64, as that type has them: its largest for larger ones, and 1 for what it has no
    number for but zero."""
    largest = torch.finfo(dtype).max
    stored = scales.clamp(max=largest).to(dtype).double()
    return torch.where(stored == 0, 1.0, stored)


def by_groups(weight: torch.Tensor, group_size: int) -> torch.Tensor:
    """[out, in] -> [out, groups, group_size]; a shorter last group is filled up with zeros, which
    change neither a range nor an error."""
    rest = -weight.shape[1] % group_size
    padded = torch.nn.functional.pad(weight, (0, rest))
    return padded.view(weight.shape[0], -1, group_size)


def weight_grid(weight: torch.Tensor, scheme: IntegerScheme) -> IntegerGrid:
    """The grids [out, groups] that cover each group of a weight [out, in]."""
    groups = by_groups(weight, scheme.group_size(weight.shape[1]))
    low, high = groups.amin(-1), groups.amax(-1)
    if scheme.granularity == "tensor":
        low, high = low.amin().expand(low.shape), high.amax().expand(high.shape)
    return fit_grid(low, high, scheme)


def integer_weight(
    codes: torch.Tensor, grid: IntegerGrid, scheme: IntegerScheme, g_idx: torch.Tensor | None = None
) -> QuantizedWeight:
    """Codes [out, in] and their grids [out, groups] in the form that everybody takes."""
    values = torch.arange(2.0**scheme.bits, device=codes.device)
    return QuantizedWeight(
        codes=codes.to(torch.uint8),
        values=values - 2 ** (scheme.bits - 1) if scheme.symmetric else values,
        scales=grid.scales.contiguous(),
        bits=scheme.bits,
        group_size=scheme.group_size(codes.shape[1]),
        zeros=None if scheme.symmetric else grid.zeros.contiguous(),
        g_idx=g_idx,
    )


def require_weight(weight: torch.Tensor) -> torch.Tensor:
    """The weight, fp64 or else fp32. Raises UsageError unless it is a matrix of finite numbers."""
    if weight.ndim != 2 or not weight.is_floating_point() or weight.numel() == 0:
        raise UsageError(
            f"a weight is a floating-point matrix [out_features, in_features], not {weight.dtype} "
            f"{list(weight.shape)}"
        )
    finite = weight.isfinite()
    if not finite.all():
        row, column = (~finite).nonzero()[0].tolist()
        raise UsageError(
            f"the weight has {int((~finite).sum())} numbers that are not finite, the first "
            f"{weight[row, column].item()} in row {row}, column {column}: the checkpoint is damaged"
        )
    return weight if weight.dtype == torch.float64 else weight.float()


@dataclass(frozen=True, slots=True)
class IntegerNumbers:
    """Activations, keys or values as integers.

    Attributes:
        codes: uint8 [...], as the numbers were.
        scales, zeros: fp32; they broadcast against the codes, or, with `group_size`, against the
            codes in groups [..., groups, group_size].
    """

    codes: torch.Tensor
    scales: torch.Tensor
    zeros: torch.Tensor
    group_size: int | None = None

    def dequantize(self) -> torch.Tensor:
        """fp32, as the numbers were."""
        codes = self.codes.float()
        if self.group_size is not None:
            codes = codes.reshape(*codes.shape[:-1], -1, self.group_size)
        numbers = (codes - self.zeros) * self.scales
        return numbers if self.group_size is None else numbers.flatten(-2)


def quantize_numbers(
    numbers: torch.Tensor,
    bits: int = 8,
    symmetric: bool = True,
    granularity: Literal["tensor", "token", "channel", "head"] | int = "token",
) -> IntegerNumbers:
    """Activations [..., features], or keys [tokens, heads, head_dim], by scales from themselves.

    granularity: what shares a scale: "tensor" everything; "token" the last dimension; "channel"
    one feature of all tokens; "head" (of keys or values) one head of all tokens; an integer that
    many consecutive features of a token. Symmetric grids are narrow. A NaN or an infinity makes
    everything that shares its scale NaN: a fault shows, and is not clipped away.
    Raises UsageError for a number of bits, a shape or a group that does not fit.
    """
    scheme = IntegerScheme(bits, symmetric, narrow=symmetric)
    group_size = granularity if isinstance(granularity, int) else None
    shared = numbers.float()
    if group_size is not None:
        if group_size < 1 or numbers.shape[-1] % group_size:
            raise UsageError(
                f"groups of {group_size} do not divide {numbers.shape[-1]} features: give a "
                "divisor of it"
            )
        shared = shared.reshape(*numbers.shape[:-1], -1, group_size)
    if granularity == "head" and numbers.ndim < 3:
        raise UsageError(f"one scale a head wants [tokens, heads, head_dim], not {numbers.ndim}-d")
    dims = _shared_dimensions(granularity, shared.ndim)
    low, high = shared.amin(dims, keepdim=True), shared.amax(dims, keepdim=True)
    finite = low.isfinite() & high.isfinite()
    grid = fit_grid(torch.where(finite, low, 0.0), torch.where(finite, high, 0.0), scheme)
    codes = grid.encode(torch.where(finite, shared, 0.0)).to(torch.uint8).view(numbers.shape)
    scales = torch.where(finite, grid.scales, float("nan"))
    return IntegerNumbers(codes, scales, grid.zeros, group_size)


def _shared_dimensions(granularity: str | int, ndim: int) -> list[int]:
    if granularity == "tensor":
        return list(range(ndim))
    if granularity == "channel":
        return list(range(ndim - 1))
    if granularity == "head":
        return [dim for dim in range(ndim) if dim != ndim - 2]
    return [ndim - 1]
