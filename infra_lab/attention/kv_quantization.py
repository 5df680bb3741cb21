"""Keys and values as codes of one byte: two ways to share a scale, and what each can bear.

Per token and head, symmetric: scale = max |x| / 127 (int8) or / 448 (e4m3) over the head_dim
numbers of one token's head. One channel that is always large (keys of many models have some) sets
the scale for all of them, and few levels are left to the small ones.

Per channel (Liu et al. 2024, "KIVI", section 3.2): the keys of a group of consecutive tokens share
centre and scale in each channel, so that a large channel is coarse and leaves the others alone.
A scale can only be known when its group is complete; until then keys stay as they are. KIVI's
groups take 2 bits, these take 8.

Both give a number back to within half a scale. Zeros have the scale 0, and so has what is so small
that its scale would be subnormal. A NaN or an infinity makes its whole row or channel NaN: a fault
shows, and is not clipped away.
"""

from __future__ import annotations

import torch

LARGEST_CODE = {torch.int8: 127.0, torch.float8_e4m3fn: torch.finfo(torch.float8_e4m3fn).max}
SMALLEST_SCALE = torch.finfo(torch.float32).smallest_normal


def quantize_rows(rows: torch.Tensor, code_dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """[..., head_dim] -> codes of that shape and fp32 scales [...].

    Bit for bit what the Triton kernels write (kernels/row_quantization.py).
    """
    values = rows.float()
    # By a tensor, as torch on a GPU multiplies by the inverse of a number.
    scales = values.abs().amax(-1) / values.new_tensor(LARGEST_CODE[code_dtype])
    scales, usable = _usable(scales)
    inverses = 1 / torch.where(usable, scales, 1.0)
    values = torch.where(usable[..., None], values, 0.0)
    if code_dtype == torch.int8:
        # fp64 holds the product exactly, so that it is rounded once, as the kernels' fma does.
        products = values.double() * inverses[..., None].double()
        return products.round().to(torch.int8), scales
    return (values * inverses[..., None]).to(code_dtype), scales


def dequantize_rows(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """Codes [..., head_dim] and scales [...] -> fp32 numbers."""
    return decoded(codes).mul_(scales[..., None])


def quantize_channels(keys: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys [groups, tokens, num_kv_heads, head_dim] -> int8 codes of that shape, and fp32 ranges
    [groups, 2, num_kv_heads, head_dim], centres and scales: centre + code * scale is the key."""
    values = keys.float()
    low, high = values.amin(1), values.amax(1)
    centres = low / 2 + high / 2  # the sum may pass fp32's largest
    half_widths = torch.maximum(high - centres, centres - low)
    scales, usable = _usable(half_widths / LARGEST_CODE[torch.int8])
    inside = torch.where(usable[:, None], values - centres[:, None], 0.0)
    codes = inside / torch.where(usable, scales, 1.0)[:, None]
    # The quotient of the widest may round to a little more than 127.
    codes = codes.round().clamp_(-LARGEST_CODE[torch.int8], LARGEST_CODE[torch.int8])
    return codes.to(torch.int8), torch.stack((centres, scales), 1)


def dequantize_channels(codes: torch.Tensor, ranges: torch.Tensor) -> torch.Tensor:
    """Codes [groups, tokens, num_kv_heads, head_dim] and ranges as above -> fp32 keys."""
    centres, scales = ranges[:, None].unbind(2)
    return decoded(codes).mul_(scales).add_(centres)


def decoded(codes: torch.Tensor) -> torch.Tensor:
    """The fp32 numbers that codes stand for, exactly, before any scale.

    e4m3 differs from fp16 in width only: shifted into fp16's places a code is 2^8 too small,
    subnormals included (see kernels/e4m3.py). Three times as fast as torch's conversion; its two
    codes for NaN, which `quantize_rows` never makes, would come out as 480.
    """
    if codes.dtype != torch.float8_e4m3fn:
        return torch.empty(codes.shape, device=codes.device).copy_(codes)
    bits = codes.view(torch.uint8).to(torch.int16)
    shifted = ((bits & 0x7F) << 7) | ((bits & 0x80) << 8)
    return shifted.view(torch.float16).float().mul_(256.0)


def _usable(scales: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Scales without subnormal ones, NaN for infinite ones, and where they can be divided by."""
    scales = torch.where(scales < SMALLEST_SCALE, 0.0, scales)
    return scales, (scales > 0) & scales.isfinite()
