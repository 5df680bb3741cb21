"""The linear layers of a decoder layer: which share an input, and what makes that input.

Answers "which matrices are quantized together?": q, k and v read one tensor, gate and up another,
so a scale folded into the norm before them serves all of them, and they share one Hessian.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from infra_lab.models.config import ModelConfig
from infra_lab.models.shapes import parameter_shapes


@dataclass(frozen=True, slots=True)
class LinearGroup:
    """Projections of one input, which the model computes as one product.

    Attributes:
        part, layer: where DecoderLayer keeps it: `layer.attention.qkv` is ("attention", "qkv").
        modules: names in the checkpoint below the decoder layer.
        norm: the RMSNorm weight that scales the input, or None.
    """

    part: str
    layer: str
    modules: tuple[str, ...]
    norm: str | None = None


QKV = LinearGroup(
    "attention",
    "qkv",
    ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "input_layernorm",
)
OUTPUT = LinearGroup("attention", "output", ("self_attn.o_proj",))
GATE_UP = LinearGroup(
    "mlp", "gate_up", ("mlp.gate_proj", "mlp.up_proj"), "post_attention_layernorm"
)
DOWN = LinearGroup("mlp", "down", ("mlp.down_proj",))
GROUPS = (QKV, OUTPUT, GATE_UP, DOWN)  # in the order in which a layer computes them


def layer_prefix(layer: int) -> str:
    return f"model.layers.{layer}."


def linear_modules(config: ModelConfig) -> list[str]:
    """The name of every linear layer of every decoder layer, without ".weight"."""
    return [
        layer_prefix(layer) + module
        for layer in range(config.num_hidden_layers)
        for group in GROUPS
        for module in group.modules
    ]


def num_linear_weights(config: ModelConfig) -> int:
    """How many weights those layers have: embeddings and head are not among them."""
    shapes = parameter_shapes(config)
    return sum(math.prod(shapes[f"{module}.weight"]) for module in linear_modules(config))


def input_sizes(config: ModelConfig) -> dict[str, int]:
    """The number of columns of each module of a decoder layer."""
    shapes = parameter_shapes(config)
    modules = [module for group in GROUPS for module in group.modules]
    return {module: shapes[f"{layer_prefix(0)}{module}.weight"][1] for module in modules}
