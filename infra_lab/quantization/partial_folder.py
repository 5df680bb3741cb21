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
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from infra_lab.errors import UsageError
from infra_lab.quantization.layer_result import LayerResult

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

    def has(self, layer: int) -> bool:
        return self._file(layer).is_file()

    def load(self, layer: int) -> LayerResult:
        return LayerResult.load(self._file(layer))

    def save(self, layer: int, result: LayerResult) -> None:
        file = self._file(layer)
        unfinished = file.with_suffix(".unfinished")
        result.save(unfinished)
        unfinished.replace(file)

    def remove(self) -> None:
        shutil.rmtree(self.path)

    def _file(self, layer: int) -> Path:
        return self.path / f"layer-{layer:05}.safetensors"


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
