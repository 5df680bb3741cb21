"""Reads what a compiler made: registers, spills, matrix instructions, width of memory access.

NVIDIA: PTX for the instructions, ptxas's own report (-v) for what the assembler decided.
AMD: the assembly and the metadata at its end.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

# Weakest first. Hopper and Blackwell run mma.sync too, at a fraction of their speed.
NVIDIA_MATRIX = ("mma.sync", "wgmma", "tcgen05")
_NVIDIA_PATTERNS = {
    "mma.sync": r"\bmma\.sync\.",
    "wgmma": r"\bwgmma\.mma_async\.",
    "tcgen05": r"\btcgen05\.mma\.",
}


@dataclass(frozen=True)
class MachineCode:
    """What is measured of one kernel's code.

    registers: of a thread; on AMD accumulation registers are counted in.
    spill_bytes, stack_bytes: of a thread.
    mma: the strongest matrix instruction in it, "" if none; mma_count: how many are written.
    load_bits, store_bits: the widest access to global memory by one thread in one instruction.
    """

    registers: int
    spill_bytes: int
    stack_bytes: int
    mma: str
    mma_count: int
    async_copies: int
    bulk_copies: int
    load_bits: int
    store_bits: int


class UnreadableReportError(ValueError):
    """A compiler's report has not the form that is read here."""


def read_nvidia(ptx: str, ptxas_report: str) -> MachineCode:
    """From a kernel's PTX and what `ptxas -v` printed while assembling it."""
    registers = [int(found) for found in re.findall(r"Used (\d+) registers", ptxas_report)]
    frames = re.findall(
        r"(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads", ptxas_report
    )
    if not registers or not frames:
        raise UnreadableReportError(f"no registers or spills in ptxas's report: {ptxas_report!r}")
    counts = {name: len(re.findall(_NVIDIA_PATTERNS[name], ptx)) for name in NVIDIA_MATRIX}
    strongest = next((name for name in reversed(NVIDIA_MATRIX) if counts[name]), "")
    return MachineCode(
        registers=max(registers),
        spill_bytes=sum(max(int(stores), int(loads)) for _, stores, loads in frames),
        stack_bytes=max(int(frame) for frame, _, _ in frames),
        mma=strongest,
        mma_count=counts.get(strongest, 0),
        async_copies=len(re.findall(r"\bcp\.async\.c[ag]\.", ptx)),
        bulk_copies=len(re.findall(r"\bcp\.async\.bulk\.", ptx)),
        load_bits=_widest_ptx(ptx, "ld"),
        store_bits=_widest_ptx(ptx, "st"),
    )


def read_amd(assembly: str) -> MachineCode:
    """From a kernel's AMD assembly, whose metadata the assembler wrote."""

    def metadata(name: str) -> int:
        found = re.search(rf"^\s*\.{name}:\s*(\d+)", assembly, re.MULTILINE)
        if found is None:
            raise UnreadableReportError(f"no .{name} in the assembly's metadata")
        return int(found[1])

    spilled = metadata("vgpr_spill_count") + metadata("sgpr_spill_count")
    matrix = len(re.findall(r"^\s*v_s?mfmac?_", assembly, re.MULTILINE))
    to_lds = r"^\s*(?:global_load_lds|buffer_load\w*\s.*\blds)\b"
    return MachineCode(
        registers=metadata("vgpr_count"),
        spill_bytes=4 * spilled,
        stack_bytes=metadata("private_segment_fixed_size"),
        mma="mfma" if matrix else "",
        mma_count=matrix,
        async_copies=len(re.findall(to_lds, assembly, re.MULTILINE)),
        bulk_copies=0,
        load_bits=_widest_amd(assembly, "load"),
        store_bits=_widest_amd(assembly, "store"),
    )


def _widest_ptx(ptx: str, operation: str) -> int:
    """Bits of the widest `operation` on global memory: vector length times element."""
    widest = 0
    for suffix in re.findall(rf"\b{operation}\.global((?:\.[\w:]+)+)", ptx):
        length = re.search(r"\.v(\d)\b", suffix)
        element = re.search(r"\.[bufs](\d+)\b", suffix)
        if element:
            widest = max(widest, int(element[1]) * (int(length[1]) if length else 1))
    if operation == "ld":  # asynchronous copies read global memory too: so many bytes each
        copies = r"\bcp\.async\.c[ag][\w.:]*\s*\[[^\]]*\],\s*\[[^\]]*\],\s*(\w+)"
        sizes = [8 * int(count, 0) for count in re.findall(copies, ptx)]
        widest = max([widest, *sizes])
    return widest


def _widest_amd(assembly: str, operation: str) -> int:
    sizes = {"byte": 8, "ubyte": 8, "sbyte": 8, "short": 16, "ushort": 16, "sshort": 16}
    widest = 0
    pattern = rf"^\s*(?:global|buffer|flat)_{operation}_(\w+)"
    for suffix in re.findall(pattern, assembly, re.MULTILINE):
        words = re.match(r"dword(?:x(\d))?", suffix)
        if words:
            widest = max(widest, 32 * int(words[1] or 1))
        else:
            kind = suffix.split("_")[0]
            widest = max(widest, sizes.get(kind, 0))
    return widest
