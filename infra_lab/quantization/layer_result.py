"""What quantizing one decoder layer gives, and how it is kept in a file until all are done."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path

import torch
from safetensors.torch import save_file

from infra_lab.formats.quantized_weight import QuantizedWeight
from infra_lab.models.safetensors_file import opened

_TENSORS = ("codes", "values", "scales", "zeros", "offsets", "g_idx")
_DENSE = "dense."


@dataclass(frozen=True, slots=True)
class LayerResult:
    """Both by full name in the checkpoint.

    Attributes:
        weights: the quantized matrices.
        dense: tensors that stay as they are but have other values: norms that took over a scale.
    """

    weights: dict[str, QuantizedWeight] = field(default_factory=dict)
    dense: dict[str, torch.Tensor] = field(default_factory=dict)

    def save(self, file: Path) -> None:
        tensors = {_DENSE + name: tensor.contiguous() for name, tensor in self.dense.items()}
        sizes = {}
        for name, weight in self.weights.items():
            sizes[name] = [weight.bits, weight.group_size]
            for part in _TENSORS:
                tensor = getattr(weight, part)
                if tensor is not None:
                    # Two weights may share one table, which a safetensors file may not.
                    tensors[f"{part}.{name}"] = tensor.clone(memory_format=torch.contiguous_format)
        save_file(tensors, file, metadata={"sizes": json.dumps(sizes)})

    @classmethod
    def load(cls, file: Path) -> LayerResult:
        """Raises ModelLoadError when the file is damaged."""
        names = weight_names(file)
        return cls({name: load_weight(file, name) for name in names}, load_dense(file))


def weight_names(file: Path) -> list[str]:
    with opened(file) as tensors:
        return list(json.loads(tensors.metadata()["sizes"]))


def load_weight(file: Path, name: str) -> QuantizedWeight:
    """One quantized matrix of a layer's file."""
    with opened(file) as tensors:
        bits, group_size = json.loads(tensors.metadata()["sizes"])[name]
        kept = set(tensors.keys())
        parts = {
            part: tensors.get_tensor(f"{part}.{name}").clone()
            for part in _TENSORS
            if f"{part}.{name}" in kept
        }
    return QuantizedWeight(bits=bits, group_size=group_size, **parts)


def load_dense(file: Path) -> dict[str, torch.Tensor]:
    with opened(file) as tensors:
        return {
            name.removeprefix(_DENSE): tensors.get_tensor(name).clone()
            for name in sorted(tensors.keys())
            if name.startswith(_DENSE)
        }
