"""A launch that cannot be: the error says what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import torch

from kernels.checks import require_runnable
from kernels.errors import KernelInputError

ROOT = Path(__file__).resolve().parents[2]


def test_tensors_on_another_gpu_than_the_current_one_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Triton would launch on the current one, which may not read another's memory."""
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)

    def on_gpu(index: int) -> torch.Tensor:
        return cast(torch.Tensor, SimpleNamespace(device=torch.device("cuda", index)))

    require_runnable("k", x=on_gpu(0))
    with pytest.raises(KernelInputError, match=r"x is on cuda:1.*within torch\.cuda\.device\(1\)"):
        require_runnable("k", x=on_gpu(1))


def test_a_launch_on_a_cpu_without_an_interpreter_is_refused() -> None:
    """In another process: this one interprets."""
    program = """
import torch
from kernels.errors import KernelInputError
from kernels.swiglu import swiglu
try:
    swiglu(torch.zeros(1, 4), torch.zeros(1, 4))
except KernelInputError as error:
    assert "gate is on cpu, a Triton kernel needs a GPU" in str(error), error
    assert "use_faithful_interpreter" in str(error), error
else:
    raise SystemExit("ran")
"""
    result = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
