"""Measurements of sampling and of rejection: rows of logits, held against a copy."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import torch

from kernels.bench_case import Case, Sizes
from kernels.rejection_sample import rejection_sample
from kernels.sampling import sample

DRAFTED = 4


def choices(sizes: Sizes, device: str) -> Iterator[Case]:
    """Bytes are those of one pass; what a search reads again should come from L2."""
    rows, vocabulary = sizes.decodes, sizes.vocabulary
    logits = torch.randn(rows, vocabulary, device=device) * 2
    config = f"fp32 {rows}x{vocabulary}"
    ones = torch.ones(rows, device=device)
    numbers = torch.rand(rows, device=device)
    draw = partial(sample, logits, ones, uniform=numbers)
    yield Case("sample", config, draw, bytes=logits.nbytes)
    draw = partial(sample, logits, ones, uniform=numbers, top_k=50 * ones.int(), top_p=0.9 * ones)
    yield Case("sample", f"{config} top-k top-p", draw, bytes=logits.nbytes)
    drafted = rows * DRAFTED
    target, draft = torch.rand(2, drafted, vocabulary, device=device).log_softmax(-1).exp()
    target[:, 0] = 0.0  # so that every request's first token is rejected, and replaced
    verify = partial(
        rejection_sample,
        torch.zeros(drafted, device=device, dtype=torch.int64),
        DRAFTED * torch.arange(1, rows + 1, device=device),
        draft,
        target,
        torch.zeros(rows, device=device, dtype=torch.int64),
        max_draft=DRAFTED,
        uniform=torch.rand(drafted, device=device),
        replacement_uniform=numbers,
    )
    config += f" {DRAFTED} drafted"
    yield Case("rejection_sample", config, verify, bytes=2.0 * logits.nbytes)
