"""Asks torch about itself and measures what bounds inference on this machine.

Two numbers bound a decode step and a prefill: memory bandwidth and matrix products per
second. They are measured here as the engine would use them. Run as a child process
(`python -m infra_lab.cli.torch_probe BUFFER_BYTES`), printing one JSON object, so that a
torch that breaks on import, or kills its process, is a finding and not a crash.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

SECONDS_PER_MEASUREMENT = 0.4
_TIMEOUT_SECONDS = 120


def probe(buffer_bytes: int) -> dict[str, Any] | str:
    """The child's findings, or why there are none, in one line."""
    command = [sys.executable, "-m", "infra_lab.cli.torch_probe", str(buffer_bytes)]
    try:
        child = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        return f"no answer within {_TIMEOUT_SECONDS} seconds"
    if child.returncode < 0:
        return f"killed by signal {-child.returncode} while importing or using torch"
    if child.returncode != 0:
        lines = child.stderr.strip().splitlines()
        return lines[-1] if lines else f"exit status {child.returncode}"
    findings: dict[str, Any] = json.loads(child.stdout.splitlines()[-1])
    return findings


def _describe() -> dict[str, Any]:
    import torch

    return {
        "version": torch.__version__,
        "cuda_build": torch.version.cuda,
        "hip_build": torch.version.hip,
        "threads": torch.get_num_threads(),
        "cpu_capability": torch.backends.cpu.get_cpu_capability(),
        "gpus": _gpus(),
        "kernels_error": _kernels_error(),
    }


def _kernels_error() -> str | None:
    """Why the engine's compiled CPU kernels cannot be had; None where they can."""
    from infra_lab.native.library import NativeUnavailableError, load_library

    try:
        load_library()
    except NativeUnavailableError as reason:
        return str(reason)
    return None


def _gpus() -> list[dict[str, Any]]:
    import torch

    found = []
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        properties = torch.cuda.get_device_properties(index)
        found.append(
            {
                "name": properties.name,
                "capability": f"{properties.major}.{properties.minor}",
                "memory_bytes": properties.total_memory,
            }
        )
    return found


def _measure(buffer_bytes: int) -> dict[str, float]:
    """GB/s of reading (a dot product) and copying (read plus write), GFLOP/s by type."""
    import torch

    source = torch.ones(buffer_bytes // 4)
    target = torch.empty_like(source)
    moved = source.numel() * 4
    read = moved / _best_seconds(lambda: torch.dot(source, source))
    copy = 2 * moved / _best_seconds(lambda: target.copy_(source))
    return {
        "read_gb_per_s": read / 1e9,
        "copy_gb_per_s": copy / 1e9,
        "fp32_gflop_per_s": _gflop_per_s(torch.float32),
        "bf16_gflop_per_s": _gflop_per_s(torch.bfloat16),
    }


def _gflop_per_s(dtype: Any, size: int = 1024) -> float:
    import torch

    left = torch.ones(size, size, dtype=dtype)
    right = torch.ones(size, size, dtype=dtype)
    return 2 * size**3 / _best_seconds(lambda: left @ right) / 1e9


def _best_seconds(call: Callable[[], object]) -> float:
    """The fastest of the calls that fit into a fixed time, after one to warm up."""
    call()
    best = float("inf")
    end = time.perf_counter() + SECONDS_PER_MEASUREMENT
    while True:
        start = time.perf_counter()
        call()
        now = time.perf_counter()
        best = min(best, now - start)
        if now >= end:
            return best


if __name__ == "__main__":
    sys.stdout.write(json.dumps({**_describe(), **_measure(int(sys.argv[1]))}) + "\n")
