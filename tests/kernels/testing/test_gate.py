"""The table only improves, and says in what a row is worse."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st

import kernels
from kernels.testing.cases import AotCase, by_launch, declared_cases
from kernels.testing.gate import (
    QualityTable,
    broken_limits,
    key_of,
    ratcheted,
    regressions,
    without_gone,
)

ROW: dict[str, Any] = {
    "kernel": "k",
    "config": "c",
    "arch": "sm_90",
    "status": "ok",
    "reason": "",
    "registers": 128,
    "spill_bytes": 0,
    "stack_bytes": 0,
    "shared_bytes": 65536,
    "occupancy": 0.25,
    "mma": "wgmma",
    "mma_count": 8,
    "async_copies": 4,
    "bulk_copies": 0,
    "load_bits": 128,
    "store_bits": 128,
}
rows = st.fixed_dictionaries(
    {
        "spill_bytes": st.sampled_from([0, 8, 16]),
        "stack_bytes": st.sampled_from([0, 8]),
        "occupancy": st.sampled_from([0.0625, 0.125, 0.25]),
        "mma": st.sampled_from(["", "mma.sync", "wgmma"]),
        "async_copies": st.sampled_from([0, 4]),
        "load_bits": st.sampled_from([32, 64, 128]),
        "store_bits": st.sampled_from([32, 128]),
        "registers": st.integers(16, 255),
    }
).map(lambda changes: {**ROW, **changes})


@triton.jit
def nothing_kernel(x, BLOCK: tl.constexpr):
    tl.store(x, 1)


def case(**changes: Any) -> AotCase:
    values: dict[str, Any] = {
        "kernel": "k",
        "config": "c",
        "function": nothing_kernel,
        "arguments": {"x": "*fp32"},
        "constants": {"BLOCK": 1},
        **changes,
    }
    return AotCase(**values)


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"spill_bytes": 4}, "spill_bytes 0 -> 4"),
        ({"stack_bytes": 8}, "stack_bytes 0 -> 8"),
        ({"occupancy": 0.125}, "occupancy 0.25 -> 0.125"),
        ({"load_bits": 64}, "load_bits 128 -> 64"),
        ({"store_bits": 16}, "store_bits 128 -> 16"),
        ({"mma": "mma.sync"}, "mma wgmma -> mma.sync"),
        ({"mma": ""}, "mma wgmma -> none"),
        ({"async_copies": 0}, "no longer asynchronous"),
    ],
)
def test_every_way_to_get_worse_is_named(change: dict[str, Any], complaint: str) -> None:
    (found,) = regressions({**ROW, **change}, ROW)
    assert complaint in found
    assert regressions(ROW, {**ROW, **change}) == []


@pytest.mark.parametrize(
    "change",
    [
        {"registers": 200},
        {"shared_bytes": 70000},
        {"mma_count": 2},
        {"async_copies": 0, "bulk_copies": 2},
        {"mma": "tcgen05"},
    ],
)
def test_what_is_only_recorded_may_change(change: dict[str, Any]) -> None:
    assert regressions({**ROW, **change}, ROW) == []


@given(st.lists(rows, min_size=1, max_size=8))
def test_no_update_makes_a_row_worse(history: list[dict[str, Any]]) -> None:
    table = QualityTable()
    for row in history:
        before = table.rows.get(key_of(row))
        table = ratcheted(table, [row], "3.7.1")
        if before is not None:
            assert regressions(table.rows[key_of(row)], before) == []


def test_a_row_that_did_not_compile_changes_nothing() -> None:
    table = ratcheted(QualityTable(), [ROW], "3.7.1")
    failed = {name: ROW[name] for name in ("kernel", "config", "arch")}
    failed |= {"status": "failed", "reason": "x"}
    assert ratcheted(table, [failed], "3.7.1").rows == table.rows


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "quality.json"
    table = ratcheted(QualityTable(), [ROW, {**ROW, "arch": "sm_80", "mma": "mma.sync"}], "3.7.1")
    table.write(path)
    read = QualityTable.read(path)
    assert read.triton == "3.7.1"
    assert set(read.rows) == set(table.rows)
    assert all(regressions(read.rows[key], row) == [] for key, row in table.rows.items())
    assert QualityTable.read(tmp_path / "none.json") == QualityTable()


def test_rows_of_cases_that_are_gone_are_dropped() -> None:
    table = ratcheted(QualityTable(), [ROW], "3.7.1")
    assert without_gone(table, [("other", "c", "sm_90")]).rows == {}
    assert without_gone(table, [key_of(ROW)]).rows == table.rows


@pytest.mark.parametrize(
    ("change", "options", "complaint"),
    [
        ({"spill_bytes": 8}, {}, "spills 8 bytes, allowed 0"),
        ({"spill_bytes": 8}, {"spill_bytes_allowed": {"sm_90": 8}}, None),
        ({"spill_bytes": 8}, {"spill_bytes_allowed": {"sm_80": 8}}, "spills 8 bytes"),
        ({"shared_bytes": 227 * 1024 + 1}, {}, "of shared memory, a block has 232448"),
        ({"occupancy": 0.0}, {}, "not even one block"),
        ({"mma": ""}, {"matrix": True}, "no matrix instruction"),
        ({"mma": ""}, {}, None),
        ({"status": "failed", "reason": "no fp8"}, {}, "failed: no fp8"),
    ],
)
def test_limits_hold_without_a_table(
    change: dict[str, Any], options: dict[str, Any], complaint: str | None
) -> None:
    found = broken_limits({**ROW, **change}, case(**options))
    assert len(found) == (complaint is not None)
    assert complaint is None or complaint in found[0]


def test_a_case_must_declare_the_kernels_parameters() -> None:
    with pytest.raises(ValueError, match="each once"):
        case(arguments={})
    with pytest.raises(ValueError, match="each once"):
        case(constants={"BLOCK": 1, "x": 2})
    with pytest.raises(ValueError, match="no architecture"):
        case(architectures=("sm_75",))
    with pytest.raises(ValueError, match="not all arguments"):
        case(any_alignment=frozenset({"BLOCK"}))


def test_the_table_has_every_declared_case_and_no_other() -> None:
    """`python -m kernels.testing.aot --update` mends this."""
    declared = {
        (case.kernel, case.config, arch)
        for case in declared_cases().values()
        for arch in case.architectures
    }
    assert set(QualityTable.read().rows) == declared


# The constant of a kernel that says how many rows the left operand of its products has.
LEFT_ROWS = {
    "flash_forward": "ROWS",
    "flash_dq": "ROWS",
    "flash_dk_dv": "KEYS",
    "paged_attention": "BLOCK_M",
    "w4a16_gemm": "BLOCK_N",
    "w8a8_gemm": "BLOCK_M",
    "fp8_gemm": "BLOCK_M",
    "fp8_block_gemm": "BLOCK_M",
}


def test_every_kernel_that_multiplies_has_the_strongest_instruction_for_its_tile() -> None:
    """wgmma and tcgen05 take 64 rows at least; int8 has no tcgen05 in Triton."""
    rows = QualityTable.read().rows
    cases = {(case.kernel, case.config): case for case in declared_cases().values()}
    multiply = {case.kernel for case in cases.values() if case.matrix}
    assert multiply == set(LEFT_ROWS)
    for (kernel, config, arch), row in rows.items():
        case = cases[kernel, config]
        if not case.matrix:
            continue  # fp32 products in full precision, and what multiplies no matrices
        is_tall = case.constants[LEFT_ROWS[kernel]] >= 64
        strongest = {
            "sm_80": "mma.sync",
            "sm_89": "mma.sync",
            "sm_90": "wgmma" if is_tall else "mma.sync",
            "sm_100": "tcgen05" if is_tall and kernel != "w8a8_gemm" else "mma.sync",
            "gfx942": "mfma",
        }
        assert row["mma"] == strongest[arch], (kernel, config, arch)


@pytest.mark.parametrize(("arch", "shared_kib"), [("sm_80", 163), ("sm_90", 227)])
def test_on_ampere_and_hopper_nothing_spills_and_shared_memory_suffices(
    arch: str, shared_kib: int
) -> None:
    """And no case may ask for an exception there."""
    rows = [row for (_, _, of), row in QualityTable.read().rows.items() if of == arch]
    assert rows
    assert all(row["spill_bytes"] == 0 for row in rows)
    assert all(row["shared_bytes"] <= shared_kib * 1024 for row in rows)
    assert not any(arch in case.spill_bytes_allowed for case in declared_cases().values())


def test_every_kernel_is_in_the_gate() -> None:
    """Each @triton.jit function that is launched, not those that such functions call."""
    launched = set()
    for path in sorted(Path(kernels.__file__).parent.glob("*.py")):
        launched |= set(re.findall(r"^ *(?:\w+ = )?(\w+_kernel)\[", path.read_text(), re.MULTILINE))
    compiled = {case.function.__name__ for case in declared_cases().values()}
    assert launched == compiled


def test_architectures_with_the_same_launch_share_a_case() -> None:
    def warps(arch: str) -> int:
        return 1 if arch.startswith("gfx") else 2

    assert by_launch(warps) == {2: ("sm_80", "sm_89", "sm_90", "sm_100"), 1: ("gfx942",)}
    assert by_launch(warps, ["sm_90", "sm_89"]) == {2: ("sm_90", "sm_89")}
