"""Memory in huge pages: zeros of any shape and type, and tensors that do not overlap."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.native.memory import (
    ALIGNMENT,
    CHUNK,
    HUGE_PAGE,
    MALLOC_VARIABLES,
    Arena,
    Scratch,
    Workspace,
    zeros,
)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 1, 2, 1, 1), (5, 16, 2, 3, 64), (100, 16, 2, 3, 65)])
def test_memory_is_zero_writable_and_aligned(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    cache = zeros(shape, dtype)
    assert cache.shape == shape
    assert cache.dtype == dtype
    assert cache.is_contiguous()
    assert cache.data_ptr() % HUGE_PAGE == 0
    assert cache.count_nonzero() == 0
    cache.fill_(1)
    assert cache.count_nonzero() == cache.numel()


def test_two_caches_share_no_memory() -> None:
    first, second = (zeros((4, 4), torch.float32) for _ in range(2))
    first.fill_(1)
    assert second.count_nonzero() == 0


def test_an_arenas_tensors_share_regions_but_no_memory() -> None:
    arena = Arena()
    large = CHUNK // 4 + 1  # in fp32 more than a region
    shapes = [(3,), (2, 5, 7), (1,), (large,), (1000, 1000), (4,)]
    tensors = [arena.empty(*shape) for shape in shapes]
    for i, tensor in enumerate(tensors):
        tensor.fill_(i)
    for i, (shape, tensor) in enumerate(zip(shapes, tensors, strict=True)):
        assert tensor.shape == shape
        assert tensor.is_contiguous()
        assert tensor.data_ptr() % ALIGNMENT == 0
        assert bool((tensor == i).all())
    assert tensors[1].data_ptr() - tensors[0].data_ptr() == ALIGNMENT


@given(st.lists(st.tuples(st.integers(0, 400), st.booleans()), max_size=40))
def test_tensors_of_a_workspace_never_overlap_while_they_live(
    steps: list[tuple[int, bool]],
) -> None:
    """Each keeps what was written into it, whatever came and went beside it."""
    workspace = Workspace(4096)
    alive: list[tuple[torch.Tensor, int]] = []
    for number, (size, is_kept) in enumerate(steps):
        tensor = workspace.empty(size)
        if tensor is None:
            assert sum(4 * one.numel() for one, _ in alive) > 0
            alive.pop(0)
            continue
        assert tensor.shape == (size,)
        tensor.fill_(number)
        if is_kept:
            alive.append((tensor, number))
        del tensor
        assert all(bool((one == value).all()) for one, value in alive)


def test_a_place_is_free_again_when_the_last_view_of_its_tensor_is_gone() -> None:
    workspace = Workspace(256)
    first = workspace.empty(8, 4)
    assert first is not None
    view = first[2:].t()
    place = first.data_ptr()
    del first
    second = workspace.empty(8, 4)
    assert second is not None
    assert second.data_ptr() == place + 128
    assert workspace.empty(1) is None
    del view
    third = workspace.empty(1)
    assert third is not None
    assert third.data_ptr() == place
    assert workspace.owns(third)
    assert not workspace.owns(torch.empty(1))


def test_a_region_outlives_its_arena() -> None:
    tensor = Arena().empty(1 << 20)
    tensor.fill_(7)
    assert float(tensor.sum()) == 7 << 20


def test_scratch_is_lent_again_and_again() -> None:
    scratch = Scratch()
    first = scratch.empty(5, 7)
    first.fill_(1)
    again = scratch.empty(70, dtype=torch.bfloat16)
    assert again.data_ptr() == first.data_ptr()
    larger = scratch.empty(5, 8)
    larger.fill_(2)
    assert float(first.sum()) == 35  # what was lent before is still its holder's


PAGE_FAULTS = """
import resource
from infra_lab.native.memory import keep_freed_memory
import torch
assert keep_freed_memory() is {kept}
step = lambda: [torch.zeros(6 << 18) for _ in range(3)] and None
for _ in range(8):
    step()  # the heap grows for a few of them
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(10):
    step()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="glibc's malloc only")
def test_what_a_step_frees_serves_the_next_step() -> None:
    def page_faults(kept: bool, **environment: str) -> int:
        code = PAGE_FAULTS.format(kept=kept)
        clean = {k: v for k, v in os.environ.items() if k not in MALLOC_VARIABLES}
        run = subprocess.run(
            [sys.executable, "-c", code],
            env=clean | environment,
            capture_output=True,
            text=True,
            check=True,
        )
        return int(run.stdout)

    assert page_faults(kept=True) < 500
    # The user's own settings stay: here, to give everything back at once.
    assert page_faults(kept=False, MALLOC_MMAP_THRESHOLD_="65536") > 10_000
