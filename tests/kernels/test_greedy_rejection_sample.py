"""Greedy speculative verification against argmax, token after token."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.draft_requests import Verified
from kernels.errors import KernelInputError
from kernels.greedy_rejection_sample import (
    argmax_kernel,
    choose_launch,
    greedy_rejection_sample,
    greedy_rejection_sample_reference,
)
from kernels.rejection_sample import rejection_sample
from tests.kernels.on_device import first_grid, rows_on, spread, watched
from tests.kernels.strategies import DTYPES, SEEDS

INF, NAN = float("inf"), float("nan")
COUNTS = st.lists(st.integers(0, 5), min_size=1, max_size=5)


def verify(device: str, counts: list[int], drafts: torch.Tensor, logits: torch.Tensor) -> Verified:
    with watched(device) as watch:
        verified = greedy_rejection_sample(
            drafts.to(device),
            torch.tensor(counts).cumsum(0).int().to(device),
            logits,
            torch.arange(len(counts), device=device) + 100,
            max_draft=max(counts),
        )
        watch.require_written(output_ids=verified.output_ids, num_accepted=verified.num_accepted)
    return verified


@settings(max_examples=30)
@given(
    counts=COUNTS,
    vocabulary=st.sampled_from([1, 2, 3, 50, 511, 513]),
    dtype=DTYPES,
    seed=SEEDS,
    padding=st.sampled_from([0, 1, 8]),
    wrong=st.sampled_from([0.0, 0.3, 1.0]),
    tied=st.booleans(),
)
def test_the_output_is_what_greedy_decoding_gives(
    device: str,
    counts: list[int],
    vocabulary: int,
    dtype: torch.dtype,
    seed: int,
    padding: int,
    wrong: float,
    tied: bool,
) -> None:
    num_draft = sum(counts)
    logits = rows_on(device, (num_draft, vocabulary), dtype, seed, padding=padding)
    if tied:
        logits.round_()
    generator = torch.Generator().manual_seed(seed)
    drafts = torch.zeros(num_draft, dtype=torch.int64)
    if num_draft:
        drafts = logits.cpu().float().argmax(-1)
    changed = torch.rand(num_draft, generator=generator) < wrong
    drafts = torch.where(
        changed, torch.randint(vocabulary, (num_draft,), generator=generator), drafts
    )
    verified = verify(device, counts, drafts, logits)
    start = 0
    for request, count in enumerate(counts):
        rows = slice(start, start + count)
        start += count
        wanted = greedy_rejection_sample_reference(drafts[rows], logits[rows].cpu(), 100 + request)
        assert verified.num_accepted[request] == len(wanted) - 1
        wanted += [-1] * (max(counts) + 1 - len(wanted))
        assert verified.output_ids[request].tolist() == wanted


@settings(max_examples=15)
@given(counts=COUNTS, seed=SEEDS)
def test_it_is_rejection_sampling_from_a_certain_target(
    device: str, counts: list[int], seed: int
) -> None:
    """Whatever the uniforms."""
    num_draft = sum(counts)
    logits = rows_on(device, (num_draft, 20), torch.float32, seed)
    generator = torch.Generator().manual_seed(seed)
    drafts = torch.randint(20, (num_draft,), generator=generator)
    likeliest = torch.zeros(num_draft, 20)
    if num_draft:
        likeliest = torch.nn.functional.one_hot(logits.cpu().argmax(-1), 20).float()
        drafts = torch.where(drafts < 12, logits.cpu().argmax(-1), drafts)
    greedy = verify(device, counts, drafts, logits)
    drawn = rejection_sample(
        drafts.to(device),
        torch.tensor(counts).cumsum(0).int().to(device),
        None,
        likeliest.to(device),
        torch.arange(len(counts), device=device) + 100,
        max_draft=max(counts),
        uniform=torch.rand(num_draft, generator=generator).to(device),
        replacement_uniform=torch.rand(len(counts), generator=generator).to(device),
    )
    assert torch.equal(greedy.output_ids, drawn.output_ids)
    assert torch.equal(greedy.num_accepted, drawn.num_accepted)


def test_of_equal_logits_the_lowest_id_counts_across_tiles(device: str) -> None:
    logits = torch.zeros(2, 20_000, device=device)
    logits[0, [3, 8195, 19_999]] = 1.0  # one lane of three tiles holds some of them
    logits[1, [8195, 16_000]] = 1.0
    verified = verify(device, [1, 1], torch.tensor([0, 0]), logits)
    assert verified.output_ids[:, 0].tolist() == [3, 8195]


def test_nan_counts_as_minus_infinity(device: str) -> None:
    logits = torch.tensor([[NAN, 1.0, 2.0], [NAN, NAN, NAN], [-INF] * 3], device=device)
    verified = verify(device, [1, 1, 1], torch.tensor([0, 1, 2]), logits)
    assert verified.output_ids[:, 0].tolist() == [2, 0, 0]


def test_a_real_vocabulary(device: str) -> None:
    logits = rows_on(device, (3, 151_936), torch.bfloat16, 0, padding=5)
    drafts = (logits.float() == logits.float().amax(-1, keepdim=True)).int().argmax(-1).cpu()
    verified = verify(device, [3], drafts, logits)
    assert verified.output_ids.tolist() == [[*drafts.tolist(), 100]]


def test_what_lies_between_rows_is_not_read(device: str) -> None:
    logits = rows_on(device, (2, 300), torch.float16, 0)
    spoiled = spread(logits, 9, INF)
    drafts = torch.zeros(2, dtype=torch.int64)
    assert torch.equal(
        verify(device, [2], drafts, spoiled).output_ids,
        verify(device, [2], drafts, logits).output_ids,
    )


def test_ids_outside_the_vocabulary_are_rejected(device: str) -> None:
    logits = torch.eye(4, device=device)[[2, 2]]
    for garbage in (-1, 4, 2**40):
        verified = verify(device, [2], torch.tensor([2, garbage]), logits)
        assert verified.output_ids.tolist() == [[2, 2, -1]]


def test_requests_without_draft_tokens_get_their_bonus(device: str) -> None:
    verified = verify(
        device, [0, 0], torch.zeros(0, dtype=torch.int32), torch.zeros(0, 5, device=device)
    )
    assert verified.output_ids.tolist() == [[100], [101]]


def test_an_empty_batch_launches_nothing(device: str) -> None:
    none = torch.zeros(0, dtype=torch.int64, device=device)
    verified = greedy_rejection_sample(
        none, none, torch.zeros(0, 8, device=device), none, max_draft=2
    )
    assert verified.output_ids.shape == (0, 3)


def test_more_than_65535_rows_fit_the_grid() -> None:
    """They lie along its x axis: y and z end at 65,535."""
    ids = torch.zeros(65_537, dtype=torch.int64)
    ends = torch.arange(1, 65_538)
    grid = first_grid(
        lambda: greedy_rejection_sample(ids, ends, torch.zeros(65_537, 4), ids, max_draft=1)
    )
    assert grid == (65_537, 1, 1)


def test_row_offsets_are_64_bit(device: str) -> None:
    """The third row begins 2^32 elements on; no element of it is read."""
    likeliest = torch.ones(3, dtype=torch.int64, device=device)
    with watched(device):
        argmax_kernel[(3,)](torch.zeros(8, device=device), likeliest, 2**31 - 1, 0, BLOCK=512)
    assert likeliest.eq(0).all()


@pytest.mark.parametrize("vocabulary", [1, 512, 49_152, 151_936])
def test_a_launch_has_sixteen_tokens_a_thread(vocabulary: int) -> None:
    launch = choose_launch(vocabulary, 4)
    assert launch.block == 32 * 16 * launch.num_warps
    assert launch.positions == 8


def test_wrong_tensors_are_refused_with_what_was_wanted(device: str) -> None:
    ids = torch.zeros(2, dtype=torch.int64, device=device)
    ends = torch.tensor([2], device=device)
    logits = torch.zeros(2, 8, device=device)
    with pytest.raises(KernelInputError, match="target_logits is int64, wanted float16 or"):
        greedy_rejection_sample(ids, ends, ids, ids[:1], max_draft=2)
    with pytest.raises(
        KernelInputError, match=r"target_logits has shape \(1, 8\), wanted \[2, voc"
    ):
        greedy_rejection_sample(ids, ends, logits[:1], ids[:1], max_draft=2)
    with pytest.raises(KernelInputError, match="must be adjacent"):
        greedy_rejection_sample(
            ids, ends, torch.zeros(8, 2, device=device).t(), ids[:1], max_draft=2
        )
    with pytest.raises(KernelInputError, match=r"bonus_token_ids has shape \(2,\), wanted \(1,\)"):
        greedy_rejection_sample(ids, ends, logits, ids, max_draft=2)
    with pytest.raises(KernelInputError, match="max_draft is -1, wanted 0 to 1023"):
        greedy_rejection_sample(ids, ends, logits, ids[:1], max_draft=-1)
