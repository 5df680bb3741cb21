"""A Hugging Face folder as a checkpoint: config.json and one or many safetensors files.

Quantized folders (GPTQ, AWQ, compressed-tensors, bitsandbytes, fp8) give their codes as they are
stored, and dequantized like any other.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from infra_lab.errors import ModelLoadError
from infra_lab.formats.layer_format import INPUT_SCALE, LayerFormat
from infra_lab.formats.quantized_weight import ActivationFormat, QuantizedWeight
from infra_lab.models.config import ModelConfig
from infra_lab.models.hf_config import Settings, hf_config
from infra_lab.models.hf_quantized import folder_format, quantized_layers, stored_names
from infra_lab.models.safetensors_file import TensorEntry, float_shapes, opened, tensor_entries
from infra_lab.models.shapes import Shape, check_shapes, parameter_shapes

_SINGLE_FILE = "model.safetensors"
_INDEX = "model.safetensors.index.json"
_TIED_HEAD = "lm_head.weight"


class HFCheckpoint:
    """Implements `Checkpoint` over a folder.

    Raises ModelLoadError on construction when config.json, the index or a safetensors file is
    damaged or missing, something the config asks for is unsupported, or a tensor is missing or
    of the wrong shape.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.config: ModelConfig = hf_config(path)
        self._files: dict[str, Path] = {}
        self._entries: dict[str, TensorEntry] = {}
        for file in _weight_files(path):
            for name, entry in tensor_entries(file).items():
                self._files[name] = file
                self._entries[name] = entry
        self.format = folder_format(path)
        self._layers: dict[str, LayerFormat] = {}
        if self.format is not None:
            self._layers = quantized_layers(self.format, self.config, self._entries, path)
        self._shapes = parameter_shapes(self.config)
        self._names = self._checked_names()

    def names(self) -> list[str]:
        return list(self._names)

    def tensor(
        self, name: str, dtype: torch.dtype, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        weight = self.quantized(name)
        stored = self._stored(name) if weight is None else weight.dequantize()
        # What was stored is the mapped file itself: always a copy.
        return stored.to(dtype, copy=True) if out is None else out.copy_(stored)

    def quantized(self, name: str) -> QuantizedWeight | None:
        layer = self._layers.get(name)
        if layer is None:
            return None
        out_features, in_features = self._shapes[name]
        stored = stored_names(name, layer, self._shapes[name], self._entries)
        tensors = {suffix: self._stored(full).clone() for suffix, full in stored.items()}
        try:
            return layer.weight.read(tensors, out_features, in_features)
        except ModelLoadError as error:
            module = name.removesuffix(".weight")
            raise ModelLoadError(f"{self.path}: layer {module!r}: {error}") from error

    def activation_format(self, name: str) -> ActivationFormat | None:
        layer = self._layers.get(name)
        if layer is None or layer.activation is None or not layer.fixed_input_scale:
            return None if layer is None else layer.activation
        scale = self._stored(name.removesuffix("weight") + INPUT_SCALE)
        return replace(layer.activation, scale=float(scale.reshape(())))

    def _stored(self, name: str) -> torch.Tensor:
        file = self._files.get(name)
        if file is None:
            raise ModelLoadError(f"{self.path}: tensor {name!r} is missing")
        with opened(file) as tensors:
            tensor: torch.Tensor = tensors.get_tensor(name)
        return tensor

    def _checked_names(self) -> list[str]:
        rest = dict(self._entries)
        shapes: dict[str, Shape] = {}
        for name, layer in self._layers.items():
            for stored in stored_names(name, layer, self._shapes[name], self._entries).values():
                del rest[stored]
            shapes[name] = self._shapes[name]
        for name, entry in rest.items():
            shapes |= float_shapes({name: entry}, self._files[name])
        # Old checkpoints store rotary frequencies, and tied ones may repeat the embedding.
        ignored = ["rotary_emb.inv_freq"] + [_TIED_HEAD] * self.config.tie_word_embeddings
        return check_shapes(self.config, shapes, ignored, self.path)


def _weight_files(folder: Path) -> list[Path]:
    if (folder / _INDEX).exists():
        return _indexed_files(folder)
    if (folder / _SINGLE_FILE).exists():
        return [folder / _SINGLE_FILE]
    if any(folder.glob("pytorch_model*.bin")):
        raise ModelLoadError(
            f"{folder}: has its weights as pytorch_model.bin only, which can run code when it is "
            "opened and is not read here; convert it with transformers: "
            "AutoModelForCausalLM.from_pretrained(folder).save_pretrained(new_folder)"
        )
    raise ModelLoadError(f"{folder}: has no weights ({_SINGLE_FILE} or {_INDEX})")


def _indexed_files(folder: Path) -> list[Path]:
    index = Settings.read(folder / _INDEX)
    weight_map = index.values.get("weight_map")
    if not isinstance(weight_map, dict) or not all(
        isinstance(file, str) for file in weight_map.values()
    ):
        raise ModelLoadError(f"{index.path}: 'weight_map' must map tensor names to file names")
    files = [folder / file for file in dict.fromkeys(weight_map.values())]
    for file in files:
        if not file.exists():
            raise ModelLoadError(f"{file}: named by {_INDEX}, but there is no such file")
    return files
