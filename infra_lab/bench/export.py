"""A GGUF file as a Hugging Face folder in fp32, for engines that read only those.

Both engines of a comparison then compute with the same numbers: each weight is dequantized
once, by our reader, and stored as it is. The folder is made in a temporary place and moved
whole, so a killed export leaves nothing that looks finished.
"""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path

from infra_lab.models.checkpoint import Checkpoint
from infra_lab.models.hf_export import hugging_face_config, save_tokenizer


def hugging_face_folder(path: Path, cache_dir: Path) -> Path:
    """`path` itself when it is a folder, else its fp32 export under `cache_dir`, made once.

    The export is named after the file's size and time, so that another file under the same
    name gets its own. Raises ModelLoadError when the file cannot be read.
    """
    if path.is_dir():
        return path
    facts = path.stat()
    folder = cache_dir / "exports" / f"{path.stem}-{facts.st_size}-{facts.st_mtime_ns}-float32"
    if not folder.is_dir():
        export_folder(path, folder)
    return folder


def export_folder(path: Path, folder: Path) -> None:
    """Writes config.json, model.safetensors and the tokenizer; atomic."""
    from infra_lab.models.loader import open_checkpoint

    checkpoint = open_checkpoint(path)
    folder.parent.mkdir(parents=True, exist_ok=True)
    work = Path(tempfile.mkdtemp(prefix=".export-", dir=folder.parent))
    try:
        config = json.dumps(hugging_face_config(checkpoint.config), indent=2)
        (work / "config.json").write_text(config, encoding="utf-8")
        _save_weights(checkpoint, work / "model.safetensors")
        save_tokenizer(path, work)
        try:
            work.replace(folder)
        except OSError:
            # Another process was faster: a folder that has contents cannot be replaced.
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(work, ignore_errors=True)


def _save_weights(checkpoint: Checkpoint, target: Path) -> None:
    import torch
    from safetensors.torch import save_file

    weights = {name: checkpoint.tensor(name, torch.float32) for name in checkpoint.names()}
    save_file(weights, target, metadata={"format": "pt"})
