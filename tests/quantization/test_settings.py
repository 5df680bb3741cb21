"""Which settings a run may have: defaults by method, and refusals that say what there is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from infra_lab.errors import UsageError
from infra_lab.models.config import ModelConfig
from infra_lab.quantization.settings import (
    FORMATS,
    METHODS,
    PER_ROW,
    choose_settings,
    require_format,
)

SMOLLM2 = ModelConfig(
    architecture="llama",
    vocab_size=49152,
    hidden_size=576,
    intermediate_size=1536,
    num_hidden_layers=30,
    num_attention_heads=9,
    num_key_value_heads=3,
    head_dim=64,
    max_position_embeddings=8192,
    rms_norm_eps=1e-5,
    rope_theta=1e5,
)


@pytest.mark.parametrize("name", METHODS)
def test_every_method_has_a_format_for_its_defaults(name: str) -> None:
    settings = choose_settings(name, SMOLLM2, {})
    assert settings.format in FORMATS
    require_format(settings)


@pytest.mark.parametrize(
    ("method", "given", "chosen"),
    [
        ("gptq", {}, {"bits": 4, "group_size": 64, "symmetric": False, "format": "gptq"}),
        ("gptq", {"group_size": PER_ROW}, {"group_size": None}),
        ("gptq", {"group_size": 192}, {"group_size": 192}),
        ("awq", {}, {"format": "awq"}),
        ("awq", {"bits": 3}, {"format": "gptq"}),
        ("rtn", {"format": "gguf"}, {"group_size": 32, "format": "gguf"}),
        ("rtn", {"bits": 5}, {"bits": 5, "format": None}),
        ("rtn", {"bits": 8, "activation_bits": 8}, {"format": "compressed-tensors"}),
        ("smoothquant", {}, {"bits": 8, "activation_bits": 8, "group_size": None}),
        ("smoothquant", {}, {"symmetric": True, "format": "compressed-tensors"}),
        ("nf4", {}, {"group_size": 64, "format": "bitsandbytes"}),
        ("mxfp4", {}, {"group_size": 32, "format": "compressed-tensors"}),
        ("llm_int8", {"outlier_threshold": 4.0}, {"outlier_threshold": 4.0}),
        ("rtn", {"bits": None, "group_size": None}, {"bits": 4, "group_size": 64}),
        ("gptq", {}, {"act_order": True, "static_groups": True, "has_g_idx": False}),
        ("gptq", {"static_groups": False}, {"has_g_idx": True, "format": "gptq"}),
        ("gptq", {"static_groups": False, "group_size": PER_ROW}, {"has_g_idx": False}),
        ("gptq", {"act_order": False, "static_groups": False}, {"has_g_idx": False}),
        ("gptq", {"format": "awq"}, {"format": "awq"}),
        ("fp8", {}, {"format": "compressed-tensors", "group_size": None, "activation_bits": 8}),
        ("fp8", {"format": "fp8"}, {"group_size": 128, "activation_bits": None}),
        ("smoothquant", {}, {"alpha": "auto"}),
    ],
)
def test_what_is_not_given_is_the_methods_default(
    method: str, given: dict[str, Any], chosen: dict[str, Any]
) -> None:
    settings = choose_settings(method, SMOLLM2, given)
    assert {name: getattr(settings, name) for name in chosen} == chosen


def test_the_default_group_is_the_largest_that_divides_every_layers_inputs() -> None:
    def group(hidden: int, intermediate: int) -> int | None:
        sizes = replace(SMOLLM2, hidden_size=hidden, intermediate_size=intermediate)
        sizes = replace(sizes, num_attention_heads=hidden // 64, num_key_value_heads=1)
        return choose_settings("rtn", sizes, {}).group_size

    assert group(4096, 11008) == 128
    assert group(576, 1536) == 64
    assert group(64, 96) == 32
    assert group(64, 50) is None


def test_calibration_sequences_are_as_long_as_the_context_allows() -> None:
    short = replace(SMOLLM2, max_position_embeddings=96)
    assert choose_settings("gptq", SMOLLM2, {}).sequence_length == 512
    assert choose_settings("gptq", short, {}).sequence_length == 96


@pytest.mark.parametrize(
    ("method", "given", "said"),
    [
        ("gtpq", {}, "no method 'gtpq': there are rtn, gptq"),
        ("gptq", {"bits": 9}, "gptq has weights of 2, 3, 4, 5, 6, 7, 8 bits, not 9"),
        ("nf4", {"bits": 8}, "nf4 has weights of 4 bits, not 8"),
        ("gptq", {"group_size": 128}, "128 does not divide the 576 inputs of self_attn.q_proj"),
        ("gptq", {"group_size": 128}, r"give 64 or 32 or -1 \(a row\)"),
        ("gptq", {"group_size": 0}, "at least 1 column, or is -1 for a row, not 0"),
        ("rtn", {"act_order": True}, "rtn has no act-order: beside bits it knows activation-bits"),
        ("rtn", {"seed": 1}, "rtn has no seed: beside bits it knows activation-bits, clip"),
        ("gptq", {"seed": 1}, "gptq has no seed: .* calibration, clip, damping, .* samples,"),
        ("fp8", {"num_sequences": 4}, "fp8 has no samples: beside bits it knows no settings"),
        ("nf4", {"sequence_length": 4}, "nf4 has no sequence-length"),
        ("fp8", {"activation_bits": 8}, "fp8 has no activation-bits"),
        ("smoothquant", {"alpha": float("nan")}, "alpha is a share from 0 to 1, not nan"),
        ("nf4", {"group_size": 64}, "nf4 has no group-size: beside bits it knows no settings"),
        ("gptq", {"alpha": 0.5}, "gptq has no alpha"),
        ("rtn", {"activation_bits": 5}, "activations have 4 or 8 bits, not 5"),
        ("smoothquant", {"alpha": 1.5}, "alpha is a share from 0 to 1, not 1.5"),
        ("gptq", {"damping": -0.1}, "damping is a share from 0 to 1, not -0.1"),
        ("gptq", {"num_sequences": 0}, "num sequences must be at least 1, not 0"),
        ("llm_int8", {"outlier_threshold": 0.0}, "outlier threshold must be above 0, not 0.0"),
        ("rtn", {"format": "zip"}, "no format 'zip': there are gptq, awq"),
        ("nf4", {"format": "gptq"}, "nf4 is kept as bitsandbytes, not as gptq"),
        ("gptq", {"format": "awq", "bits": 3}, "awq keeps 4 bits, not 3"),
        ("gptq", {"format": "gptq", "bits": 5}, "gptq keeps 2 or 3 or 4 or 8 bits, not 5"),
        (
            "gptq",
            {"format": "awq", "static_groups": False},
            "awq keeps groups of neighbouring columns",
        ),
        (
            "rtn",
            {"format": "gptq", "activation_bits": 8},
            "gptq cannot say that inputs are rounded to 8 bits",
        ),
        ("rtn", {"format": "gguf", "group_size": 64}, "gguf has groups of 32, not of 64"),
        ("rtn", {"format": "gguf", "bits": 8}, "gguf keeps 8 bits symmetric only"),
    ],
)
def test_what_makes_no_sense_is_refused(method: str, given: dict[str, Any], said: str) -> None:
    with pytest.raises(UsageError, match=said):
        choose_settings(method, SMOLLM2, given)


def test_what_no_format_keeps_can_be_measured_but_not_written() -> None:
    settings = choose_settings("rtn", SMOLLM2, {"bits": 5})
    with pytest.raises(UsageError, match=r"no format here keeps rtn of 5 bits so \(gptq keeps 2"):
        require_format(settings)


def test_what_decides_nothing_is_not_described() -> None:
    assert "num_sequences" in choose_settings("gptq", SMOLLM2, {}).described()
    rtn = choose_settings("rtn", SMOLLM2, {})
    assert rtn.described() == replace(rtn, num_sequences=3, seed=5, alpha=0.1).described()
    rotated = [choose_settings("quip", SMOLLM2, {"seed": n}).described() for n in (0, 1)]
    assert rotated[0] != rotated[1]
