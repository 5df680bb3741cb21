"""quantization_config: what is honoured, what is refused, and that ours reads back the same."""

from __future__ import annotations

from typing import Any

import pytest

from infra_lab.errors import ModelLoadError, UsageError
from infra_lab.formats.awq import AWQFormat
from infra_lab.formats.bitsandbytes import FourBitFormat, RowInt8Format
from infra_lab.formats.checkpoint_format import _METHODS, checkpoint_format
from infra_lab.formats.compressed_tensors import (
    FloatQuantizedFormat,
    IntQuantizedFormat,
    MXFP4Format,
    PackQuantizedFormat,
)
from infra_lab.formats.fp8_block import FP8BlockFormat
from infra_lab.formats.gptq import GPTQFormat
from infra_lab.formats.layer_format import LayerFormat
from infra_lab.formats.layouts import LAYOUTS, quantization_values, weight_format
from infra_lab.formats.quantized_weight import ActivationFormat
from infra_lab.models.hf_config import QUANTIZATION_METHODS

LINEAR = "model.layers.0.mlp.up_proj"
TOKEN_INT8 = ActivationFormat()
INT4 = {"num_bits": 4, "type": "int", "strategy": "group", "group_size": 64}
FP8 = {"num_bits": 8, "type": "float"}


def scheme(stored_as: str, weights: dict[str, Any], **group: Any) -> dict[str, Any]:
    group = {"targets": ["Linear"], "weights": weights} | group
    return {
        "quant_method": "compressed-tensors",
        "format": stored_as,
        "config_groups": {"group_0": group},
        "ignore": ["lm_head"],
    }


READ = [
    (
        {"quant_method": "gptq", "bits": 4, "group_size": 128, "desc_act": True, "sym": False},
        LayerFormat(GPTQFormat(4, 128, symmetric=False, act_order=True)),
    ),
    (
        {"quant_method": "gptq", "bits": 3, "group_size": -1, "checkpoint_format": "gptq_v2"},
        LayerFormat(GPTQFormat(3, None, version=2)),
    ),
    (
        {"quant_method": "awq", "bits": 4, "group_size": 64, "zero_point": True},
        LayerFormat(AWQFormat(64)),
    ),
    (
        {"quant_method": "awq", "w_bit": 4, "q_group_size": 128, "version": "GEMM"},
        LayerFormat(AWQFormat(128)),
    ),
    (
        {"quant_method": "bitsandbytes", "load_in_4bit": True, "bnb_4bit_quant_type": "nf4"},
        LayerFormat(FourBitFormat()),
    ),
    ({"load_in_4bit": True}, LayerFormat(FourBitFormat("fp4"))),
    (
        {"quant_method": "bitsandbytes", "load_in_8bit": True},
        LayerFormat(RowInt8Format(), ActivationFormat(outlier_threshold=6.0)),
    ),
    (
        {"quant_method": "fp8", "weight_block_size": [128, 128], "activation_scheme": "dynamic"},
        LayerFormat(FP8BlockFormat()),
    ),
    (
        {"quant_method": "fp8", "activation_scheme": "static"},
        LayerFormat(
            FloatQuantizedFormat("tensor"),
            ActivationFormat(kind="fp8", granularity="tensor"),
            fixed_input_scale=True,
        ),
    ),
    (scheme("pack-quantized", INT4), LayerFormat(PackQuantizedFormat(4, 64))),
    (
        scheme("pack-quantized", INT4 | {"actorder": "group", "symmetric": False}),
        LayerFormat(PackQuantizedFormat(4, 64, symmetric=False, act_order=True)),
    ),
    (
        scheme("pack-quantized", INT4 | {"actorder": "weight", "strategy": "channel"}),
        LayerFormat(PackQuantizedFormat(4, None)),
    ),
    (
        scheme("float-quantized", FP8 | {"strategy": "block", "block_structure": [128, 64]}),
        LayerFormat(FP8BlockFormat((128, 64), "weight_scale")),
    ),
    (
        scheme(
            "float-quantized",
            FP8 | {"strategy": "tensor"},
            input_activations=FP8 | {"strategy": "tensor", "dynamic": False},
        ),
        LayerFormat(
            FloatQuantizedFormat("tensor"),
            ActivationFormat(kind="fp8", granularity="tensor"),
            fixed_input_scale=True,
        ),
    ),
]


@pytest.mark.parametrize(("values", "expected"), READ)
def test_settings_as_files_have_them_are_understood(
    values: dict[str, Any], expected: LayerFormat
) -> None:
    assert checkpoint_format(values).of(LINEAR) == expected


WRITTEN = [
    (GPTQFormat(4, 128), None),
    (GPTQFormat(3, None, symmetric=False, act_order=True, version=2), None),
    (AWQFormat(64), None),
    (AWQFormat(None, symmetric=True), None),
    (PackQuantizedFormat(4, 32, symmetric=False), None),
    (PackQuantizedFormat(3, None, act_order=True), None),
    (PackQuantizedFormat(4, 128), TOKEN_INT8),
    (PackQuantizedFormat(4, 128), ActivationFormat(bits=4, symmetric=False)),
    (IntQuantizedFormat("channel"), TOKEN_INT8),
    (IntQuantizedFormat("tensor", symmetric=False), ActivationFormat(granularity="tensor")),
    (FloatQuantizedFormat("channel"), ActivationFormat(kind="fp8")),
    (FloatQuantizedFormat("tensor"), None),
    (MXFP4Format(), None),
    (FourBitFormat("nf4", double_quantization=True), None),
    (RowInt8Format(), ActivationFormat(outlier_threshold=6.0)),
    (RowInt8Format(), TOKEN_INT8),
    (FP8BlockFormat(), None),
]


@pytest.mark.parametrize(("weight", "activation"), WRITTEN)
def test_what_is_written_is_understood_as_it_was_meant(weight: Any, activation: Any) -> None:
    found = checkpoint_format(quantization_values(weight, activation))
    assert found.of(LINEAR) == LayerFormat(weight, activation)


def test_modules_are_named_by_class_by_name_and_by_pattern() -> None:
    values = scheme("pack-quantized", INT4)
    values["config_groups"]["group_0"]["targets"] = [r"re:.*\.mlp\.", "model.layers.0.x"]
    values["config_groups"]["group_1"] = {
        "targets": ["Linear"],
        "weights": FP8 | {"strategy": "channel"},
        "format": "float-quantized",
    }
    values["ignore"] = ["lm_head", r"re:.*layers\.1\."]
    found = checkpoint_format(values)
    int4, fp8 = LayerFormat(PackQuantizedFormat(4, 64)), LayerFormat(FloatQuantizedFormat())
    assert found.of("model.layers.0.mlp.up_proj") == int4
    assert found.of("model.layers.0.x") == int4
    assert found.of("model.layers.0.self_attn.q_proj") == fp8
    assert found.of("model.layers.1.mlp.up_proj") is None
    assert found.of("lm_head") is None
    assert found.label == "compressed-tensors int4, groups of 64; fp8 e4m3, one scale a row"


GPTQ = {"quant_method": "gptq", "bits": 4, "group_size": 128}


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"quant_method": "quip"}, "with quip are not supported; supported are gptq, awq"),
        ({}, "an unnamed quant_method"),
        ({"quant_method": 4}, "'quant_method' is 4; a string"),
        (GPTQ | {"bits": 5}, "2, 3, 4 or 8 bits, not 5"),
        (GPTQ | {"bits": "4"}, "'bits' is '4'; an integer"),
        (GPTQ | {"group_size": 0}, "'group_size' is 0; a positive integer or -1"),
        (GPTQ | {"sym": 1}, "'sym' is 1; true or false"),
        (GPTQ | {"checkpoint_format": "marlin"}, "checkpoint_format 'marlin' is not supported"),
        (GPTQ | {"pack_dtype": "int64"}, "pack_dtype 'int64' is not supported; 'int32' is"),
        (GPTQ | {"dynamic": {"-:x": {}}}, "dynamic .* is not supported"),
        ({"quant_method": "awq", "bits": 8, "group_size": 128}, "AWQ with 8 bits"),
        (
            {"quant_method": "awq", "bits": 4, "group_size": 128, "version": "gemv"},
            "AWQ version 'gemv'",
        ),
        (
            {"load_in_4bit": True, "bnb_4bit_quant_storage": "bfloat16"},
            "bnb_4bit_quant_storage 'bfloat16' is not supported; 'uint8' is",
        ),
        ({"load_in_4bit": True, "bnb_4bit_quant_type": "int4"}, "nf4 and fp4, not 'int4'"),
        ({"quant_method": "fp8", "fmt": "e5m2"}, "fmt 'e5m2' is not supported"),
        ({"quant_method": "fp8", "weight_block_size": [128]}, "'weight_block_size' is .128."),
        ({"quant_method": "fp8", "activation_scheme": "none"}, "activation_scheme 'none'"),
        (
            {"quant_method": "fp8", "weight_block_size": [1, 1], "activation_scheme": "static"},
            "blocks with static inputs",
        ),
        ({"quant_method": "compressed-tensors"}, "'config_groups' must map"),
        (scheme("nvfp4-pack-quantized", INT4), "4-bit int weights .* 'nvfp4-pack-quantized'"),
        (scheme("int-quantized", INT4 | {"num_bits": 8}), "8-bit int .* 'group'"),
        (scheme("pack-quantized", INT4 | {"actorder": "up"}), "actorder 'up'"),
        (scheme("pack-quantized", INT4, output_activations={}), "output_activations"),
        (scheme("pack-quantized", INT4, input_activations=FP8 | {"strategy": "group"}), "'group'"),
        (scheme("pack-quantized", INT4, input_activations=FP8 | {"strategy": "token"}), "fixed"),
        (scheme("pack-quantized", INT4) | {"kv_cache_scheme": FP8}, "kv_cache_scheme"),
        (scheme("pack-quantized", INT4) | {"transform_config": {"a": 1}}, "transform_config"),
        (scheme("pack-quantized", INT4) | {"ignore": "lm_head"}, "'ignore' is 'lm_head'"),
    ],
)
def test_what_is_not_supported_is_refused_by_name(values: dict[str, Any], message: str) -> None:
    with pytest.raises(ModelLoadError, match=message):
        checkpoint_format(values)


def test_a_broken_pattern_is_refused() -> None:
    values = scheme("pack-quantized", INT4) | {"ignore": ["re:("]}
    with pytest.raises(ModelLoadError, match=r"'re:\(' is no pattern"):
        checkpoint_format(values).of(LINEAR)


def test_the_config_reader_knows_the_same_methods_without_torch() -> None:
    assert set(QUANTIZATION_METHODS) == set(_METHODS)


@pytest.mark.parametrize(
    ("layout", "numbers", "settings", "expected"),
    [
        ("gptq", "int", {}, GPTQFormat()),
        ("gptq_v2", "int", {"bits": 8, "symmetric": False}, GPTQFormat(8, 128, False, version=2)),
        ("awq", "int", {"symmetric": False}, AWQFormat()),
        ("compressed-tensors", "int", {"bits": 3}, PackQuantizedFormat(3)),
        (
            "compressed-tensors",
            "int",
            {"bits": 8, "group_size": None, "activation": TOKEN_INT8},
            IntQuantizedFormat(),
        ),
        ("compressed-tensors", "int", {"activation": TOKEN_INT8}, PackQuantizedFormat()),
        ("compressed-tensors", "fp8", {"group_size": None}, FloatQuantizedFormat()),
        ("compressed-tensors", "mxfp4", {}, MXFP4Format()),
        ("bitsandbytes", "nf4", {"double_quantization": True}, FourBitFormat("nf4", True)),
        (
            "bitsandbytes",
            "int",
            {"bits": 8, "group_size": None, "activation": TOKEN_INT8},
            RowInt8Format(),
        ),
        ("fp8", "fp8", {}, FP8BlockFormat()),
    ],
)
def test_a_layout_and_numbers_make_a_format(
    layout: str, numbers: Any, settings: dict[str, Any], expected: Any
) -> None:
    assert weight_format(layout, numbers, **settings) == expected


@pytest.mark.parametrize(
    ("layout", "numbers", "settings", "message"),
    [
        ("ggml", "int", {}, "'ggml' is not known; gptq, gptq_v2"),
        ("gptq", "nf4", {}, "'gptq' does not hold nf4"),
        ("gptq", "int", {"bits": 6}, "2, 3, 4 or 8 bits"),
        ("gptq", "int", {"activation": TOKEN_INT8}, "cannot say what layers do to their inputs"),
        ("awq", "int", {"bits": 3}, "does not hold 3-bit integers with groups of 128"),
        ("awq", "int", {"act_order": True}, "act-order"),
        ("bitsandbytes", "int", {}, "does not hold 4-bit integers"),
        ("bitsandbytes", "int", {"bits": 8, "group_size": None}, "take their inputs in 8-bit"),
        (
            "compressed-tensors",
            "int",
            {"activation": ActivationFormat(outlier_threshold=6.0)},
            "outliers",
        ),
        ("compressed-tensors", "int", {"activation": ActivationFormat(scale=0.5)}, "fixed"),
        ("fp8", "fp8", {"group_size": None}, "does not hold fp8"),
    ],
)
def test_what_a_layout_does_not_hold_is_refused(
    layout: str, numbers: Any, settings: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        weight_format(layout, numbers, **settings)


def test_every_layout_is_known_by_its_name() -> None:
    for layout in LAYOUTS:
        with pytest.raises(UsageError, match="does not hold"):
            weight_format(layout, "nothing")  # type: ignore[arg-type]
