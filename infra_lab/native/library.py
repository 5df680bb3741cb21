"""Compiles the C files of this folder with the system's C compiler, once, and loads them.

The library goes into the cache folder under a name made of the source, the compiler, the flags
and the processor, so that none of them can change without a new one. Where there is no
compiler, or no OpenMP, nothing breaks: torch does the work instead, more slowly.
"""

from __future__ import annotations

import ctypes
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache
from pathlib import Path

import torch

from infra_lab.paths import default_cache_dir

logger = logging.getLogger(__name__)

FOLDER = Path(__file__).parent
SOURCES = tuple(sorted(FOLDER.glob("*.c")))
HEADERS = tuple(sorted(FOLDER.glob("*.h")))
# Sums may be reordered, as vector code must; -ffast-math as a whole is avoided because it changes
# how the entire process treats denormals.
FLAGS = (
    "-O2",
    "-march=native",
    "-ftree-vectorize",
    "-funroll-loops",
    "-fassociative-math",
    "-fno-signed-zeros",
    "-fno-trapping-math",
    "-fno-math-errno",
    "-ffinite-math-only",
    "-fopenmp",
    "-fPIC",
)
COMPILE_TIMEOUT_S = 180  # ten times what it takes on two cores that ten others use


class NativeUnavailableError(Exception):
    """There are no compiled kernels; the message says why."""


@cache
def load_library() -> ctypes.CDLL:
    """The compiled kernels. On Linux they share torch's OpenMP threads: both ask for
    libgomp.so.1, and torch has loaded its own by that name already (seen with torch 2.13's CPU
    wheel); a second pool of threads would get in the way of the first.

    Raises NativeUnavailableError.
    """
    compiler = find_c_compiler()
    if compiler is None:
        raise NativeUnavailableError("no C compiler was found")
    path = _library_path(compiler)
    if not path.exists():
        _compile(compiler, path)
    try:
        library = ctypes.CDLL(str(path))
    except OSError as error:
        raise NativeUnavailableError(f"{path} cannot be loaded: {error}") from None
    _declare(library)
    return library


@cache
def is_available() -> bool:
    """Whether the kernels can be had; if not, says why once, as a warning."""
    try:
        load_library()
    except NativeUnavailableError as reason:
        logger.warning(
            "running without the compiled CPU kernels, which is slower: %s "
            "(`infra-lab doctor` says what to do)",
            reason,
        )
        return False
    return True


def serves(tensor: torch.Tensor) -> bool:
    """Whether the kernels can work on this tensor and exist here."""
    return tensor.dtype == torch.float32 and tensor.is_cpu and is_available()


def _declare(library: ctypes.CDLL) -> None:
    pointer, size = ctypes.c_void_p, ctypes.c_int64
    library.panel_width.restype = ctypes.c_int
    library.linear.argtypes = (*[pointer] * 4, *[size] * 4, ctypes.c_int)
    library.linear.restype = None
    library.quantized_linear.argtypes = (*[pointer] * 4, size, size, ctypes.c_int)
    library.quantized_linear.restype = None
    library.multiplies_int8.restype = ctypes.c_int
    library.int8_linear.argtypes = (*[pointer] * 4, size, size, ctypes.c_int)
    library.int8_linear.restype = None
    library.quantized_rows.argtypes = (pointer, pointer, size, pointer, ctypes.c_int)
    library.quantized_rows.restype = None
    library.pack_codes.argtypes = (pointer, pointer, *[size] * 4, ctypes.c_int)
    library.pack_codes.restype = None
    library.reads_halves.restype = ctypes.c_int
    library.decodes.argtypes = (ctypes.c_int, ctypes.c_int)
    library.decodes.restype = ctypes.c_int
    library.rms_norm.argtypes = (*[pointer] * 4, *[size] * 3, ctypes.c_float, ctypes.c_int)
    library.rms_norm.restype = None
    library.silu_and_mul.argtypes = (pointer, pointer, size, size, size, ctypes.c_int)
    library.silu_and_mul.restype = None
    library.round_rows.argtypes = (pointer, pointer, size, size, ctypes.c_float, ctypes.c_int)
    library.round_rows.restype = None
    library.rotate.argtypes = (*[pointer] * 3, *[size] * 4, ctypes.c_int)
    library.rotate.restype = None
    library.paged_attention.argtypes = (pointer, ctypes.c_int)
    library.paged_attention.restype = None
    library.replay.argtypes = (pointer, size, size, ctypes.c_int)
    library.replay.restype = None
    library.paged_attention_tokens.argtypes = (size, size)
    library.paged_attention_tokens.restype = size
    library.paged_attention_scratch.argtypes = (size, size, size)
    library.paged_attention_scratch.restype = size


def find_c_compiler() -> str | None:
    """$CC, or the first of cc, gcc and clang on PATH."""
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        if name and (found := shutil.which(name)):
            return found
    return None


def _library_path(compiler: str) -> Path:
    facts = "\0".join((compiler, *FLAGS, platform.machine(), _cpu_features()))
    sources = b"".join(source.read_bytes() for source in (*SOURCES, *HEADERS))
    digest = hashlib.sha256(sources + facts.encode()).hexdigest()[:16]
    return default_cache_dir() / "native" / f"kernels-{digest}.so"


def _cpu_features() -> str:
    """What -march=native depends on, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _compile(compiler: str, path: Path) -> None:
    """The files at the same time, into a temporary folder: under the final name the library is
    whole or absent."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder, ThreadPoolExecutor() as pool:
            objects = [Path(folder) / f"{source.stem}.o" for source in SOURCES]
            commands = [
                (compiler, *FLAGS, "-c", "-o", str(built), str(source))
                for source, built in zip(SOURCES, objects, strict=True)
            ]
            list(pool.map(_run, commands))  # which raises what a command raised
            built = Path(folder) / path.name
            _run((compiler, *FLAGS, "-shared", "-o", str(built), *map(str, objects)))
            built.replace(path)
    except subprocess.CalledProcessError as error:
        lines = error.stderr.strip().split("\n")
        reason = next((line for line in lines if "error:" in line), lines[0])
        reason = reason or f"it ended with status {error.returncode} and said nothing"
        raise NativeUnavailableError(f"{compiler} cannot compile it: {reason}") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise NativeUnavailableError(f"{compiler} cannot compile it: {error}") from None


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True, timeout=COMPILE_TIMEOUT_S)
