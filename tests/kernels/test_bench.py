"""What is measured is what was asked, each case runs, and shares are computed rightly."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from kernels import bench
from kernels.bench_case import Case, Sizes
from kernels.bench_cases import cases

TINY = list(cases(Sizes.tiny(), "cpu", torch.float32))


@pytest.mark.parametrize("case", TINY, ids=[f"{case.kernel}, {case.config}" for case in TINY])
def test_every_case_runs_and_counts_its_work(case: Case) -> None:
    case.run()
    assert bool(case.flops) == bool(case.peers)
    assert (case.flops > 0) != (case.bytes > 0)


def constant(ms: float) -> Callable[[object], float]:
    return lambda run: ms


def test_a_memory_bound_kernel_is_held_against_a_copy() -> None:
    case = Case("k", "c", lambda: None, bytes=5e9, wanted=0.6)
    result = bench.measure(case, constant(10.0), copied=1000.0)
    assert (result.speed, result.unit, result.share) == (500.0, "GB/s", 0.5)
    assert result.is_missed


def test_a_compute_bound_kernel_is_held_against_the_fastest_peer() -> None:
    def refuses() -> None:
        raise RuntimeError("no such backend")

    times = {"ours": 4.0, "slow": 8.0, "fast": 2.0}
    peers = {"slow": lambda: "slow", "fast": lambda: "fast", "absent": refuses}
    case = Case("k", "c", lambda: "ours", flops=8e12, peers=peers, wanted=0.5)
    result = bench.measure(case, lambda run: times[str(run())], copied=1.0)
    assert (result.yardstick, result.yardstick_speed, result.speed) == ("fast", 4000.0, 2000.0)
    assert result.share == 0.5
    assert not result.is_missed
    assert "fast       4,000 TFLOP/s    50%  50%" in bench.render([result])


def test_a_share_of_a_yardstick_that_does_not_run_is_unknown_and_not_reached() -> None:
    def refuses() -> None:
        raise RuntimeError("no such backend")

    case = Case("k", "c", lambda: "ours", flops=8e12, peers={"absent": refuses}, wanted=0.5)

    def timer(run: Callable[[], object]) -> float:
        run()
        return 4.0

    result = bench.measure(case, timer, copied=1.0)
    assert (result.share, result.yardstick, result.yardstick_speed) == (None, "none runs here", 0.0)
    assert result.is_missed
    assert "unknown  50% missed" in bench.render([result])


def test_bandwidth_counts_what_is_read_and_what_is_written() -> None:
    assert bench.copy_bandwidth(constant(2.0), 1_000_000, "cpu") == 1.0


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_without_a_gpu_nothing_is_timed(capsys: pytest.CaptureFixture[str]) -> None:
    assert bench.main([]) == 2
    assert "error: no GPU" in capsys.readouterr().err
