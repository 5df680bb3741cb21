"""Section L: the kernel's units and numbers."""

from __future__ import annotations

from infra_lab.calculators.units import GB, GIB, KIB
from infra_lab.claims.claim import Numbers

# Bits of an x86 page fault's error code: trap_pf.h.
_WRITE, _USER = 1 << 1, 1 << 2
_SIGKILL = 9


def l9() -> Numbers:
    resident = 81_920_000 * KIB
    return {"gib": resident / GIB, "gb": resident / GB, "vm_gb": 200_000_000 * KIB / GB}


def l11() -> Numbers:
    return {"read": _USER, "write": _USER | _WRITE, "shown": int(f"{0x10:x}")}


def l16() -> Numbers:
    return {"status": 128 + _SIGKILL}
