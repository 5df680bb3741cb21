"""Finished layers of an unfinished run, beside what they were made with.

Answers "the job died in layer 61 of 80: what now?": the same command goes on there. A layer's file
appears whole or not at all; a run with other settings, or of another model, is refused rather than
mixed in.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from infra_lab.errors import UsageError
from infra_lab.formats.quantized_weight import QuantizedWeight
from infra_lab.quantization.layer_result import (
    LayerResult,
    load_dense,
    load_weight,
    weight_names,
)

_MANIFEST = "manifest.json"


class PartialFolder:
    """`OUT.partial`: manifest.json, and layer-00000.safetensors and so on."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def open(cls, path: Path, manifest: Mapping[str, Any]) -> PartialFolder:
        """Begins, or goes on where the same manifest was left.

        Raises UsageError when what is there was made with another.
        """
        file = path / _MANIFEST
        wanted = json.loads(json.dumps(manifest))
        if path.exists():
            found = _read_manifest(file)
            if found != wanted:
                changed = sorted(
                    key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key)
                )
                raise UsageError(
                    f"{path} holds an unfinished run with another {', '.join(changed)}: give the "
                    "same settings to go on with it, or delete it to begin anew"
                )
            return cls(path)
        path.mkdir(parents=True)
        _write_whole(file, json.dumps(wanted, indent=2).encode())
        return cls(path)

    @property
    def num_layers(self) -> int:
        """Finished ones."""
        return len(list(self.path.glob("layer-*.safetensors")))

    def has(self, layer: int) -> bool:
        return self._file(layer).is_file()

    def load(self, layer: int) -> LayerResult:
        return LayerResult.load(self._file(layer))

    def save(self, layer: int, result: LayerResult) -> None:
        file = self._file(layer)
        unfinished = file.with_suffix(".unfinished")
        result.save(unfinished)
        unfinished.replace(file)

    def weights(self, num_layers: int) -> Mapping[str, QuantizedWeight]:
        """Every quantized matrix by name, read when it is asked for and not kept."""
        files = map(self._file, range(num_layers))
        return _KeptWeights({name: file for file in files for name in weight_names(file)})

    def dense(self, num_layers: int) -> dict[str, torch.Tensor]:
        merged: dict[str, torch.Tensor] = {}
        for layer in range(num_layers):
            merged |= load_dense(self._file(layer))
        return merged

    def remove(self) -> None:
        shutil.rmtree(self.path)

    def _file(self, layer: int) -> Path:
        return self.path / f"layer-{layer:05}.safetensors"


class _KeptWeights(Mapping[str, QuantizedWeight]):
    def __init__(self, files: Mapping[str, Path]) -> None:
        self._files = files

    def __getitem__(self, name: str) -> QuantizedWeight:
        return load_weight(self._files[name], name)

    def __contains__(self, name: object) -> bool:
        return name in self._files  # the one that is inherited would read the weight

    def __iter__(self) -> Iterator[str]:
        return iter(self._files)

    def __len__(self) -> int:
        return len(self._files)


def content_hash(path: Path) -> str:
    """SHA-256 over a model's file, or over a folder's config and weights."""
    digest = hashlib.sha256()
    files = [path]
    if path.is_dir():
        files = sorted([path / "config.json", *path.glob("*.safetensors")])
    for file in files:
        with file.open("rb") as stream:
            digest.update(hashlib.file_digest(stream, "sha256").digest())
    return digest.hexdigest()


def text_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def _read_manifest(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise UsageError(
            f"{file.parent} is in the way and no unfinished run of this command: move or delete it"
        )
    return found


def _write_whole(file: Path, content: bytes) -> None:
    unfinished = file.with_suffix(".unfinished")
    with unfinished.open("wb") as stream:
        stream.write(content)
        stream.flush()
        os.fsync(stream.fileno())
    unfinished.replace(file)
