"""`infra-lab doctor`: every finding has a verdict, and every verdict but "ok" a mend."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.cli import doctor, doctor_checks, torch_probe
from infra_lab.cli.doctor_checks import run_checks
from infra_lab.cli.machine import Cpu, Memory, read_cpu, read_memory
from infra_lab.models.store import ModelStore

Run = Callable[..., Any]

CPU = Cpu("Some CPU", physical_cores=2, usable_cores=4, features=("avx2", "fma"))
MEMORY = Memory(total=16_000_000_000, available=8_000_000_000)
FINDINGS: dict[str, Any] = {
    "version": "2.13.0",
    "cuda_build": None,
    "hip_build": None,
    "threads": 2,
    "cpu_capability": "AVX2",
    "gpus": [],
    "kernels_error": None,
    "read_gb_per_s": 18.0,
    "copy_gb_per_s": 12.0,
    "fp32_gflop_per_s": 78.0,
    "bf16_gflop_per_s": 10.0,
}


def checks(
    tmp_path: Path, findings: dict[str, Any] | str = FINDINGS, memory: Memory = MEMORY
) -> dict[str, doctor_checks.Check]:
    return {check.name: check for check in run_checks(findings, CPU, memory, ModelStore(tmp_path))}


def test_a_sound_machine_fails_no_check(tmp_path: Path) -> None:
    found = checks(tmp_path)
    assert [check for check in found.values() if check.verdict == "fail"] == []
    assert found["memory bandwidth"].value == "read 18.0 GB/s, copy 12.0 GB/s"


def test_a_torch_that_does_not_import_is_a_finding(tmp_path: Path) -> None:
    found = checks(tmp_path, findings="ImportError: libtorch is missing")
    assert found["torch"].verdict == "fail"
    assert "libtorch is missing" in found["torch"].value
    assert found["torch"].mend


def test_a_gpu_is_named_with_its_capability(tmp_path: Path) -> None:
    gpu = {"name": "Some GPU", "capability": "9.0", "memory_bytes": 80_000_000_000}
    found = checks(tmp_path, findings={**FINDINGS, "gpus": [gpu]})
    assert found["GPU"].value == "Some GPU (compute capability 9.0, 80.0 GB)"


@pytest.mark.parametrize(("available", "verdict"), [(500, "fail"), (1500, "warn"), (3000, "ok")])
def test_little_memory_is_noted_and_too_little_fails(
    tmp_path: Path, available: int, verdict: str
) -> None:
    memory = Memory(total=8_000_000_000, available=available * 1_000_000)
    assert checks(tmp_path, memory=memory)["memory"].verdict == verdict


def test_a_missing_model_is_a_warning_and_a_damaged_one_a_failure(tmp_path: Path) -> None:
    assert checks(tmp_path)["default model"].verdict == "warn"
    store = ModelStore(tmp_path)
    path = store.path(store.known("smollm2-135m"))
    path.parent.mkdir(parents=True)
    path.write_bytes(b"GGUF")
    damaged = checks(tmp_path)["default model"]
    assert damaged.verdict == "fail"
    assert damaged.mend == "infra-lab models pull smollm2-135m"


def test_a_missing_compiler_is_a_warning_with_a_mend(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor_checks, "find_compiler", lambda: None)
    check = checks(tmp_path)["C compiler"]
    assert check.verdict == "warn"
    assert check.mend


def test_missing_cpu_kernels_are_a_warning_with_the_reason(tmp_path: Path) -> None:
    found = checks(tmp_path, findings={**FINDINGS, "kernels_error": "no OpenMP"})
    check = found["CPU kernels"]
    assert check.verdict == "warn"
    assert "no OpenMP" in check.value
    assert check.mend


def test_whatever_is_not_ok_says_what_to_do(tmp_path: Path) -> None:
    memory = Memory(total=1, available=1)
    found = checks(tmp_path, findings="killed by signal 4", memory=memory)
    silent = [check.name for check in found.values() if check.verdict != "ok" and not check.mend]
    assert silent == []


def test_the_probe_turns_a_broken_torch_into_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("raise ImportError('cannot open shared object')\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{Path(__file__).parents[2]}")
    assert torch_probe.probe(1 << 20) == "ImportError: cannot open shared object"


@pytest.mark.skipif(os.name == "nt", reason="signals end processes on POSIX only")
def test_the_probe_survives_a_torch_that_kills_its_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "torch.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGILL)\n")
    monkeypatch.setenv("PYTHONPATH", f"{tmp_path}{os.pathsep}{Path(__file__).parents[2]}")
    assert "killed by signal 4" in str(torch_probe.probe(1 << 20))


def test_the_probe_measures_this_machine() -> None:
    root = Path(__file__).parents[2]
    result = subprocess.run(
        [sys.executable, "-m", "infra_lab.cli.torch_probe", str(1 << 20)],
        cwd=root,
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stderr
    findings = json.loads(result.stdout)
    assert set(FINDINGS) == set(findings)
    assert findings["read_gb_per_s"] > 0
    assert findings["fp32_gflop_per_s"] > 0


def test_the_command_prints_json_and_its_status_follows_the_verdicts(
    run_command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "probe", lambda size: "ImportError: broken")
    result = run_command("doctor", "--json", "--cache-dir", str(tmp_path))
    report = json.loads(result.out)
    assert result.status == 1
    assert report["torch"] == {"error": "ImportError: broken"}
    assert {"name", "value", "verdict", "mend"} == set(report["checks"][0])


def test_the_table_shows_every_check_and_no_colours_when_piped(
    run_command: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "probe", lambda size: FINDINGS)
    result = run_command("doctor", "--cache-dir", str(tmp_path))
    assert all(name in result.out for name in checks(tmp_path))
    assert "\033" not in result.out


@given(st.integers(0, 1 << 44), st.none() | st.integers(1, 1 << 32))
def test_the_bandwidth_buffer_never_takes_much_of_the_free_memory(
    available: int, cache_bytes: int | None
) -> None:
    size = doctor.buffer_bytes(Memory(total=1 << 44, available=available), cache_bytes)
    assert size <= max(1 << 20, min(available // 8, 1 << 30))


def test_the_machine_is_read_without_torch() -> None:
    assert read_cpu().usable_cores >= 1
    memory = read_memory()
    assert 0 < memory.available <= memory.total
