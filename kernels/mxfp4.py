"""MXFP4 weights to floats: blocks of 32 numbers of 4 bits (E2M1) that share a power of two (E8M0).

What is in an MXFP4 checkpoint (gpt-oss), and how many bits is a weight? OCP Microscaling Formats
(MX) Specification 1.0: a code is a sign, two bits of exponent and one of mantissa: 0, 0.5, 1,
1.5, 2, 3, 4, 6; a scale s is 2^(s - 127), 255 is NaN: (32 * 4 + 8) / 32 = 4.25 bits a weight.
Every product of the two has its exact bf16 (E8M0 has bf16's exponents), except beyond its range.
The work is moving bytes: 17 are read for every 64 written.
"""

# mypy: disable-error-code="no-untyped-def, untyped-decorator, misc"
from __future__ import annotations

import torch
import triton
import triton.language as tl

from kernels.checks import require_dtype, require_result_dtype, require_runnable, require_shape
from kernels.errors import KernelInputError
from kernels.testing.cases import AotCase

BLOCK = 32  # numbers that share a scale
GGUF_BYTES = 17  # of a block there: the scale, then 16 bytes of codes
BLOCKS = 64  # that a program takes
NUM_WARPS = 4
E2M1_VALUES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@triton.jit
def e2m1_value(code):
    """Codes 0 to 15 as fp32: from 1 up two bits of exponent and one of mantissa, as fp32's own."""
    magnitude = (code & 7).to(tl.int32)
    from_bits = ((magnitude << 22) + (126 << 23)).to(tl.float32, bitcast=True)
    value = tl.where(magnitude < 2, magnitude.to(tl.float32) * 0.5, from_bits)
    sign = (code & 8).to(tl.int32) << 28
    return (value.to(tl.int32, bitcast=True) | sign).to(tl.float32, bitcast=True)


@triton.jit
def e8m0_value(scale):
    """2^(scale - 127) as fp32: its exponent; 0 is 2^-127, below those, and 255 NaN."""
    bits = scale.to(tl.int32)
    bits = tl.where(bits == 0, 0x00400000, bits << 23)
    return tl.where(scale == 255, float("nan"), bits.to(tl.float32, bitcast=True))


@triton.jit(do_not_specialize=["blocks"])
def dequantize_mxfp4_kernel(codes, scales, out, blocks, BLOCKS: tl.constexpr):
    """One program dequantizes BLOCKS blocks."""
    block = tl.program_id(0).to(tl.int64) * BLOCKS + tl.arange(0, BLOCKS)
    mask = block < blocks
    byte = tl.arange(0, 16)[None, :]
    code = tl.load(codes + block[:, None] * 16 + byte, mask=mask[:, None], other=0)
    scale = e8m0_value(tl.load(scales + block, mask=mask, other=127))[:, None]
    values = tl.join(e2m1_value(code & 15) * scale, e2m1_value(code >> 4) * scale)
    values = tl.reshape(values, (BLOCKS, 32)).to(out.dtype.element_ty)
    place = out + block[:, None] * 32 + tl.arange(0, 32)[None, :]
    tl.store(place, values, mask=mask[:, None])


def dequantize_mxfp4(
    codes: torch.Tensor, scales: torch.Tensor, dtype: torch.dtype = torch.bfloat16
) -> torch.Tensor:
    """The numbers [..., K] of an MXFP4 tensor.

    codes: uint8 [..., K/2], two codes a byte, the even one in the low nibble (OCP, torchao,
    gpt-oss). scales: uint8 or float8_e8m0fnu [..., K/32]. K is a multiple of 32. Returns `dtype`:
    fp32 and bf16 exact, fp16 rounded; beyond the range of a type infinity.
    Raises KernelInputError for tensors that do not fit.
    """
    name = "dequantize_mxfp4"
    require_dtype(name, "codes", codes, (torch.uint8,))
    require_dtype(name, "scales", scales, (torch.uint8, torch.float8_e8m0fnu))
    require_result_dtype(name, dtype)
    if codes.dim() == 0 or codes.shape[-1] % (BLOCK // 2):
        raise KernelInputError(
            f"{name}: codes have shape {tuple(codes.shape)}, wanted [..., K/2], K a multiple of 32"
        )
    inputs = 2 * codes.shape[-1]
    require_shape(name, "scales", scales, (*codes.shape[:-1], inputs // BLOCK))
    require_runnable(name, codes=codes, scales=scales)
    out = torch.empty((*codes.shape[:-1], inputs), dtype=dtype, device=codes.device)
    blocks = scales.numel()
    if blocks == 0:
        return out
    dequantize_mxfp4_kernel[(triton.cdiv(blocks, BLOCKS),)](
        codes.contiguous(),
        scales.contiguous().view(torch.uint8),
        out,
        blocks,
        BLOCKS=BLOCKS,
        num_warps=NUM_WARPS,
    )
    return out


def from_gguf_mxfp4(data: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Codes and scales as `dequantize_mxfp4` takes them, from a GGUF tensor.

    data: uint8 [..., K/32 * 17]: of each block the scale, then 16 bytes, byte j with number j in
    its low and number j + 16 in its high nibble. GGUF doubles the numbers and halves the scale,
    which comes to the same.
    Raises KernelInputError if the rows are no multiple of 17.
    """
    require_dtype("from_gguf_mxfp4", "data", data, (torch.uint8,))
    if data.dim() == 0 or data.shape[-1] % GGUF_BYTES:
        raise KernelInputError(
            f"from_gguf_mxfp4: data has shape {tuple(data.shape)}, wanted rows of a multiple of "
            f"{GGUF_BYTES} bytes"
        )
    blocks = data.reshape(*data.shape[:-1], data.shape[-1] // GGUF_BYTES, GGUF_BYTES)
    packed = blocks[..., 1:]
    in_order = torch.cat((packed & 15, packed >> 4), -1)
    codes = in_order[..., ::2] | in_order[..., 1::2] << 4
    return codes.flatten(-2), blocks[..., 0].contiguous()


def dequantize_mxfp4_reference(codes: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """The same in float64, which holds every product exactly."""
    table = torch.tensor(E2M1_VALUES, dtype=torch.float64, device=codes.device)
    nibbles = torch.stack((codes & 15, codes >> 4), -1).flatten(-2).long()
    values = torch.where(nibbles >= 8, -table[nibbles & 7], table[nibbles & 7])
    exponents = scales.view(torch.uint8).double()
    factors = torch.where(exponents == 255, float("nan"), torch.exp2(exponents - 127))
    return values * factors.repeat_interleave(BLOCK, -1)


AOT_CASES = tuple(
    AotCase(
        kernel="dequantize_mxfp4",
        config=f"to {dtype} blocks={BLOCKS}",
        function=dequantize_mxfp4_kernel,
        arguments={"codes": "*u8", "scales": "*u8", "out": f"*{dtype}", "blocks": "i32"},
        constants={"BLOCKS": BLOCKS},
        num_warps=NUM_WARPS,
        any_alignment=frozenset({"blocks"}),
    )
    for dtype in ("bf16", "fp32")
)
