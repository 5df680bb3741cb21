"""The debugging sessions: what needs no tool exactly, and what is said where tools are absent."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Iterator

import pytest

from infra_lab.claims.experiments import cpp_bounds, linux_debugging
from infra_lab.claims.experiments import process_labs as labs
from infra_lab.claims.experiments.experiment import silent
from infra_lab.claims.experiments.native_programs import Built, Workshop, workshop

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="sessions are Linux's"),
    pytest.mark.skipif(
        shutil.which("g++") is None and shutil.which("c++") is None,
        reason="there is no C++ compiler",
    ),
]


@pytest.fixture(scope="module")
def shop() -> Iterator[Workshop]:
    with workshop() as made:
        yield made


def test_processes_end_with_128_and_their_signal(shop: Workshop) -> None:
    assert labs.exit_statuses(shop) == {"abort": 134, "kill": 137, "segv": 139}


def test_a_killed_process_leaves_nothing_in_proc(shop: Workshop) -> None:
    assert labs.proc_entry_outlives_its_process(shop) == (True, False)


def test_a_null_field_faults_at_its_offset(shop: Workshop) -> None:
    address, _ = labs.null_fault(shop, "read")
    assert address == 16


def test_a_session_without_its_tool_says_nothing(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(labs, "tool", lambda name: None)
    for session in (
        labs.conditional_breakpoint,
        labs.traced_opens,
        labs.counted_calls,
        labs.valgrind_findings,
        labs.profiler_counts,
    ):
        assert session(shop) is None


@pytest.fixture
def _bare_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    """No gdb, strace, valgrind or perf, and a compiler without sanitizers."""
    build = Workshop.build

    def without_sanitizers(self: Workshop, source: str, *flags: str) -> Built:
        if any(flag.startswith("-fsanitize") for flag in flags):
            return Built(None, "cannot find libasan")
        return build(self, source, *flags)

    monkeypatch.setattr(labs, "tool", lambda name: None)
    monkeypatch.setattr(Workshop, "build", without_sanitizers)


@pytest.mark.slow
@pytest.mark.usefixtures("_bare_machine")
@pytest.mark.parametrize("module", [cpp_bounds, linux_debugging])
def test_what_is_absent_is_left_out_and_the_rest_holds(module: object) -> None:
    result = module.EXPERIMENT.run(silent, 0)  # type: ignore[attr-defined]
    assert result.holds
    said = " ".join(result.said(one, "en") for one in result.conclusions)
    assert said
    assert "AddressSanitizer" not in said
    assert "strace" not in said
    assert "gdb" not in said
