"""compressed-tensors' part of config.json: groups of modules, each with its own scheme.

Answers "how does one file say W4A16, W8A8 and fp8?": a scheme has arguments for weights and for
input activations (bits, type, strategy), and a format that says how the weights are stored.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from infra_lab.errors import ModelLoadError, UsageError
from infra_lab.formats.compressed_tensors import (
    FloatQuantizedFormat,
    IntQuantizedFormat,
    MXFP4Format,
    PackQuantizedFormat,
)
from infra_lab.formats.fp8_block import FP8BlockFormat
from infra_lab.formats.layer_format import LayerFormat
from infra_lab.formats.quantized_weight import ActivationFormat
from infra_lab.formats.settings import flag, group_size, integer, refuse_unless, strings, text
from infra_lab.formats.weight_format import WeightFormat

_FORMATS = ("pack-quantized", "int-quantized", "float-quantized", "mxfp4-pack-quantized")


def layer_formats(values: Mapping[str, Any]) -> tuple[tuple[tuple[str, ...], LayerFormat], ...]:
    """Of a quantization_config: each scheme with its targets. Raises ModelLoadError."""
    refuse_unless(values, "kv_cache_scheme", None)
    for key in ("sparsity_config", "transform_config"):
        refuse_unless(values, key, None, {})
    groups = values.get("config_groups")
    if not isinstance(groups, dict) or not all(isinstance(g, dict) for g in groups.values()):
        raise ModelLoadError("quantization_config: 'config_groups' must map names to schemes")
    overall = text(values, "format", "")
    return tuple(
        (strings(group, "targets"), _layer_format(group, text(group, "format", overall)))
        for group in groups.values()
    )


def _layer_format(group: Mapping[str, Any], stored_as: str) -> LayerFormat:
    refuse_unless(group, "output_activations", None)
    weights = group.get("weights")
    if not isinstance(weights, dict):
        raise ModelLoadError("quantization_config: a scheme without 'weights' is not supported")
    weight = _weight_format(weights, stored_as)
    inputs = group.get("input_activations")
    if inputs is None:
        return LayerFormat(weight)
    if not isinstance(inputs, dict):
        raise ModelLoadError(
            f"quantization_config: 'input_activations' is {inputs!r}; an object was expected"
        )
    if isinstance(weight, FP8BlockFormat) and text(inputs, "strategy", "") == "group":
        return LayerFormat(weight)  # as with quant_method fp8: see checkpoint_format
    activation = _activation(inputs)
    dynamic = flag(inputs, "dynamic")
    if activation.granularity == "token" and not dynamic:
        raise ModelLoadError(
            "quantization_config: a scale for each token cannot be fixed beforehand"
        )
    if not dynamic and not activation.symmetric:
        raise ModelLoadError(
            "quantization_config: fixed asymmetric input_activations are not supported"
        )
    return LayerFormat(weight, activation, fixed_input_scale=not dynamic)


def _weight_format(weights: Mapping[str, Any], stored_as: str) -> WeightFormat:
    bits, kind = integer(weights, "num_bits"), text(weights, "type", "int")
    strategy = text(weights, "strategy", "tensor")
    symmetric = flag(weights, "symmetric", True)
    if stored_as == "pack-quantized" and kind == "int" and strategy in ("group", "channel"):
        order = weights.get("actorder")
        if order not in (None, False, "weight", "static", "group", "dynamic"):
            raise ModelLoadError(f"quantization_config: actorder {order!r} is not supported")
        return PackQuantizedFormat(
            bits,
            group_size(weights) if strategy == "group" else None,
            symmetric,
            act_order=order in ("group", "dynamic"),
        )
    if stored_as in ("int-quantized", "naive-quantized") and (kind, bits) == ("int", 8):
        if strategy == "channel":
            return IntQuantizedFormat("channel", symmetric)
        if strategy == "tensor":
            return IntQuantizedFormat("tensor", symmetric)
    if stored_as in ("float-quantized", "naive-quantized") and (kind, bits) == ("float", 8):
        if strategy == "channel":
            return FloatQuantizedFormat("channel")
        if strategy == "tensor":
            return FloatQuantizedFormat("tensor")
        block = weights.get("block_structure")
        if strategy == "block" and isinstance(block, list) and len(block) == 2:
            return FP8BlockFormat((int(block[0]), int(block[1])), scale_name="weight_scale")
    if stored_as == "mxfp4-pack-quantized" and (kind, bits, strategy) == ("float", 4, "group"):
        refuse_unless(weights, "group_size", 32)
        return MXFP4Format()
    raise ModelLoadError(
        f"quantization_config: {bits}-bit {kind} weights with strategy {strategy!r} in format "
        f"{stored_as!r} are not supported; the formats {', '.join(_FORMATS)} are"
    )


def _activation(inputs: Mapping[str, Any]) -> ActivationFormat:
    bits, kind = integer(inputs, "num_bits"), text(inputs, "type", "int")
    strategy = text(inputs, "strategy", "tensor")
    symmetric = flag(inputs, "symmetric", True)
    if strategy in ("token", "tensor"):
        granularity = "token" if strategy == "token" else "tensor"
        if kind == "int" and bits in (4, 8):
            return ActivationFormat(bits, "int", granularity, symmetric)  # type: ignore[arg-type]
        if kind == "float" and bits == 8:
            return ActivationFormat(8, "fp8", granularity)  # type: ignore[arg-type]
    raise ModelLoadError(
        f"quantization_config: {bits}-bit {kind} input_activations with strategy {strategy!r} are "
        "not supported; 4-bit and 8-bit integers and 8-bit floats, a token or a tensor at a time, "
        "are"
    )


def config_values(
    weight: WeightFormat, activation: ActivationFormat | None, ignored: Sequence[str]
) -> dict[str, Any]:
    """The quantization_config for a folder whose linear layers but `ignored` all have this format.

    Raises UsageError when compressed-tensors has no word for it.
    """
    stored_as, weights = _weight_values(weight)
    return {
        "quant_method": "compressed-tensors",
        "format": stored_as,
        "quantization_status": "compressed",
        "global_compression_ratio": None,
        "kv_cache_scheme": None,
        "ignore": list(ignored),
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "weights": weights,
                "input_activations": None if activation is None else _input_values(activation),
                "output_activations": None,
            }
        },
    }


def _weight_values(weight: WeightFormat) -> tuple[str, dict[str, Any]]:
    values: dict[str, Any] = {
        "num_bits": weight.bits,
        "type": "int",
        "symmetric": True,
        "group_size": None,
        "dynamic": False,
    }
    match weight:
        case PackQuantizedFormat():
            strategy = {"strategy": "channel"}
            if weight.group_size is not None:
                strategy = {"strategy": "group", "group_size": weight.group_size}  # type: ignore[dict-item]
            order = {"actorder": "group"} if weight.act_order else {}
            return "pack-quantized", {
                **values,
                **strategy,
                **order,
                "symmetric": weight.symmetric,
            }
        case IntQuantizedFormat():
            return "int-quantized", {
                **values,
                "strategy": weight.granularity,
                "symmetric": weight.symmetric,
            }
        case FloatQuantizedFormat():
            return "float-quantized", {**values, "type": "float", "strategy": weight.granularity}
        case MXFP4Format():
            return "mxfp4-pack-quantized", {
                **values,
                "type": "float",
                "strategy": "group",
                "group_size": 32,
                "scale_dtype": "torch.uint8",
            }
        case _:
            raise UsageError(f"{weight.label} is no format of compressed-tensors")


def _input_values(activation: ActivationFormat) -> dict[str, Any]:
    if activation.outlier_threshold is not None:
        raise UsageError(
            "compressed-tensors cannot say that outliers are multiplied in full precision; "
            "bitsandbytes can"
        )
    if activation.scale is not None:
        raise UsageError(
            "a scale for inputs that was fixed beforehand is a layer's own; only those that are "
            "taken from the input when it comes are written"
        )
    return {
        "num_bits": activation.bits,
        "type": "float" if activation.kind == "fp8" else "int",
        "symmetric": activation.symmetric,
        "strategy": activation.granularity,
        "group_size": None,
        "dynamic": True,
    }
