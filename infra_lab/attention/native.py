"""Compiles `paged_decode.c` with the system's C compiler, once, and calls it.

The library goes into the cache folder under a name made of the source, the compiler, the flags
and the processor, so that none of them can change without a new one. Where there is no
compiler, or no OpenMP, nothing breaks: the torch backend decodes instead, and says why.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

import numpy as np
import torch

from infra_lab.paths import default_cache_dir

SOURCE = Path(__file__).with_name("paged_decode.c")
# -O3 was measured to be 3 times as slow as -O2 here. Sums may be reordered, as vector code must;
# -ffast-math as a whole is avoided because it changes how the entire process treats denormals.
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
    "-shared",
    "-fPIC",
)
COMPILE_TIMEOUT_S = 60
MAX_STACK_FLOATS = 1 << 16  # the kernel keeps the queries of one task on its stack


class NativeUnavailableError(Exception):
    """There is no compiled kernel; the message says why."""


class _Step(ctypes.Structure):
    """The C struct of the same name, field for field."""

    _fields_ = (
        ("query", ctypes.c_void_p),
        ("cache", ctypes.c_void_p),
        ("block_tables", ctypes.c_void_p),
        ("seq_lens", ctypes.c_void_p),
        ("out", ctypes.c_void_p),
        ("query_stride", ctypes.c_int64),
        ("max_blocks", ctypes.c_int64),
        ("num_requests", ctypes.c_int64),
        ("num_heads", ctypes.c_int64),
        ("num_kv_heads", ctypes.c_int64),
        ("head_dim", ctypes.c_int64),
        ("block_size", ctypes.c_int64),
        ("window", ctypes.c_int64),
        ("scale", ctypes.c_float),
    )


def paged_decode(
    query: torch.Tensor,
    cache: torch.Tensor,
    block_tables: np.ndarray,
    seq_lens: np.ndarray,
    scale: float,
    window: int | None,
    out: torch.Tensor,
) -> None:
    """Attends one query token of each request to its cached tokens.

    Args:
        query: fp32 [n, num_heads, head_dim], each row contiguous.
        cache: fp32 [num_blocks, block_size, 2, num_kv_heads, head_dim], contiguous.
        block_tables: int64 [n, max_blocks], contiguous.
        seq_lens: int64 [n], the query token included, all at least 1.
        out: fp32 [n, num_heads, head_dim], contiguous, overwritten.

    Raises:
        NativeUnavailableError: the kernel cannot be compiled here.
    """
    num_requests, num_heads, head_dim = query.shape
    step = _Step(
        query.data_ptr(),
        cache.data_ptr(),
        block_tables.ctypes.data,
        seq_lens.ctypes.data,
        out.data_ptr(),
        query.stride(0),
        block_tables.shape[1],
        num_requests,
        num_heads,
        cache.shape[3],
        head_dim,
        cache.shape[1],
        window or 0,
        scale,
    )
    load_library().paged_decode(ctypes.byref(step), torch.get_num_threads())


@cache
def load_library() -> ctypes.CDLL:
    """The compiled kernel. It shares torch's OpenMP threads: both ask for libgomp.so.1, and
    torch has loaded it already.

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
    library.paged_decode.argtypes = (ctypes.POINTER(_Step), ctypes.c_int)
    library.paged_decode.restype = None
    return library


def find_c_compiler() -> str | None:
    """$CC, or the first of cc, gcc and clang on PATH."""
    for name in (os.environ.get("CC"), "cc", "gcc", "clang"):
        if name and (found := shutil.which(name)):
            return found
    return None


def _library_path(compiler: str) -> Path:
    facts = "\0".join((compiler, *FLAGS, platform.machine(), _cpu_features()))
    digest = hashlib.sha256(SOURCE.read_bytes() + facts.encode()).hexdigest()[:16]
    return default_cache_dir() / "native" / f"paged_decode-{digest}.so"


def _cpu_features() -> str:
    """What -march=native depends on, where the system tells."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").split("\n")
    except OSError:
        return platform.processor()
    return next((line for line in lines if line.startswith(("flags", "Features"))), "")


def _compile(compiler: str, path: Path) -> None:
    """Into a temporary file first: under the final name the library is whole or absent."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=path.parent) as folder:
            built = Path(folder) / path.name
            subprocess.run(
                [compiler, *FLAGS, "-o", str(built), str(SOURCE)],
                check=True,
                capture_output=True,
                text=True,
                timeout=COMPILE_TIMEOUT_S,
            )
            built.replace(path)
    except subprocess.CalledProcessError as error:
        reason = (error.stderr or "").strip().split("\n")[0]
        raise NativeUnavailableError(f"{compiler} cannot compile it: {reason}") from None
    except (OSError, subprocess.SubprocessError) as error:
        raise NativeUnavailableError(f"{compiler} cannot compile it: {error}") from None
