"""Kernel tests run under the faithful interpreter, or on a GPU where one is asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from kernels.testing.interpreter import use_faithful_interpreter


@pytest.fixture(scope="session")
def device() -> str:
    """Where the tensors of a kernel test live; KERNEL_TEST_DEVICE=cuda runs compiled kernels."""
    return os.environ.get("KERNEL_TEST_DEVICE", "cpu")


@pytest.fixture(autouse=True, scope="module")
def _interpreted(device: str) -> Iterator[None]:
    """One interpreter for a module's tests: it rewrites each kernel once."""
    if device != "cpu":
        yield
        return
    with use_faithful_interpreter():
        yield
