"""A LoRA adapter out of a PEFT folder, laid out for this engine's fused products.

Low-rank adaptation (Hu et al. 2021): y = W x + s B A x, with A [r, in] and B [out, r]. Where one
product makes q, k and v, their As are stacked to one, and their Bs stand on the diagonal of one.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch

from infra_lab.errors import ModelLoadError, ModelNotFoundError
from infra_lab.models.config import ModelConfig
from infra_lab.models.peft_config import CONFIG_FILE, PeftConfig, read_peft_config
from infra_lab.models.safetensors_file import opened, tensor_shapes
from infra_lab.models.shapes import parameter_shapes

WEIGHTS_FILE = "adapter_model.safetensors"
# Which modules of a layer make which of its products, in their order.
PRODUCTS = {
    "qkv": ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"),
    "output": ("self_attn.o_proj",),
    "gate_up": ("mlp.gate_proj", "mlp.up_proj"),
    "down": ("mlp.down_proj",),
}
_NAME = re.compile(r"base_model\.model\.(model\.layers\.[0-9]+\.\w+\.\w+)\.lora_([AB])\.weight")


@dataclass(frozen=True, slots=True)
class LowRank:
    """What is added to one fused product: shrink [sum of ranks, in], expand [out, sum of ranks],
    fp32, the scaling in `expand`."""

    shrink: torch.Tensor
    expand: torch.Tensor


@dataclass(frozen=True, slots=True)
class Adapter:
    """`digest` is the same for adapters that compute the same; `layers` has a mapping from a
    name of PRODUCTS for each layer of the model, without those that nothing is added to."""

    digest: str
    layers: list[dict[str, LowRank]]


def read_adapter(folder: Path, config: ModelConfig, max_rank: int) -> Adapter:
    """Raises ModelNotFoundError when there is no such folder; ModelLoadError, with the reason,
    for an adapter that is damaged, made for a model of other shapes, or unsupported."""
    if not folder.is_dir():
        raise ModelNotFoundError(f"{folder}: there is no such adapter folder")
    peft_config = read_peft_config(folder, max_rank)
    file = folder / WEIGHTS_FILE
    if not file.is_file():
        raise ModelLoadError(f"{folder}: has a {CONFIG_FILE}, but no {WEIGHTS_FILE}")
    names = _checked_names(file, config, peft_config)
    digest = hashlib.sha256((folder / CONFIG_FILE).read_bytes())
    with opened(file) as tensors:
        # What is stored is the mapped file itself: always a copy.
        matrices = {
            name: tensors.get_tensor(tensor).to(torch.float32, copy=True)
            for name, tensor in names.items()
        }
    for (module, side), matrix in sorted(matrices.items()):
        digest.update(f"{module} {side} {list(matrix.shape)}".encode())
        digest.update(matrix.numpy().tobytes())
    shapes = {name: shape[0] for name, shape in parameter_shapes(config).items() if len(shape) == 2}
    layers = []
    for layer in range(config.num_hidden_layers):
        added = {}
        for product, modules in PRODUCTS.items():
            full = [f"model.layers.{layer}.{module}" for module in modules]
            outs = {name: shapes[f"{name}.weight"] for name in full}
            if any((name, "A") in matrices for name in full):
                added[product] = _fused(outs, matrices, peft_config.scaling)
        layers.append(added)
    return Adapter(digest.hexdigest(), layers)


def _checked_names(
    file: Path, config: ModelConfig, peft_config: PeftConfig
) -> dict[tuple[str, str], str]:
    """(module, "A" or "B") -> the tensor's name in the file, its shape held against the model's."""
    shapes = parameter_shapes(config)
    names: dict[tuple[str, str], str] = {}
    for name, shape in tensor_shapes(file).items():
        match = _NAME.fullmatch(name)
        module = match[1] if match else ""
        if match is None or f"{module}.weight" not in shapes:
            raise ModelLoadError(f"{file}: tensor {name!r} has no place in this model")
        out_features, in_features = shapes[f"{module}.weight"]
        rank = peft_config.rank
        wanted = (rank, in_features) if match[2] == "A" else (out_features, rank)
        if shape != wanted:
            raise ModelLoadError(
                f"{file}: tensor {name!r} has shape {list(shape)}, but this model and r = {rank} "
                f"ask for {list(wanted)}: the adapter was made for another model"
            )
        names[module, match[2]] = name
    for module, side in names:
        if (module, "AB".replace(side, "")) not in names:
            raise ModelLoadError(f"{file}: {module} has lora_{side} and lacks the other half")
    if not names:
        raise ModelLoadError(f"{file}: is empty: there is nothing to add")
    return names


def _fused(
    outs: Mapping[str, int], matrices: Mapping[tuple[str, str], torch.Tensor], scaling: float
) -> LowRank:
    """outs: rows of each module's product, in order; those without matrices add nothing."""
    having = [name for name in outs if (name, "A") in matrices]
    shrink = torch.cat([matrices[name, "A"] for name in having])
    expand = torch.zeros(sum(outs.values()), len(shrink))
    row = column = 0
    for name, out_features in outs.items():
        if name in having:
            right = matrices[name, "B"]
            expand[row : row + out_features, column : column + right.shape[1]] = right * scaling
            column += right.shape[1]
        row += out_features
    return LowRank(shrink, expand)
