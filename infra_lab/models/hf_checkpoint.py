"""A Hugging Face folder as a checkpoint: config.json and one or many safetensors files."""

from __future__ import annotations

from pathlib import Path

import torch

from infra_lab.errors import ModelLoadError
from infra_lab.models.config import ModelConfig
from infra_lab.models.hf_config import Settings, hf_config
from infra_lab.models.safetensors_file import opened, tensor_shapes
from infra_lab.models.shapes import Shape, check_shapes

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
        shapes: dict[str, Shape] = {}
        for file in _weight_files(path):
            for name, shape in tensor_shapes(file).items():
                self._files[name] = file
                shapes[name] = shape
        # Old checkpoints store rotary frequencies, and tied ones may repeat the embedding.
        ignored = ["rotary_emb.inv_freq"] + [_TIED_HEAD] * self.config.tie_word_embeddings
        self._names = check_shapes(self.config, shapes, ignored, path)

    def names(self) -> list[str]:
        return list(self._names)

    def tensor(
        self, name: str, dtype: torch.dtype, out: torch.Tensor | None = None
    ) -> torch.Tensor:
        file = self._files.get(name)
        if file is None:
            raise ModelLoadError(f"{self.path}: tensor {name!r} is missing")
        with opened(file) as tensors:
            stored: torch.Tensor = tensors.get_tensor(name)
        # What was stored is the mapped file itself: always a copy.
        return stored.to(dtype, copy=True) if out is None else out.copy_(stored)


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
