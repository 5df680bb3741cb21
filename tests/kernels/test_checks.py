"""A CPU tensor and no interpreter: the error says what to do."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


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
