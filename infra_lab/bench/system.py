"""The facts about a machine and a process that a benchmark's figures depend on. Torch-free."""

from __future__ import annotations

import os
import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any


def peak_rss_mb() -> float:
    """Most resident memory this process has held, in MiB."""
    if sys.platform == "win32":
        import psutil

        return float(psutil.Process().memory_info().peak_wset) / 2**20
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    # The unit of ru_maxrss is the system's own: bytes on macOS, KiB elsewhere.
    return peak / (2**20 if sys.platform == "darwin" else 2**10)


def cpu_name() -> str:
    """The processor's name for people, or its architecture where the system does not tell."""
    if sys.platform.startswith("linux"):
        name = _linux_cpu_name()
    elif sys.platform == "darwin":
        name = _output_of(["sysctl", "-n", "machdep.cpu.brand_string"])
    else:
        name = platform.processor()
    return name or platform.machine()


def machine_facts() -> dict[str, Any]:
    """What a report names so that its figures can be compared with another's."""
    return {
        "cpu": cpu_name(),
        "cores": usable_cores(),
        "system": f"{platform.system()} {platform.machine()}",
        "python": platform.python_version(),
        "torch": installed_version("torch"),
    }


def usable_cores() -> int:
    """Cores that this process may run on, which a container can make fewer than there are."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def installed_version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _linux_cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return ""
    return next((line.partition(":")[2].strip() for line in lines if "model name" in line), "")


def _output_of(command: list[str]) -> str:
    try:
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
