"""What the operating system knows of this machine: processor, cores, caches, memory.

Answers "which numbers bound inference here?" as far as they can be read rather than
measured. Torch-free; `torch_probe` measures the rest.
"""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

# The instruction sets that torch's CPU kernels choose between, in the kernel's spelling.
FEATURES = (
    "avx2",
    "fma",
    "f16c",
    "avx512f",
    "avx512_vnni",
    "avx512_bf16",
    "avx_vnni",
    "amx_tile",
    "amx_bf16",
    "amx_int8",
    "asimd",
    "asimddp",
    "bf16",
    "i8mm",
    "sve",
)


@dataclass(frozen=True, slots=True)
class Cpu:
    """`usable_cores` counts the logical cores this process may run on."""

    model: str
    physical_cores: int | None
    usable_cores: int
    features: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes; a container's limit counts as the total where it is lower than the machine's."""

    total: int
    available: int


def read_cpu() -> Cpu:
    import psutil

    text = _read(Path("/proc/cpuinfo"))
    return Cpu(
        model=_model_name(text),
        physical_cores=psutil.cpu_count(logical=False),
        usable_cores=_usable_cores(),
        features=_features(text),
    )


def read_memory() -> Memory:
    import psutil

    memory = psutil.virtual_memory()
    limit = _container_number("memory.max", "memory/memory.limit_in_bytes")
    if limit is None or limit >= memory.total:
        return Memory(memory.total, memory.available)
    used = _container_number("memory.current", "memory/memory.usage_in_bytes") or 0
    return Memory(limit, min(memory.available, max(limit - used, 0)))


def last_level_cache_bytes() -> int | None:
    """Size of the largest cache of the first core; None where the system does not say."""
    sizes = []
    for file in Path("/sys/devices/system/cpu/cpu0/cache").glob("index*/size"):
        match = re.fullmatch(r"(\d+)K", _read(file).strip())
        if match:
            sizes.append(int(match[1]) * 1024)
    if not sizes and sys.platform == "darwin":
        sizes = [int(_sysctl("hw.l2cachesize") or 0)]
    return max(sizes, default=0) or None


def find_compiler() -> str | None:
    """A C compiler on PATH; the CPU kernels and Triton's launchers are built with one."""
    names = [os.environ.get("CC", ""), "cc", "gcc", "clang"]
    if os.name == "nt":
        names.append("cl")
    return next((found for name in names if name and (found := shutil.which(name))), None)


def _model_name(cpuinfo: str) -> str:
    match = re.search(r"^model name\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    if match:
        return match[1].strip()
    if sys.platform == "darwin":
        return _sysctl("machdep.cpu.brand_string") or platform.machine()
    return platform.processor() or platform.machine()


def _features(cpuinfo: str) -> tuple[str, ...]:
    match = re.search(r"^(?:flags|Features)\s*:\s*(.+)$", cpuinfo, re.MULTILINE)
    flags = set(match[1].split()) if match else set()
    return tuple(name for name in FEATURES if name in flags)


def _usable_cores() -> int:
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def _container_number(version_2: str, version_1: str) -> int | None:
    """A number from the control group of this process's container, if there is one."""
    for name in (version_2, version_1):
        text = _read(Path("/sys/fs/cgroup") / name).strip()
        if text.isdigit():
            return int(text)
    return None


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""


def _sysctl(name: str) -> str:
    try:
        result = subprocess.run(["sysctl", "-n", name], capture_output=True, text=True, timeout=5)
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return result.stdout.strip()
