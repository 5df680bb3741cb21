from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from infra_lab.engine.llm import LLM
from tests.server.running import RunningServer, running
from tests.server.tiny_model import load_tiny, save_tiny_model


@pytest.fixture(scope="session")
def tiny_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of two layers with a tokenizer of bytes and a chat template."""
    return save_tiny_model(tmp_path_factory.mktemp("tiny") / "tiny-llama")


@pytest.fixture(scope="session")
def tiny_llm(tiny_folder: Path) -> LLM:
    return load_tiny(tiny_folder)


@pytest.fixture(scope="session")
def shared_server(tiny_llm: LLM) -> Iterator[RunningServer]:
    with running(tiny_llm) as server:
        yield server
    tiny_llm.engine.scheduler.check_integrity()


@pytest.fixture
def tiny_server(shared_server: RunningServer) -> Iterator[RunningServer]:
    """A server with every setting at its default; behind a test nothing may run, wait or be
    held."""
    yield shared_server
    stats = shared_server.at_rest()
    assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)
