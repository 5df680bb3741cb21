"""GB is not GiB: the factors, and how a size is written so that nobody mistakes one for the other.

A vendor's bandwidth and a disk are counted in powers of 1000, an allocator's blocks in powers
of 1024; at a GB the two differ by 7.4 %, which is more than many tuning gains.
"""

from __future__ import annotations

KB, MB, GB, TB = 10**3, 10**6, 10**9, 10**12
KIB, MIB, GIB, TIB = 2**10, 2**20, 2**30, 2**40
GIGA, TERA = 10**9, 10**12

_DECIMAL = ((TB, "TB"), (GB, "GB"), (MB, "MB"), (KB, "kB"))
_BINARY = ((TIB, "TiB"), (GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB"))
_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"))
_FLOPS = ((1e15, "PFLOP"), (TERA, "TFLOP"), (GIGA, "GFLOP"), (1e6, "MFLOP"))


def decimal_text(count_bytes: float) -> str:
    """1342177280 -> "1.342 GB"."""
    return _scaled(count_bytes, _DECIMAL, "B")


def binary_text(count_bytes: float) -> str:
    """1342177280 -> "1.25 GiB"."""
    return _scaled(count_bytes, _BINARY, "B")


def bytes_text(count_bytes: float) -> str:
    """1342177280 -> "1,342,177,280 bytes = 1.342 GB = 1.25 GiB": all three ways to say it."""
    exact = f"{count_bytes:,.0f} bytes"
    if count_bytes < KIB:
        return exact
    return f"{exact} = {decimal_text(count_bytes)} = {binary_text(count_bytes)}"


def seconds_text(duration_s: float) -> str:
    """0.00875 -> "8.75 ms"."""
    return (
        _scaled(duration_s, _SECONDS, "s") if duration_s >= 1e-6 else f"{duration_s * 1e6:.3g} us"
    )


def flops_text(count_flops: float) -> str:
    """5.734e14 -> "573.4 TFLOP"."""
    return _scaled(count_flops, _FLOPS, "FLOP")


def rate_text(bytes_per_s: float) -> str:
    """2.039e12 -> "2.039 TB/s"."""
    return f"{decimal_text(bytes_per_s)}/s"


def _scaled(value: float, units: tuple[tuple[float, str], ...], smallest: str) -> str:
    """Four digits that count, in the largest unit that leaves at least 1."""
    for size, name in units:
        if value >= size:
            return (
                f"{value / size:,.4g} {name}"
                if value / size < 1000
                else f"{value / size:,.0f} {name}"
            )
    return f"{value:,.4g} {smallest}"
