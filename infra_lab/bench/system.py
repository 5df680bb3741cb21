"""The facts about a machine and a process that a benchmark's figures depend on. Torch-free."""

from __future__ import annotations

import platform
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from infra_lab.bench.peer_runners.saved_job import peak_rss_mb as peak_rss_mb
from infra_lab.bench.peer_runners.saved_job import usable_cores as usable_cores


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
