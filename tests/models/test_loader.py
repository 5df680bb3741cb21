from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from infra_lab.errors import ModelLoadError, ModelNotFoundError
from infra_lab.models.gguf_checkpoint import GGUFCheckpoint
from infra_lab.models.hf_checkpoint import HFCheckpoint
from infra_lab.models.loader import open_checkpoint, read_config


def test_a_gguf_file_and_a_folder_are_told_apart_by_looking(tiny: Any, tmp_path: Path) -> None:
    config = tiny.config("llama")
    weights = tiny.weights(config)
    file = tiny.gguf(tmp_path / "no-suffix", config, weights)
    folder = tiny.hf(tmp_path / "folder.gguf", config, weights)
    assert isinstance(open_checkpoint(file), GGUFCheckpoint)
    assert isinstance(open_checkpoint(folder), HFCheckpoint)
    assert read_config(file) == read_config(folder) == config


def test_a_path_with_nothing_there_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFoundError, match="no such file or folder"):
        open_checkpoint(tmp_path / "nowhere")


def test_a_folder_of_gguf_files_is_pointed_into(tiny: Any, tmp_path: Path) -> None:
    config = tiny.config("llama")
    tiny.gguf(tmp_path / "model.gguf", config, tiny.weights(config))
    with pytest.raises(ModelLoadError, match=r"needs a config\.json.*model\.gguf"):
        open_checkpoint(tmp_path)


def test_a_file_of_another_kind_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "model.onnx"
    file.write_bytes(b"\x08\x07")
    with pytest.raises(ModelLoadError, match="not a GGUF file; give"):
        open_checkpoint(file)


def test_reading_a_config_imports_no_torch(tiny: Any, tmp_path: Path) -> None:
    config = tiny.config("llama")
    file = tiny.gguf(tmp_path / "m.gguf", config, tiny.weights(config))
    program = (
        "import sys, pathlib\n"
        "from infra_lab.models.loader import read_config\n"
        "read_config(pathlib.Path(sys.argv[1]))\n"
        "sys.exit('torch' in sys.modules)\n"
    )
    done = subprocess.run([sys.executable, "-c", program, str(file)], check=False)
    assert done.returncode == 0
