"""Coming, going, and what a launch looks like: types of parameters, grids, errors."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
import triton
import triton.language as tl
from triton import knobs
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource
from triton.runtime import interpreter as stock
from triton.runtime.autotuner import Autotuner
from triton.runtime.jit import JITFunction

from kernels.checks import is_interpreting
from kernels.testing.interpreter import KernelCrashError, use_faithful_interpreter

ROOT = Path(__file__).resolve().parents[3]
SCALE = 3


@triton.jit
def doubled(x):
    return x + x


@triton.jit
def copy_kernel(source, target, BLOCK: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + lanes, doubled(tl.load(source + lanes)))


@triton.jit
def parameters_kernel(target, number, flag, missing, choice: tl.constexpr):
    tl.store(target, number)
    tl.store(target + 1, tl.where(flag, 1.0, 0.0))
    if missing is None:
        tl.store(target + 2, 1.0)
    if choice == "yes":
        tl.store(target + 3, 1.0)


@triton.jit
def failing_kernel(target):
    if tl.program_id(0) == 2:
        tl.static_assert(False, "planted")


@triton.autotune(
    configs=[
        triton.Config({"BLOCK": 8}, pre_hook=lambda arguments: arguments["target"].fill_(5)),
        triton.Config({"BLOCK": 16}, num_warps=8),
    ],
    key=[],
)
@triton.jit
def tuned_kernel(source, target, BLOCK: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + lanes, tl.load(source + lanes))


@triton.heuristics({"EVEN": lambda arguments: arguments["count"] % 8 == 0})
@triton.jit
def heuristic_kernel(target, count, EVEN: tl.constexpr):
    tl.store(target, 1 if EVEN else 0)


def state_of_triton() -> dict[tuple[str, str], int]:
    """Identity of everything that the interpreter could replace."""
    owners: list[Any] = [tl, tl.core, tl.math, tl.standard, tl.tensor, tl.dtype, stock]
    owners += [JITFunction, stock.InterpretedFunction, Autotuner, knobs.runtime]
    owners += [tl.core.tensor_descriptor_base, stock.InterpreterBuilder, stock.GridExecutor]
    return {
        (repr(owner), name): id(value) for owner in owners for name, value in vars(owner).items()
    }


def test_nothing_stays_replaced_after_the_block() -> None:
    before = state_of_triton()
    module = set(globals())
    with use_faithful_interpreter():
        copy_kernel[(1,)](torch.ones(8), torch.zeros(8), BLOCK=8)
        with use_faithful_interpreter():
            copy_kernel[(1,)](torch.ones(8), torch.zeros(8), BLOCK=8)
        copy_kernel[(1,)](torch.ones(8), torch.zeros(8), BLOCK=8)
        with pytest.raises(KernelCrashError):
            failing_kernel[(3,)](torch.zeros(1))
    assert state_of_triton() == before
    assert set(globals()) == module
    assert os.environ.get("TRITON_INTERPRET") is None


def test_a_kernel_still_compiles_after_it_was_interpreted() -> None:
    copy_kernel[(1,)](torch.ones(8), torch.zeros(8), BLOCK=8)
    source = ASTSource(
        fn=copy_kernel,
        signature={"source": "*fp32", "target": "*fp32", "BLOCK": "constexpr"},
        constexprs={"BLOCK": 8},
    )
    compiled = triton.compile(source, target=GPUTarget("cuda", 80, 32))
    assert "ld.global" in compiled.asm["ptx"]


def test_a_kernel_imported_before_the_block_is_interpreted_in_it() -> None:
    assert isinstance(copy_kernel, JITFunction)
    assert is_interpreting()
    target = torch.zeros(8)
    copy_kernel[(1,)](torch.ones(8), target, BLOCK=8)
    assert target.tolist() == [2.0] * 8


def test_tritons_own_switch_may_be_on_already(tmp_path: Path) -> None:
    """In another process: it must be set before the first import."""
    program = tmp_path / "program.py"
    program.write_text(
        "import torch, triton, triton.language as tl\n"
        "from kernels.testing.interpreter import use_faithful_interpreter\n"
        "@triton.jit\n"
        "def total(source, target):\n"
        "    tl.store(target, tl.load(source + tl.arange(0, 4)).to(tl.float32).sum())\n"
        "target = torch.zeros(1)\n"
        "with use_faithful_interpreter():\n"
        "    total[(1,)](torch.ones(4).bfloat16(), target)\n"
        "assert target.item() == 4\n"
    )
    path = os.pathsep.join([str(ROOT), *sys.path])
    environment = {**os.environ, "TRITON_INTERPRET": "1", "PYTHONPATH": path}
    result = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, env=environment
    )
    assert result.returncode == 0, result.stderr


def test_parameters_have_the_types_of_a_launch() -> None:
    target = torch.zeros(4, dtype=torch.float64)
    parameters_kernel[(1,)](target, 0.1, True, None, choice="yes")
    assert target[0].item() == torch.tensor(0.1).double().item()  # fp32, not Python's double
    assert target.tolist()[1:] == [1.0, 1.0, 1.0]


def test_options_of_the_compiler_are_no_parameters() -> None:
    target = torch.zeros(8)
    copy_kernel[(1,)](torch.ones(8), target, BLOCK=8, num_warps=4, num_stages=2)
    assert target.sum() == 16


def test_a_grid_may_be_a_function_of_the_arguments() -> None:
    target = torch.zeros(16)
    copy_kernel[lambda arguments: (16 // arguments["BLOCK"],)](torch.ones(16), target, BLOCK=8)
    assert target.sum() == 32


def test_an_empty_grid_does_nothing() -> None:
    failing_kernel[(0,)](torch.zeros(1))


@pytest.mark.parametrize("grid", [(1, 65536), (1, 1, 65536), (2**31,), (1, -1)])
def test_a_grid_that_cuda_refuses_is_refused(grid: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match="failing_kernel: grid"):
        failing_kernel[grid](torch.zeros(1))


def test_a_grid_of_four_dimensions_is_refused() -> None:
    with pytest.raises(ValueError, match="1 to 3 dimensions"):
        failing_kernel[(1, 1, 1, 1)](torch.zeros(1))


def test_a_crash_names_the_kernel_and_the_program() -> None:
    with pytest.raises(KernelCrashError, match=r"failing_kernel, program \(2, 0, 0\).*planted"):
        failing_kernel[(3,)](torch.zeros(1))


def test_a_tuned_kernel_runs_its_first_configuration() -> None:
    target = torch.zeros(10)
    tuned_kernel[(1,)](torch.ones(8), target)
    assert target.tolist() == [1.0] * 8 + [5.0] * 2  # the hook before it ran too


def test_heuristics_are_asked() -> None:
    target = torch.zeros(1)
    heuristic_kernel[(1,)](target, 16)
    assert target.item() == 1


def test_a_kernel_defined_in_a_function_sees_what_it_closes_over() -> None:
    addend = tl.constexpr(5)

    @triton.jit
    def inner_kernel(target):
        tl.store(target, addend.value + SCALE_CONSTANT)

    target = torch.zeros(1)
    inner_kernel[(1,)](target)
    assert target.item() == 5 + SCALE


SCALE_CONSTANT = SCALE
