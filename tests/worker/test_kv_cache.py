"""The cache's memory: zeros of any shape and type, where huge pages can serve them."""

from __future__ import annotations

import pytest
import torch

from infra_lab.worker.kv_cache import HUGE_PAGE, zeros

CPU = torch.device("cpu")


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("shape", [(1, 1, 2, 1, 1), (5, 16, 2, 3, 64), (100, 16, 2, 3, 65)])
def test_memory_is_zero_writable_and_aligned(shape: tuple[int, ...], dtype: torch.dtype) -> None:
    cache = zeros(shape, dtype, CPU)
    assert cache.shape == shape
    assert cache.dtype == dtype
    assert cache.is_contiguous()
    assert cache.data_ptr() % HUGE_PAGE == 0
    assert cache.count_nonzero() == 0
    cache.fill_(1)
    assert cache.count_nonzero() == cache.numel()


def test_two_caches_share_no_memory() -> None:
    first, second = (zeros((4, 4), torch.float32, CPU) for _ in range(2))
    first.fill_(1)
    assert second.count_nonzero() == 0
