"""Which layers of a checkpoint are quantized and how: what its quantization_config says.

Answers "which keys of quantization_config change what a model computes?": those are honoured or
refused by name here; what only records how the numbers were found is passed over.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from infra_lab.errors import ModelLoadError, UsageError
from infra_lab.formats.awq import AWQFormat
from infra_lab.formats.bitsandbytes import FourBitFormat, RowInt8Format
from infra_lab.formats.compressed_tensors import FloatQuantizedFormat
from infra_lab.formats.compressed_tensors_config import layer_formats
from infra_lab.formats.fp8_block import FP8BlockFormat
from infra_lab.formats.gptq import GPTQFormat
from infra_lab.formats.layer_format import LayerFormat
from infra_lab.formats.quantized_weight import ActivationFormat
from infra_lab.formats.settings import (
    flag,
    group_size,
    integer,
    number,
    refuse_unless,
    strings,
    text,
)


@dataclass(frozen=True, slots=True)
class CheckpointFormat:
    """Attributes:
    method: quant_method, "gptq" or another.
    layers: the formats, each with the modules it is for: "Linear" for all linear layers, a
        module's name, or "re:" and a pattern that its name begins with.
    ignored: modules that are not quantized after all, named likewise.
    """

    method: str
    layers: tuple[tuple[tuple[str, ...], LayerFormat], ...]
    ignored: tuple[str, ...] = ()

    def of(self, module: str) -> LayerFormat | None:
        """The format of a linear layer, "model.layers.0.mlp.up_proj"; None if it has none."""
        if any(_names(target, module) for target in self.ignored):
            return None
        for targets, layer in self.layers:
            if any(_names(target, module) for target in targets):
                return layer
        return None

    @property
    def label(self) -> str:
        """For people; with several formats, all of them."""
        return "; ".join(dict.fromkeys(layer.label for _, layer in self.layers))


def checkpoint_format(values: Mapping[str, Any]) -> CheckpointFormat:
    """Reads config.json's quantization_config.

    Raises ModelLoadError, without the file's name, when the method is unknown, or it asks for
    something that is not supported or makes no sense.
    """
    method = text(values, "quant_method", "")
    if not method and (flag(values, "load_in_4bit") or flag(values, "load_in_8bit")):
        method = "bitsandbytes"  # what its first files left out
    read = _METHODS.get(method)
    if read is None:
        raise ModelLoadError(
            f"checkpoints quantized with {method or 'an unnamed quant_method'} are not supported; "
            f"supported are {', '.join(_METHODS)}"
        )
    try:
        return read(values)
    except UsageError as error:
        raise ModelLoadError(f"quantization_config: {error}") from error


def _names(target: str, module: str) -> bool:
    if target.startswith("re:"):
        try:
            return re.match(target.removeprefix("re:"), module) is not None
        except re.error as error:
            raise ModelLoadError(
                f"quantization_config: {target!r} is no pattern ({error})"
            ) from error
    return target in ("Linear", module)


def _all_linear(method: str, layer: LayerFormat) -> CheckpointFormat:
    """The lists of modules that were not converted add nothing to which tensors are there."""
    return CheckpointFormat(method, ((("Linear",), layer),))


def _gptq(values: Mapping[str, Any]) -> CheckpointFormat:
    refuse_unless(values, "pack_dtype", None, "int32")
    refuse_unless(values, "is_marlin_format", None, False)
    refuse_unless(values, "dynamic", None, {})
    layout = text(values, "checkpoint_format", text(values, "format", "gptq"))
    if layout not in ("gptq", "gptq_v2"):
        raise ModelLoadError(
            f"quantization_config: checkpoint_format {layout!r} is not supported; gptq and gptq_v2 "
            "are"
        )
    return _all_linear(
        "gptq",
        LayerFormat(
            GPTQFormat(
                bits=integer(values, "bits"),
                group_size=group_size(values),
                symmetric=flag(values, "sym", True),
                act_order=flag(values, "desc_act"),
                version=2 if layout == "gptq_v2" else 1,
            )
        ),
    )


def _awq(values: Mapping[str, Any]) -> CheckpointFormat:
    key = "bits" if "bits" in values else "w_bit"
    if integer(values, key) != 4:
        raise ModelLoadError(
            f"quantization_config: AWQ with {values[key]} bits is not supported; 4 bits are"
        )
    version = text(values, "version", "gemm").lower()
    if version != "gemm":
        raise ModelLoadError(
            f"quantization_config: AWQ version {version!r} is not supported; gemm is"
        )
    group_key = "group_size" if "group_size" in values else "q_group_size"
    return _all_linear(
        "awq",
        LayerFormat(
            AWQFormat(group_size(values, group_key), symmetric=not flag(values, "zero_point", True))
        ),
    )


def _bitsandbytes(values: Mapping[str, Any]) -> CheckpointFormat:
    if flag(values, "load_in_8bit"):
        threshold = number(values, "llm_int8_threshold", 6.0)
        activation = ActivationFormat(outlier_threshold=threshold or None)
        return _all_linear("bitsandbytes", LayerFormat(RowInt8Format(), activation))
    refuse_unless(values, "bnb_4bit_quant_storage", None, "uint8")
    return _all_linear(
        "bitsandbytes",
        LayerFormat(
            FourBitFormat(
                text(values, "bnb_4bit_quant_type", "fp4"),
                flag(values, "bnb_4bit_use_double_quant"),
            )
        ),
    )


def _fp8(values: Mapping[str, Any]) -> CheckpointFormat:
    """With blocks, kernels quantize inputs in runs of 128 of a row; here inputs stay as they are,
    which is nearer to what was trained."""
    refuse_unless(values, "fmt", None, "e4m3")
    scheme = text(values, "activation_scheme", "dynamic")
    if scheme not in ("dynamic", "static"):
        raise ModelLoadError(
            f"quantization_config: activation_scheme {scheme!r} is not supported; dynamic and "
            "static are"
        )
    block = values.get("weight_block_size")
    if block is None:
        activation = ActivationFormat(kind="fp8", granularity="tensor")
        layer = LayerFormat(
            FloatQuantizedFormat("tensor"), activation, fixed_input_scale=scheme == "static"
        )
        return _all_linear("fp8", layer)
    if not isinstance(block, list) or len(block) != 2 or not all(type(n) is int for n in block):
        raise ModelLoadError(
            f"quantization_config: 'weight_block_size' is {block!r}; two integers were expected"
        )
    if scheme == "static":
        raise ModelLoadError("quantization_config: fp8 blocks with static inputs are not supported")
    return _all_linear("fp8", LayerFormat(FP8BlockFormat((block[0], block[1]))))


def _compressed_tensors(values: Mapping[str, Any]) -> CheckpointFormat:
    ignored = strings(values, "ignore")
    return CheckpointFormat("compressed-tensors", layer_formats(values), ignored)


_METHODS: dict[str, Callable[[Mapping[str, Any]], CheckpointFormat]] = {
    "gptq": _gptq,
    "awq": _awq,
    "compressed-tensors": _compressed_tensors,
    "bitsandbytes": _bitsandbytes,
    "fp8": _fp8,
}
