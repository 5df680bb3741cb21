"""The memory limit of a grading process, where the system has one for a process.

With it an allocation beyond the limit fails at once. Elsewhere the parent sees the process grow,
and ends it.
"""

from __future__ import annotations

from contextlib import suppress


def limit_memory(memory_mb: int) -> None:
    """Allows `memory_mb` MiB of address space beyond what is in use now."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        import psutil

        limit = psutil.Process().memory_info().vms + (memory_mb << 20)
        resource.setrlimit(resource.RLIMIT_AS, (limit, resource.RLIM_INFINITY))


def release_memory_limit() -> None:
    """So that a report can still be written after the limit was reached."""
    with suppress(ImportError, OSError, ValueError):
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
