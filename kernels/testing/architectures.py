"""The GPUs that the gate compiles for: what one processor of each holds, and what fits in it.

Sources: CUDA C++ Programming Guide, "Technical Specifications per Compute Capability" (8.0, 8.9,
9.0, 10.0); "CUDA Occupancy Calculator" for the units of allocation; AMD "CDNA3 Instruction Set
Architecture" and the LLVM AMDGPU guide (gfx942) for registers and LDS.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class Architecture:
    """One kind of GPU. A processor is an SM or a CU; it has four schedulers.

    registers: 32-bit registers a thread-lane's register file holds per scheduler, over all warps
    there. register_unit: registers of a warp are given out in multiples of this.
    reserved_shared_bytes: taken from a block's share by the system.
    """

    name: str
    backend: Literal["cuda", "hip"]
    target: int | str
    warp_size: int
    max_warps: int
    max_blocks: int
    registers: int
    register_unit: int
    shared_bytes: int
    max_shared_bytes: int
    reserved_shared_bytes: int

    def occupancy(self, registers: int, shared_bytes: int, warps: int) -> float:
        """Resident warps over the most there can be; 0 if not even one block fits.

        registers: per thread. shared_bytes: per block. warps: per block.
        """
        if shared_bytes > self.max_shared_bytes:
            return 0.0
        unit = self.register_unit
        per_warp = max(unit, -(-registers * self.warp_size // unit) * unit)
        per_scheduler = self.registers * self.warp_size // per_warp
        by_registers = min(4 * per_scheduler, self.max_warps) // warps
        needed = shared_bytes + self.reserved_shared_bytes
        by_shared = self.shared_bytes // needed if needed else self.max_blocks
        blocks = min(by_registers, by_shared, self.max_blocks)
        return blocks * warps / self.max_warps


def _nvidia(
    name: str, capability: int, shared_kib: int, max_warps: int = 64, max_blocks: int = 32
) -> Architecture:
    return Architecture(
        name=name,
        backend="cuda",
        target=capability,
        warp_size=32,
        max_warps=max_warps,
        max_blocks=max_blocks,
        registers=512,  # 65,536 a processor, over four schedulers of 32 lanes
        register_unit=256,
        shared_bytes=shared_kib * 1024,
        max_shared_bytes=(shared_kib - 1) * 1024,
        reserved_shared_bytes=1024,
    )


ARCHITECTURES: dict[str, Architecture] = {
    architecture.name: architecture
    for architecture in (
        _nvidia("sm_80", 80, 164),
        _nvidia("sm_89", 89, 100, max_warps=48, max_blocks=24),
        _nvidia("sm_90", 90, 228),
        _nvidia("sm_100", 100, 228),
        Architecture(
            name="gfx942",
            backend="hip",
            target="gfx942",
            warp_size=64,
            max_warps=32,  # 8 waves on each of four SIMDs
            max_blocks=32,
            registers=512,  # architectural and accumulation registers, of one file
            register_unit=8 * 64,
            shared_bytes=64 * 1024,
            max_shared_bytes=64 * 1024,
            reserved_shared_bytes=0,
        ),
    )
}
