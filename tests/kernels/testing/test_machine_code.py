"""Figures are read from compilers' reports as they stand; occupancy follows from them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kernels.testing.architectures import ARCHITECTURES
from kernels.testing.machine_code import UnreadableReportError, read_amd, read_nvidia

REPORT = """ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'k' for 'sm_80'
ptxas info    : Function properties for k
    40 bytes stack frame, 24 bytes spill stores, 32 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 40 bytes cumulative stack size
"""

PTX = """
    // begin inline asm
    @%p1 ld.global.v4.b32 { %r1, %r2, %r3, %r4 }, [ %rd1 + 0 ];
    cp.async.cg.shared.global [ %r5 + 0 ], [ %rd2 + 0 ], 0x10, %r6;
    cp.async.ca.shared.global [ %r5 + 0 ], [ %rd2 + 0 ], 4, 4;
    mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 { %f1 }, { %r1 }, { %r2 }, { %f1 };
    mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 { %f1 }, { %r1 }, { %r2 }, { %f1 };
    st.global.v2.b16 [ %rd3 + 0 ], { %rs1, %rs2 };
"""

AMD = """
	global_load_dwordx4 v[0:3], v0, s[0:1]
	buffer_load_ushort v4, v5, s[4:7], 0 offen
	v_mfma_f32_16x16x16_f16 a[0:3], v[0:1], v[2:3], a[0:3]
	global_store_short v0, v1, s[0:1]
	buffer_load_dword v1, s[8:11], 0 offen lds
    .group_segment_fixed_size: 4096
    .private_segment_fixed_size: 12
    .sgpr_spill_count: 1
    .vgpr_count:     96
    .vgpr_spill_count: 2
"""


def test_an_nvidia_kernel_is_read() -> None:
    code = read_nvidia(PTX, REPORT)
    assert (code.registers, code.spill_bytes, code.stack_bytes) == (255, 32, 40)
    assert (code.mma, code.mma_count) == ("mma.sync", 2)
    assert (code.async_copies, code.bulk_copies) == (2, 0)
    assert (code.load_bits, code.store_bits) == (128, 32)


@pytest.mark.parametrize(
    ("line", "mma"),
    [
        ("wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {}, %rd1, %rd2;", "wgmma"),
        ("@%p1 tcgen05.mma.cta_group::1.kind::f16 [ %r1 ], %rd1, %rd2, %r2, %p2;", "tcgen05"),
    ],
)
def test_the_strongest_matrix_instruction_is_named(line: str, mma: str) -> None:
    assert read_nvidia(PTX + line, REPORT).mma == mma


def test_fences_and_waits_are_no_matrix_instructions() -> None:
    lines = "wgmma.fence.sync.aligned;\ntcgen05.wait::ld.sync.aligned;\ncp.async.wait_group 0;\n"
    code = read_nvidia(lines, REPORT)
    assert (code.mma, code.mma_count, code.async_copies) == ("", 0, 0)


def test_the_width_of_asynchronous_copies_counts_as_a_load() -> None:
    line = "cp.async.cg.shared.global [ %r5 + 0 ], [ %rd2 + 0 ], 0x10, 0x10;"
    assert read_nvidia(line, REPORT).load_bits == 128


def test_bulk_copies_are_counted() -> None:
    line = "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%r1], [];"
    assert read_nvidia(line, REPORT).bulk_copies == 1


def test_an_amd_kernel_is_read() -> None:
    code = read_amd(AMD)
    assert (code.registers, code.spill_bytes, code.stack_bytes) == (96, 12, 12)
    assert (code.mma, code.mma_count) == ("mfma", 1)
    assert (code.async_copies, code.load_bits, code.store_bits) == (1, 128, 16)


def test_a_report_of_another_form_is_not_taken_for_no_spills() -> None:
    with pytest.raises(UnreadableReportError, match="no registers"):
        read_nvidia(PTX, "ptxas info : something new")
    with pytest.raises(UnreadableReportError, match=r"no \.vgpr_spill_count"):
        read_amd("s_endpgm")


@pytest.mark.parametrize(
    ("arch", "registers", "shared", "warps", "occupancy"),
    [
        ("sm_80", 32, 0, 8, 1.0),
        ("sm_80", 255, 0, 8, 8 / 64),
        ("sm_80", 128, 0, 4, 16 / 64),
        ("sm_80", 168, 0, 12, 12 / 64),
        ("sm_80", 32, 118 * 1024, 4, 4 / 64),
        ("sm_80", 32, 22 * 1024, 4, 28 / 64),  # 164 // 23 blocks
        ("sm_80", 32, 20 * 1024 + 512, 4, 28 / 64),  # 8 blocks but for the system's share
        ("sm_80", 32, 163 * 1024 + 1, 4, 0.0),
        ("sm_90", 32, 227 * 1024, 8, 8 / 64),
        ("sm_90", 16, 0, 1, 32 / 64),  # blocks run out before warps
        ("sm_90", 255, 0, 32, 0.0),  # 32 warps of 8,192 registers are four times too many
        ("gfx942", 64, 0, 4, 1.0),
        ("gfx942", 128, 0, 4, 16 / 32),
        ("gfx942", 512, 0, 4, 4 / 32),
        ("gfx942", 64, 40 * 1024, 4, 4 / 32),
        ("gfx942", 64, 65 * 1024, 4, 0.0),
    ],
)
def test_occupancy_is_that_of_the_vendors_calculator(
    arch: str, registers: int, shared: int, warps: int, occupancy: float
) -> None:
    assert ARCHITECTURES[arch].occupancy(registers, shared, warps) == occupancy


@given(
    st.sampled_from(sorted(ARCHITECTURES)),
    st.integers(1, 255),
    st.integers(0, 200_000),
    st.sampled_from([1, 2, 4, 8, 16]),
)
def test_more_of_anything_never_raises_occupancy(
    arch: str, registers: int, shared: int, warps: int
) -> None:
    architecture = ARCHITECTURES[arch]
    now = architecture.occupancy(registers, shared, warps)
    assert 0 <= now <= 1
    assert architecture.occupancy(registers + 8, shared, warps) <= now
    assert architecture.occupancy(registers, shared + 4096, warps) <= now
