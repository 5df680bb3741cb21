"""Opens whatever a path holds: a GGUF file or a Hugging Face folder. Torch only when needed."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from infra_lab.errors import ModelLoadError, ModelNotFoundError
from infra_lab.models.config import ModelConfig
from infra_lab.models.gguf_config import gguf_config
from infra_lab.models.gguf_header import is_gguf, read_header
from infra_lab.models.hf_config import hf_config

if TYPE_CHECKING:
    from infra_lab.models.checkpoint import Checkpoint


def open_checkpoint(path: Path) -> Checkpoint:
    """Reads config and tensor list, and checks them against each other; weights are read later.

    Raises ModelNotFoundError when there is nothing at `path`, ModelLoadError when what is there
    cannot be used.
    """
    from infra_lab.models.gguf_checkpoint import GGUFCheckpoint
    from infra_lab.models.hf_checkpoint import HFCheckpoint

    return HFCheckpoint(path) if _is_folder(path) else GGUFCheckpoint(path)


def read_config(path: Path) -> ModelConfig:
    """The config alone, without importing torch; raises like `open_checkpoint`."""
    return hf_config(path) if _is_folder(path) else gguf_config(read_header(path))


def _is_folder(path: Path) -> bool:
    """True for a Hugging Face folder, False for a GGUF file; anything else is refused."""
    if path.is_dir():
        if not (path / "config.json").exists():
            files = sorted(file.name for file in path.glob("*.gguf"))
            hint = f"; give the GGUF file itself: {', '.join(files)}" if files else ""
            raise ModelLoadError(f"{path}: a model folder needs a config.json{hint}")
        return True
    if not path.exists():
        raise ModelNotFoundError(f"{path}: there is no such file or folder")
    try:
        if is_gguf(path):
            return False
    except OSError as error:
        raise ModelLoadError(f"{path}: cannot be read: {error}") from error
    raise ModelLoadError(
        f"{path}: not a GGUF file; give a .gguf file or a Hugging Face folder with config.json"
    )
