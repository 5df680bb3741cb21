from __future__ import annotations

from pathlib import Path

import pytest

from tests.server.tiny_model import save_tiny_model


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two layers with a tokenizer of bytes and a chat template."""
    return save_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny-llama")
