"""The models, GPUs and formats that the calculator page computes with, as JSON.

Counts of parameters are those of `infra_lab.calculators.parameters`; the page's own arithmetic,
`calculator.js`, begins where they end, and a test holds it to the Python calculators.
"""

from __future__ import annotations

import json
from typing import Any

from infra_lab.calculators.capacity import DEFAULT_UTILIZATION
from infra_lab.calculators.compute import attention_flops
from infra_lab.calculators.formats import NumberFormat, number_format
from infra_lab.calculators.hardware import DEVICES, Device
from infra_lab.calculators.kv_cache import (
    cache_format,
    elements_per_token_layer,
)
from infra_lab.calculators.model_table import MODELS
from infra_lab.calculators.models import Model
from infra_lab.calculators.parameters import (
    active_linear_parameters,
    expert_parameters,
    head_parameters,
    linear_parameters,
    num_active_parameters,
    num_parameters,
)
from infra_lab.calculators.weights import other_format
from infra_lab.config import DEFAULT_BLOCK_SIZE

WEIGHT_FORMATS = ("bf16", "fp32", "fp8", "int8", "int4-g128", "int4-g128-z4", "mxfp4", "nvfp4")
CACHE_FORMATS = ("bf16", "fp8", "int8-token-head", "int4-token-head")


def calculator_tables() -> str:
    """The text of calculator.json."""
    tables = {
        "default_utilization": DEFAULT_UTILIZATION,
        "block_size": DEFAULT_BLOCK_SIZE,
        "models": {name: model_row(one) for name, one in MODELS.items()},
        "devices": {name: device_row(one) for name, one in DEVICES.items()},
        "weight_formats": {name: format_row(number_format(name)) for name in WEIGHT_FORMATS},
    }
    return json.dumps(tables, indent=1) + "\n"


def model_row(model: Model) -> dict[str, Any]:
    """A model by what the formulas of a step need."""
    experts = model.experts
    return {
        "title": model.title,
        "attention": model.attention_kind,
        "num_layers": model.num_layers,
        "num_query_heads": model.num_query_heads,
        "num_kv_heads": model.num_kv_heads,
        "max_context": model.max_context,
        "parameters": num_parameters(model),
        "active_parameters": num_active_parameters(model),
        "linear_parameters": linear_parameters(model),
        "active_linear_parameters": active_linear_parameters(model),
        "head_parameters": head_parameters(model),
        "cache_elements_per_token": model.num_layers * elements_per_token_layer(model),
        "cache_bits_per_element": {
            name: cache_format(name, model).bits_per_element for name in CACHE_FORMATS
        },
        "prefill_flops_per_pair": attention_flops(model, 1),
        "decode_flops_per_pair": attention_flops(model, 1, absorbed=True),
        "experts": None
        if experts is None
        else {
            "num_experts": experts.num_experts,
            "num_active": experts.num_active,
            "num_layers": model.num_expert_layers,
            "parameters": expert_parameters(model),
        },
        "source": model.source,
    }


def device_row(device: Device) -> dict[str, Any]:
    return {
        "title": device.title,
        "memory_bytes": device.memory_bytes,
        "bandwidth_bytes_per_s": device.bandwidth_bytes_per_s,
        "peak_flops_per_s": dict(device.peak_flops_per_s),
        "sources": list(device.sources),
    }


def format_row(number: NumberFormat) -> dict[str, float]:
    return {
        "bits_per_element": number.bits_per_element,
        "other_bits_per_element": other_format(number).bits_per_element,
    }
