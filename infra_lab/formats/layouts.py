"""From "which checkpoint, which numbers" to the format that holds them, and to its config.

Answers "can this method's result be stored in that kind of checkpoint?": what cannot is refused
here, before anything is computed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from infra_lab.errors import UsageError
from infra_lab.formats import compressed_tensors_config
from infra_lab.formats.awq import AWQFormat
from infra_lab.formats.bitsandbytes import FourBitFormat, RowInt8Format
from infra_lab.formats.compressed_tensors import (
    FloatQuantizedFormat,
    IntQuantizedFormat,
    MXFP4Format,
    PackQuantizedFormat,
)
from infra_lab.formats.fp8_block import FP8BlockFormat
from infra_lab.formats.gptq import GPTQFormat
from infra_lab.formats.quantized_weight import ActivationFormat
from infra_lab.formats.weight_format import WeightFormat

Numbers = Literal["int", "fp8", "nf4", "mxfp4"]
LAYOUTS = ("gptq", "gptq_v2", "awq", "compressed-tensors", "bitsandbytes", "fp8")


def weight_format(
    layout: str,
    numbers: Numbers = "int",
    *,
    bits: int = 4,
    group_size: int | None = 128,
    symmetric: bool = True,
    act_order: bool = False,
    double_quantization: bool = False,
    activation: ActivationFormat | None = None,
) -> WeightFormat:
    """The format for weights of these numbers in a folder of this layout.

    Args:
        layout: one of LAYOUTS.
        numbers: what the codes stand for; fp8 is e4m3.
        bits: of integers.
        group_size: columns with one scale; None for one a row. Of "fp8" numbers in layout "fp8"
            it is the side of a square block; NF4's groups are 64 and MXFP4's 32, always.
        symmetric: of integers, whether there are no zero points.
        act_order: groups need not be consecutive columns.
        double_quantization: of NF4, whether its scales are quantized too.
        activation: what the layers do to their inputs, or None.

    Raises UsageError when the layout has no such weights, or cannot say what happens to inputs.
    """
    if layout not in LAYOUTS:
        raise UsageError(f"checkpoint layout {layout!r} is not known; {', '.join(LAYOUTS)} are")
    found: WeightFormat | None = None
    match layout, numbers:
        case (("gptq" | "gptq_v2"), "int"):
            version = 1 if layout == "gptq" else 2
            found = GPTQFormat(bits, group_size, symmetric, act_order, version)
        case "awq", "int" if bits == 4 and not act_order:
            found = AWQFormat(group_size, symmetric)
        case "compressed-tensors", "int" if _is_w8a8(bits, group_size, act_order, activation):
            found = IntQuantizedFormat("channel", symmetric)
        case "compressed-tensors", "int":
            found = PackQuantizedFormat(bits, group_size, symmetric, act_order)
        case "compressed-tensors", "fp8" if group_size is None:
            found = FloatQuantizedFormat("channel")
        case "compressed-tensors", "mxfp4":
            found = MXFP4Format()
        case "bitsandbytes", "nf4":
            found = FourBitFormat("nf4", double_quantization)
        case "bitsandbytes", "int" if bits == 8 and group_size is None and symmetric:
            found = RowInt8Format()
        case "fp8", "fp8" if group_size is not None:
            found = FP8BlockFormat((group_size, group_size))
    if found is None:
        kind = f"{bits}-bit integers" if numbers == "int" else numbers
        groups = "one scale a row" if group_size is None else f"groups of {group_size}"
        raise UsageError(
            f"checkpoint layout {layout!r} does not hold {kind} with {groups}"
            f"{'' if symmetric else ', asymmetric'}{', act-order' if act_order else ''}"
        )
    quantization_values(found, activation)
    return found


def _is_w8a8(
    bits: int, group_size: int | None, act_order: bool, activation: ActivationFormat | None
) -> bool:
    return bits == 8 and group_size is None and not act_order and activation is not None


def quantization_values(
    weight: WeightFormat,
    activation: ActivationFormat | None,
    ignored: Sequence[str] = ("lm_head",),
) -> dict[str, Any]:
    """The quantization_config of a folder whose linear layers but `ignored` have this format.

    Raises UsageError when the layout has no word for what the layers do to their inputs.
    """
    if isinstance(weight, RowInt8Format):
        return _row_int8_values(activation, ignored)
    if isinstance(
        weight, PackQuantizedFormat | IntQuantizedFormat | FloatQuantizedFormat | MXFP4Format
    ):
        return compressed_tensors_config.config_values(weight, activation, ignored)
    if activation is not None:
        raise UsageError(
            f"{weight.label}: such a checkpoint cannot say what layers do to their inputs; "
            "layout compressed-tensors can"
        )
    match weight:
        case GPTQFormat():
            return {
                "quant_method": "gptq",
                "bits": weight.bits,
                "group_size": weight.group_size or -1,
                "sym": weight.symmetric,
                "desc_act": weight.act_order,
                "checkpoint_format": "gptq" if weight.version == 1 else "gptq_v2",
                "pack_dtype": "int32",
                "lm_head": False,
            }
        case AWQFormat():
            return {
                "quant_method": "awq",
                "bits": 4,
                "group_size": weight.group_size or -1,
                "zero_point": not weight.symmetric,
                "version": "gemm",
                "modules_to_not_convert": list(ignored),
            }
        case FourBitFormat():
            return {
                "quant_method": "bitsandbytes",
                "load_in_4bit": True,
                "load_in_8bit": False,
                "bnb_4bit_quant_type": weight.kind,
                "bnb_4bit_use_double_quant": weight.double_quantization,
                "bnb_4bit_compute_dtype": weight.dtype,
                "bnb_4bit_quant_storage": "uint8",
                "llm_int8_skip_modules": list(ignored),
            }
        case FP8BlockFormat():
            return {
                "quant_method": "fp8",
                "fmt": "e4m3",
                "activation_scheme": "dynamic",
                "weight_block_size": list(weight.block),
                "modules_to_not_convert": list(ignored),
            }
    raise UsageError(f"{weight.label} is not written to folders")


def _row_int8_values(activation: ActivationFormat | None, ignored: Sequence[str]) -> dict[str, Any]:
    """bitsandbytes' int8 layers always quantize their inputs."""
    plain = ActivationFormat(
        outlier_threshold=None if activation is None else activation.outlier_threshold
    )
    if activation != plain:
        raise UsageError(
            "bitsandbytes int8 layers take their inputs in 8-bit integers, a scale a token; this "
            f"is {activation}"
        )
    return {
        "quant_method": "bitsandbytes",
        "load_in_4bit": False,
        "load_in_8bit": True,
        "llm_int8_threshold": activation.outlier_threshold or 0.0,
        "llm_int8_has_fp16_weight": False,
        "llm_int8_skip_modules": list(ignored),
    }
