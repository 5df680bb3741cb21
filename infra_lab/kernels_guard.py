"""Makes sure that `import kernels` means ours.

A package on PyPI has the same name. If it comes first on the path, our imports would fail
far from the cause, or worse, work by halves. Whoever imports our kernels calls
`require_own_kernels()` first; `infra-lab doctor` asks `foreign_kernels()`.
"""

from __future__ import annotations

import sys
from functools import cache
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from pathlib import Path
from typing import Protocol

from infra_lab.errors import ForeignKernelsError

OWN_FOLDER = Path(__file__).resolve().parent.parent / "kernels"


class _Placed(Protocol):
    """What is asked of a torch.Tensor here, where torch is not imported."""

    @property
    def is_cpu(self) -> bool: ...

    @property
    def is_cuda(self) -> bool: ...


def foreign_kernels() -> Path | None:
    """Where another `kernels` comes from; None if ours is the one that gets imported.

    Another one in another folder is not imported to find out: only its place is looked at.
    """
    spec = _spec()
    if spec is None:
        return None
    place = _folder(spec)
    if place != OWN_FOLDER or getattr(import_module("kernels"), "MARKER", None) != "infra-lab":
        return place
    return None


def require_own_kernels() -> None:
    """Raises ForeignKernelsError unless `import kernels` gives infra-lab's own package."""
    if _spec() is None:
        raise ForeignKernelsError(
            f"infra-lab's package 'kernels' cannot be imported, it should be at {OWN_FOLDER}: "
            "install infra-lab again (pip install --force-reinstall --no-deps infra-lab)"
        )
    other = foreign_kernels()
    if other is not None:
        raise ForeignKernelsError(
            f"'import kernels' finds another package of that name at {other} before infra-lab's "
            f"own at {OWN_FOLDER}: {mend(other)}"
        )


def kernels_serve(tensor: _Placed) -> bool:
    """Whether our kernels can work on this tensor: on a GPU, or interpreted in a test."""
    if tensor.is_cuda:
        return _is_triton_installed()
    checks = sys.modules.get("kernels.checks")
    return tensor.is_cpu and checks is not None and checks.is_interpreting()


@cache
def _is_triton_installed() -> bool:
    if find_spec("triton") is None:
        return False
    require_own_kernels()
    return True


def mend(other: Path) -> str:
    """What to do about another `kernels` at `other`."""
    if "site-packages" in other.parts:
        return "run `pip uninstall kernels`, or give infra-lab an environment of its own"
    return f"start from another folder, or take {other.parent} off PYTHONPATH"


def _spec() -> ModuleSpec | None:
    loaded = sys.modules.get("kernels")
    return find_spec("kernels") if loaded is None else loaded.__spec__


def _folder(spec: ModuleSpec) -> Path:
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations))).resolve()
    return Path(spec.origin or "unknown").resolve()
