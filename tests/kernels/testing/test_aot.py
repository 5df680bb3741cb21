"""The ahead-of-time gate compiles for GPUs that are not there, and tells good code from bad."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kernels.testing import aot, aot_worker, compiling
from kernels.testing.architectures import ARCHITECTURES
from kernels.testing.cases import CaseId
from kernels.testing.compiling import Job, ResultCache, measure
from kernels.testing.gate import QualityTable, broken_limits
from tests.kernels.testing.planted_cases import AOT_CASES

MODULE = "tests.kernels.testing.planted_cases"
NAMES = [(case.kernel, case.config) for case in AOT_CASES]


def job(kernel: str, config: str, arch: str) -> Job:
    index = NAMES.index((kernel, config))
    return Job(CaseId(MODULE, index), AOT_CASES[index], arch)


def test_a_kernel_is_compiled_and_measured_though_this_process_interprets(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """One worker does all three: aligned, unaligned, and on an architecture without fp8."""
    monkeypatch.setenv("TRITON_INTERPRET", "1")
    wanted = [("copy", "aligned", "sm_90"), ("copy", "unaligned", "sm_90"), ("fp8", "", "sm_80")]
    aligned, unaligned, fp8 = measure([job(*names) for names in wanted], workers=1)
    assert aligned["status"] == "ok"
    assert 0 < aligned["registers"] <= 64
    assert aligned["spill_bytes"] == 0
    assert (aligned["load_bits"], aligned["store_bits"]) == (128, 128)
    assert aligned["occupancy"] == 1.0
    assert unaligned["load_bits"] == 16
    assert fp8["status"] == "failed"
    assert "fp8e4nv" in fp8["reason"]
    assert broken_limits(fp8, AOT_CASES[4])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arch", "mma"),
    [("sm_80", "mma.sync"), ("sm_90", "wgmma"), ("sm_100", "tcgen05"), ("gfx942", "mfma")],
)
def test_each_architecture_has_its_matrix_instruction(arch: str, mma: str) -> None:
    (row,) = measure([job("product", "fits", arch)], workers=1)
    assert (row["status"], row["mma"]) == ("ok", mma), row["reason"]
    assert row["shared_bytes"] > 0
    assert row["mma_count"] > 0
    if arch in ("sm_80", "sm_90"):
        assert row["async_copies"] > 0
    assert broken_limits(row, AOT_CASES[2]) == []


@pytest.mark.slow
def test_a_tile_too_large_for_the_registers_is_found_to_spill() -> None:
    (row,) = measure([job("product", "spills", "sm_80")], workers=1)
    assert row["spill_bytes"] > 0
    assert any("spills" in what for what in broken_limits(row, AOT_CASES[3]))


def test_a_compiler_that_dies_fails_its_case_and_no_other() -> None:
    deadly = Job(CaseId("tests.kernels.testing.planted_death", 0), AOT_CASES[0], "sm_80")
    dead, after = measure([deadly, job("copy", "aligned", "sm_80")], workers=1)
    assert dead["status"] == "failed"
    assert "ended with 7" in dead["reason"]
    assert after["status"] == "ok"


@pytest.mark.slow
def test_the_last_words_of_a_compiler_are_kept() -> None:
    (row,) = measure([Job(CaseId("kernels.nonsense", 0), AOT_CASES[0], "sm_80")], workers=1)
    assert "No module named 'kernels.nonsense'" in row["reason"]


def test_a_missing_tool_is_no_success(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = "this Triton's wheel has no ptxas-blackwell; TRITON_PTXAS_BLACKWELL_PATH may name one"
    monkeypatch.setattr(aot_worker, "missing_tool", lambda architecture: wanted)
    row = aot_worker.measure(AOT_CASES[0], "sm_100")
    assert (row["status"], row["reason"]) == ("no tool", wanted)
    verdict = aot.judge([job("copy", "aligned", "sm_100")], [row], QualityTable())
    assert verdict.exit_status == 2
    assert wanted in verdict.untried[0]
    assert "no tool: this Triton's wheel has no" in aot.render([row])


def test_what_a_wheel_lacks_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    from triton import knobs
    from triton.backends import backends

    def absent(self: Any, *arguments: Any) -> Any:
        raise RuntimeError("Cannot find ptxas")

    tool = type(vars(type(knobs.nvidia))["ptxas_blackwell"])
    monkeypatch.setattr(tool, "get", absent)
    assert "no ptxas-blackwell" in aot_worker.missing_tool(ARCHITECTURES["sm_100"])
    assert "TRITON_PTXAS_PATH" in aot_worker.missing_tool(ARCHITECTURES["sm_80"])
    assert aot_worker.missing_tool(ARCHITECTURES["gfx942"]) == ""
    monkeypatch.delitem(backends, "amd")
    assert "no amd backend" in aot_worker.missing_tool(ARCHITECTURES["gfx942"])


def figures(**changes: Any) -> dict[str, Any]:
    row = {
        "kernel": "copy", "config": "aligned", "arch": "sm_90", "status": "ok", "reason": "",
        "registers": 20, "spill_bytes": 0, "stack_bytes": 0, "shared_bytes": 0, "occupancy": 1.0,
        "mma": "", "mma_count": 0, "async_copies": 0, "bulk_copies": 0, "load_bits": 128,
        "store_bits": 128,
    }  # fmt: skip
    return {**row, **changes}


@pytest.fixture
def command(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> Callable[..., tuple[int, str, str]]:
    """The command with one case, figures instead of a compiler, and a table of its own."""
    path = tmp_path / "quality.json"
    read, write = QualityTable.read, QualityTable.write
    monkeypatch.setattr(QualityTable, "read", lambda: read(path))
    monkeypatch.setattr(QualityTable, "write", lambda self: write(self, path))
    place, case = CaseId(MODULE, 0), AOT_CASES[0]
    monkeypatch.setattr(aot, "declared_cases", lambda: {place: case})

    def run(*arguments: str, **changes: Any) -> tuple[int, str, str]:
        monkeypatch.setattr(aot, "measure", lambda jobs, *rest: [figures(**changes)] * len(jobs))
        status = aot.main(["--arch", "sm_90", "--no-cache", *arguments])
        captured = capsys.readouterr()
        return status, captured.out, captured.err

    return run


def test_a_case_is_new_until_the_table_has_it(command: Callable[..., Any]) -> None:
    status, out, err = command()
    assert status == 1
    assert "copy    aligned  sm_90" in out
    assert "not in quality.json" in err
    assert command("--update")[0] == 0
    assert command()[0] == 0


def test_an_update_takes_what_is_better_and_refuses_what_is_worse(
    command: Callable[..., Any],
) -> None:
    command("--update", load_bits=64)
    assert command("--update", load_bits=128)[0] == 0
    status, _, err = command("--update", load_bits=64)
    assert status == 1
    assert "worse than quality.json: copy, aligned, sm_90: load_bits 128 -> 64" in err
    assert command(load_bits=128)[0] == 0


def test_another_triton_is_held_to_the_limits_only(
    command: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    command("--update")
    monkeypatch.setattr(aot, "triton_version", lambda: "9.9")
    status, _, err = command(load_bits=64)
    assert status == 0
    assert "only the limits were checked" in err
    assert command(spill_bytes=8)[0] == 1
    status, _, err = command("--update")
    assert status == 1
    assert "without --kernel and --arch" in err


def test_rows_are_json_for_other_programs(command: Callable[..., Any]) -> None:
    _, out, _ = command("--json")
    (row,) = json.loads(out)
    wanted = {"kernel", "config", "arch", "registers", "spill_bytes", "shared_bytes", "mma"}
    assert wanted <= set(row)


def test_a_kernel_that_is_not_there_is_named(command: Callable[..., Any]) -> None:
    status, _, err = command("--kernel", "nonsense")
    assert status == 1
    assert "no case of kernel 'nonsense'" in err
    assert "there are copy" in err


def test_a_cached_row_is_not_compiled_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one = job("copy", "aligned", "sm_90")
    cache = ResultCache(tmp_path, "tools")
    cache.put(one, figures())

    def never(self: Any, job: Job) -> Any:
        raise AssertionError("compiled")

    monkeypatch.setattr(compiling._Worker, "measure", never)
    assert measure([one], cache=cache) == [figures()]
    assert cache.get(job("copy", "unaligned", "sm_90")) is None
    assert ResultCache(tmp_path, "other tools").get(one) is None
    monkeypatch.setattr(compiling, "sources_hash", lambda module: "changed")
    assert cache.get(one) is None


def test_a_kernel_is_compiled_again_when_it_or_what_it_imports_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "lattice"
    package.mkdir()
    files = {
        "__init__": "", "kernel": "from lattice import shared\nimport json\n",
        "shared": "from lattice.deep import x\n", "deep": "x = 1\n", "other": "",
    }  # fmt: skip
    for name, text in files.items():
        (package / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(compiling, "PACKAGE", "lattice")
    before = compiling.sources_hash("lattice.kernel")
    (package / "other.py").write_text("changed = 1\n")
    assert compiling.sources_hash("lattice.kernel") == before
    (package / "deep.py").write_text("x = 2\n")
    assert compiling.sources_hash("lattice.kernel") != before


@pytest.mark.slow
def test_all_kernels_pass_the_gate(capsys: pytest.CaptureFixture[str]) -> None:
    status = aot.main([])
    captured = capsys.readouterr()
    if status == 2:
        pytest.skip(f"this platform's Triton cannot compile for all: {captured.err}")
    assert status == 0, captured.err
