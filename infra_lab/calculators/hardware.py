"""GPUs by the numbers that bound inference, each with the document that states it.

Peaks are dense: vendors' headlines count 2:4 sparsity, which doubles them. A link is stated for
both directions together; a transfer sees one of them. What no document was found for is None.
"As tabled" means that the vendor's numbers were read in another's table, looked at in 2026-11.

`memory_bytes` is the size as it is sold, counted in GB, the careful reading: what a driver reports
is more (42,405,855,232 bytes on an A100 sold with 40 GB), what it leaves free is less again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

from infra_lab.calculators.checks import look_up, require_count, require_positive
from infra_lab.calculators.units import GB, KIB, TERA
from infra_lab.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One GPU (or processor). Peaks in operations a second, a multiply-add counting as two."""

    name: str
    title: str
    peak_flops_per_s: Mapping[str, float]  # by the type of the operands
    bandwidth_bytes_per_s: float
    memory_bytes: int
    num_sms: int | None = None
    shared_memory_per_sm_bytes: int | None = None
    nvlink_bytes_per_s: float | None = None  # both directions, as vendors state it
    pcie_bytes_per_s: float | None = None  # likewise
    sources: tuple[str, ...] = field(default=())

    @property
    def nvlink_one_way_bytes_per_s(self) -> float | None:
        return None if self.nvlink_bytes_per_s is None else self.nvlink_bytes_per_s / 2

    @property
    def pcie_one_way_bytes_per_s(self) -> float | None:
        return None if self.pcie_bytes_per_s is None else self.pcie_bytes_per_s / 2

    @property
    def shared_memory_bytes(self) -> int | None:
        """Of all SMs together: the "SRAM" of FlashAttention's analysis, had one block all of it."""
        if self.num_sms is None or self.shared_memory_per_sm_bytes is None:
            return None
        return self.num_sms * self.shared_memory_per_sm_bytes

    def peak(self, operands: str) -> float:
        """Operations a second on operands of that type; raises UsageError for one it lacks."""
        wanted = operands.strip().lower()
        if wanted in self.peak_flops_per_s:
            return self.peak_flops_per_s[wanted]
        raise UsageError(
            f"{self.title} has no peak for {operands!r} operands: "
            f"choose one of {', '.join(self.peak_flops_per_s)}"
        )

    def ridge_flops_per_byte(self, operands: str) -> float:
        """Peak / bandwidth: below this arithmetic intensity memory is the limit."""
        return self.peak(operands) / self.bandwidth_bytes_per_s


def pcie_one_way_bytes_per_s(generation: int, lanes: int = 16) -> float:
    """One direction of PCIe 3 to 5, after the line code: GT/s x lanes x 128/130 / 8.

    Generation 4 with 16 lanes: 31.5 GB/s. Packet headers take some percent more.
    Source: PCI Express Base Specification (128b/130b since 3.0; 8, 16, 32 GT/s).
    """
    require_count("lanes", lanes)
    rates = {3: 8e9, 4: 16e9, 5: 32e9}
    if generation not in rates:
        raise UsageError(f"PCIe generation must be 3, 4 or 5, not {generation}")
    return rates[generation] * lanes * 128 / 130 / 8


def custom_device(
    name: str,
    peak_flops_per_s: Mapping[str, float],
    bandwidth_bytes_per_s: float,
    memory_bytes: int,
    source: str,
) -> Device:
    """A device from numbers of one's own: this machine's, as `infra-lab doctor` measures them."""
    for operands, peak in peak_flops_per_s.items():
        require_positive(f"the peak for {operands}", peak)
    require_positive("bandwidth_bytes_per_s", bandwidth_bytes_per_s)
    require_count("memory_bytes", memory_bytes)
    return Device(
        name=name,
        title=name,
        peak_flops_per_s=MappingProxyType(dict(peak_flops_per_s)),
        bandwidth_bytes_per_s=bandwidth_bytes_per_s,
        memory_bytes=memory_bytes,
        sources=(source,),
    )


def _peaks(**tera: float) -> Mapping[str, float]:
    return MappingProxyType({name: value * TERA for name, value in tera.items()})


_A100_PEAKS = _peaks(fp32=19.5, tf32=156, bf16=312, fp16=312, int8=624, int4=1248)
_A100_SOURCES = (
    "NVIDIA A100 datasheet 1758950 r4, as tabled at glennklockwood.com/garden/processors/A100",
    "deviceQuery of an A100 (167,936 bytes of shared memory a multiprocessor, 108 of them)",
)
_HOPPER_PEAKS = _peaks(fp32=66.9, tf32=494.7, bf16=989.4, fp16=989.4, fp8=1978.9, int8=1978.9)
_HOPPER_SOURCES = (
    "NVIDIA H100 architecture paper, as tabled at glennklockwood.com/garden/processors/h100",
    "NVIDIA Hopper Tuning Guide, 1.4.2.4 (228 KB of shared memory an SM)",
)

DEVICES: Mapping[str, Device] = MappingProxyType(
    {
        one.name: one
        for one in (
            Device(
                name="a100-40gb",
                title="NVIDIA A100 SXM 40 GB",
                peak_flops_per_s=_A100_PEAKS,
                bandwidth_bytes_per_s=1.555 * TERA,
                memory_bytes=40 * GB,
                num_sms=108,
                shared_memory_per_sm_bytes=164 * KIB,
                nvlink_bytes_per_s=600 * GB,
                pcie_bytes_per_s=64 * GB,
                sources=_A100_SOURCES,
            ),
            Device(
                name="a100-80gb",
                title="NVIDIA A100 SXM 80 GB",
                peak_flops_per_s=_A100_PEAKS,
                bandwidth_bytes_per_s=2.039 * TERA,
                memory_bytes=80 * GB,
                num_sms=108,
                shared_memory_per_sm_bytes=164 * KIB,
                nvlink_bytes_per_s=600 * GB,
                pcie_bytes_per_s=64 * GB,
                sources=_A100_SOURCES,
            ),
            Device(
                name="h100",
                title="NVIDIA H100 SXM 80 GB",
                peak_flops_per_s=_HOPPER_PEAKS,
                bandwidth_bytes_per_s=3.35 * TERA,
                memory_bytes=80 * GB,
                num_sms=132,
                shared_memory_per_sm_bytes=228 * KIB,
                nvlink_bytes_per_s=900 * GB,
                pcie_bytes_per_s=128 * GB,
                sources=_HOPPER_SOURCES,
            ),
            Device(
                name="h200",
                title="NVIDIA H200 SXM 141 GB",
                peak_flops_per_s=_HOPPER_PEAKS,
                bandwidth_bytes_per_s=4.8 * TERA,
                memory_bytes=141 * GB,
                num_sms=132,
                shared_memory_per_sm_bytes=228 * KIB,
                nvlink_bytes_per_s=900 * GB,
                pcie_bytes_per_s=128 * GB,
                sources=(*_HOPPER_SOURCES, "NVIDIA H200 datasheet (141 GB, 4.8 TB/s), as quoted"),
            ),
            Device(
                name="b200",
                title="NVIDIA HGX B200, 1000 W",
                peak_flops_per_s=_peaks(
                    fp32=80, tf32=1100, bf16=2250, fp16=2250, fp8=4500, int8=4500, fp4=9000
                ),
                bandwidth_bytes_per_s=8 * TERA,
                memory_bytes=179 * GB,
                shared_memory_per_sm_bytes=228 * KIB,
                nvlink_bytes_per_s=1800 * GB,
                sources=(
                    "NVIDIA Blackwell architecture brief, as tabled at "
                    "glennklockwood.com/garden/processors/B200",
                    "memory as the driver of an HGX B200 reports it: docs.vultr.com, 2026-03-11 "
                    "(the architecture brief says 192 GB)",
                    "NVIDIA Blackwell Tuning Guide 13.0, 2025-11-23 (228 KB of shared memory)",
                ),
            ),
            Device(
                name="rtx-4090",
                title="NVIDIA GeForce RTX 4090",
                peak_flops_per_s=_peaks(
                    fp32=82.58, tf32=82.58, bf16=165.15, fp16=165.15, fp8=330.3, int8=660.6
                ),
                bandwidth_bytes_per_s=1.008 * TERA,
                memory_bytes=24 * GB,
                num_sms=128,
                shared_memory_per_sm_bytes=100 * KIB,
                sources=(
                    "CUDA C++ Programming Guide, compute capability 8.x (100 KB of 128 an SM)",
                    "NVIDIA Ada GPU architecture, as tabled at waredb.com (fp16, bf16 and fp8 with "
                    "fp32 accumulation; it is twice that with fp16 accumulation)",
                ),
            ),
        )
    }
)
_ALIASES = {
    "a100": "a100-80gb",
    "a100-80g": "a100-80gb",
    "a100-40g": "a100-40gb",
    "h100-sxm": "h100",
    "h200-sxm": "h200",
    "4090": "rtx-4090",
    "rtx4090": "rtx-4090",
}


def device(name: str) -> Device:
    """A device of the table by name; raises UsageError with near names for an unknown one."""
    wanted = name.strip().lower().replace(" ", "-").replace("_", "-")
    return look_up("GPU", _ALIASES.get(wanted, wanted), DEVICES)
