"""The checks of `infra-lab doctor`: each looks at one thing and says how to mend it.

A check is a function that returns a Check and never raises for what it finds. "fail" means
that infra-lab cannot work like this, "warn" that something will be slow or unavailable.
"""

from __future__ import annotations

import os
import platform
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Literal

from infra_lab.cli.machine import Cpu, Memory, find_compiler
from infra_lab.cli.terminal import counted, human_bytes
from infra_lab.kernels_guard import foreign_kernels, mend
from infra_lab.models.catalog import DEFAULT_MODEL
from infra_lab.models.store import FileState, ModelStore

Verdict = Literal["ok", "warn", "fail"]
Findings = dict[str, Any] | str
"""What `torch_probe.probe` returned: findings, or the reason why there are none."""

REINSTALL = "python -m pip install -r requirements.lock"
_HOW_TO_GET_A_COMPILER = {
    "darwin": "xcode-select --install",
    "win32": "install Visual Studio Build Tools",
}.get(sys.platform, "apt install build-essential, or your system's equal")
NEEDED = ("numpy", "safetensors", "gguf", "huggingface_hub", "jinja2", "filelock")

_TORCH_FIRST = "mend torch first"
_WARN_MEMORY_BYTES = 2_000_000_000  # the default model in fp32, its KV pool and torch itself
_FAIL_MEMORY_BYTES = 1_000_000_000
_DISK_BYTES = 500_000_000


@dataclass(frozen=True, slots=True)
class Check:
    name: str
    value: str
    verdict: Verdict = "ok"
    mend: str = ""


def check_python() -> Check:
    value = f"{platform.python_version()} ({sys.executable})"
    if sys.maxsize <= 2**32:
        return Check("Python", f"{value}, 32 bit", "fail", "install a 64-bit Python")
    return Check("Python", value)


def check_torch(findings: Findings) -> Check:
    if isinstance(findings, str):
        value = f"{_version('torch') or 'missing'}: {findings}"
        return Check("torch", value, "fail", REINSTALL)
    build = findings["cuda_build"] or findings["hip_build"]
    kind = f"GPU build {build}" if build else "CPU build"
    value = (
        f"{findings['version']}, {kind}, {counted(findings['threads'], 'thread')}, "
        f"kernels for {findings['cpu_capability']}"
    )
    return Check("torch", value)


def check_triton(findings: Findings) -> Check:
    found = _version("triton")
    if found:
        return Check("triton", found)
    if isinstance(findings, dict) and findings["gpus"]:
        return Check("triton", "missing", "warn", f"{REINSTALL} (the GPU kernels need it)")
    return Check("triton", "missing; only GPU kernels need it")


def check_transformers() -> Check:
    found = _version("transformers")
    if found is None:
        return Check("transformers", "missing", "fail", REINSTALL)
    if not found.startswith("5."):
        return Check("transformers", found, "warn", f"made for 5.x: {REINSTALL}")
    return Check("transformers", found)


def check_packages() -> Check:
    missing = [name for name in NEEDED if _version(name) is None]
    if missing:
        return Check("other packages", f"missing: {', '.join(missing)}", "fail", REINSTALL)
    return Check("other packages", "all there")


def check_kernels() -> Check:
    try:
        other = foreign_kernels()
    except Exception as error:  # a foreign package may break in any way when it is imported
        return Check("kernels package", f"{type(error).__name__}: {error}", "fail", REINSTALL)
    if other is None:
        return Check("kernels package", "infra-lab's own")
    return Check("kernels package", f"another one is first: {other}", "fail", mend(other))


def check_gpu(findings: Findings) -> Check:
    if isinstance(findings, str):
        return Check("GPU", "unknown: torch does not work", "warn", _TORCH_FIRST)
    gpus = [
        f"{gpu['name']} (compute capability {gpu['capability']}, "
        f"{human_bytes(gpu['memory_bytes'])})"
        for gpu in findings["gpus"]
    ]
    if gpus:
        return Check("GPU", ", ".join(gpus))
    if shutil.which("nvidia-smi"):
        return Check(
            "GPU",
            "a driver is installed, but torch sees no GPU",
            "warn",
            "run nvidia-smi; a torch whose version ends in +cpu is a CPU build: install torch "
            "without the CPU index",
        )
    return Check("GPU", "none: the engine runs on the CPU")


def check_cpu(cpu: Cpu) -> Check:
    physical = f"{counted(cpu.physical_cores, 'physical core')}, " if cpu.physical_cores else ""
    features = " ".join(cpu.features) or "features unknown"
    value = f"{cpu.model}, {physical}{cpu.usable_cores} usable, {features}"
    is_x86 = platform.machine().lower() in ("x86_64", "amd64")
    if is_x86 and cpu.features and "avx2" not in cpu.features:
        return Check("CPU", value, "warn", "without AVX2 every product is several times slower")
    return Check("CPU", value)


def check_memory(memory: Memory) -> Check:
    value = f"{human_bytes(memory.total)}, {human_bytes(memory.available)} available"
    advice = "close programs, or give a smaller KV pool (--kv-cache-mb)"
    if memory.available < _FAIL_MEMORY_BYTES:
        return Check("memory", value, "fail", f"too little for the default model: {advice}")
    if memory.available < _WARN_MEMORY_BYTES:
        return Check("memory", value, "warn", advice)
    return Check("memory", value)


def check_bandwidth(findings: Findings) -> Check:
    if isinstance(findings, str):
        return Check("memory bandwidth", "unknown: torch does not work", "warn", _TORCH_FIRST)
    return Check(
        "memory bandwidth",
        f"read {findings['read_gb_per_s']:.1f} GB/s, copy {findings['copy_gb_per_s']:.1f} GB/s",
    )


def check_products(findings: Findings) -> Check:
    if isinstance(findings, str):
        return Check("matrix products", "unknown: torch does not work", "warn", _TORCH_FIRST)
    return Check(
        "matrix products",
        f"fp32 {findings['fp32_gflop_per_s']:.0f} GFLOP/s, "
        f"bf16 {findings['bf16_gflop_per_s']:.0f} GFLOP/s",
    )


def check_compiler() -> Check:
    found = find_compiler()
    if found:
        return Check("C compiler", found)
    value = "none: the engine's CPU kernels and Triton need one"
    return Check("C compiler", value, "warn", _HOW_TO_GET_A_COMPILER)


def check_cpu_kernels(findings: Findings) -> Check:
    """The engine runs without them, at a fraction of the speed."""
    if isinstance(findings, str):
        return Check("CPU kernels", "not tried: torch does not work", "warn", REINSTALL)
    reason = findings["kernels_error"]
    if reason is None:
        return Check("CPU kernels", "compiled")
    advice = f"{_HOW_TO_GET_A_COMPILER}, with OpenMP, or name one in CC"
    return Check("CPU kernels", f"none, torch is used instead: {reason}", "warn", advice)


def check_disk(store: ModelStore) -> Check:
    place = next(p for p in (store.cache_dir, *store.cache_dir.absolute().parents) if p.exists())
    free = shutil.disk_usage(place).free
    value = f"{store.cache_dir}, {human_bytes(free)} free"
    advice = "choose another folder with INFRA_LAB_CACHE"
    if not place.is_dir() or not os.access(place, os.W_OK):
        return Check("cache folder", f"{value}, not writable", "fail", advice)
    if free < _DISK_BYTES:
        return Check("cache folder", value, "warn", f"make room, or {advice}")
    return Check("cache folder", value)


def check_model(store: ModelStore) -> Check:
    model = store.catalog[DEFAULT_MODEL]
    state = store.state(model, read=True)
    pull = f"infra-lab models pull {model.name}"
    if state is FileState.PRESENT:
        return Check("default model", f"{model.name}, intact")
    if state is FileState.MISSING:
        return Check("default model", f"{model.name} is not pulled yet", "warn", pull)
    return Check("default model", f"{model.name} is damaged ({state.value})", "fail", pull)


def run_checks(findings: Findings, cpu: Cpu, memory: Memory, store: ModelStore) -> Iterator[Check]:
    """Every check, in the order in which one would mend things."""
    yield check_python()
    yield check_torch(findings)
    yield check_triton(findings)
    yield check_transformers()
    yield check_packages()
    yield check_kernels()
    yield check_gpu(findings)
    yield check_cpu(cpu)
    yield check_memory(memory)
    yield check_bandwidth(findings)
    yield check_products(findings)
    yield check_compiler()
    yield check_cpu_kernels(findings)
    yield check_disk(store)
    yield check_model(store)


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None
