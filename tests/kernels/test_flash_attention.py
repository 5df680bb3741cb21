"""Flash attention forward: against float64 under the sanitizer, exact laws, known faults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.errors import KernelInputError
from kernels.flash_attention import (
    flash_attention,
    flash_attention_reference,
    flash_attention_varlen,
)
from kernels.flash_attention_forward import choose_launch, flash_forward_kernel
from kernels.testing.accuracy import assert_as_accurate_as_torch
from kernels.testing.architectures import ARCHITECTURES
from kernels.testing.faults import OutOfBoundsError
from kernels.testing.sanitizer import sanitize
from tests.kernels.attention_inputs import (
    HEAD_DIMS,
    LENGTHS,
    WIDE_HEAD_DIMS,
    WIDE_HEADS,
    WIDE_LENGTHS,
    AttentionInputs,
    inputs,
    references,
    starts_of,
    tensor_of,
)
from tests.kernels.on_device import first_grid, watched

SEEDS = st.integers(0, 2**31)


def require_right(case: AttentionInputs, device: str) -> None:
    q, k, v, d_out = case.tensors(device)
    with watched(device) as watch:
        out, lse = flash_attention(q, k, v, return_lse=True, **case.options)
        watch.require_written(out=out, lse=lse)
    truth, peer = references(q, k, v, d_out, **case.options)
    assert_as_accurate_as_torch(out, truth[0], peer[0], tiny=case.tiny_of(truth[0]))
    in_fp32 = flash_attention_reference(
        q.cpu().float(), k.cpu().float(), v.cpu().float(), **case.options
    )
    tiny = 1e-5 * max(1.0, case.options.get("softcap", 0.0))
    assert_as_accurate_as_torch(lse, truth[1], in_fp32[1], tiny=tiny)


@settings(max_examples=25)
@given(case=inputs())
def test_attention_of_any_shape_and_mask_is_as_accurate_as_torch(
    device: str, case: AttentionInputs
) -> None:
    require_right(case, device)


@pytest.mark.slow
@settings(max_examples=250)
@given(case=inputs(WIDE_LENGTHS, WIDE_HEAD_DIMS, WIDE_HEADS))
def test_attention_of_any_longer_shape_is_as_accurate_as_torch(
    device: str, case: AttentionInputs
) -> None:
    require_right(case, device)


# Exact laws.


@settings(max_examples=5)
@given(seed=SEEDS, head_dim=st.sampled_from(HEAD_DIMS))
def test_the_order_of_keys_does_not_matter_without_a_mask(
    device: str, seed: int, head_dim: int
) -> None:
    q = tensor_of((1, 33, 1, head_dim), seed=seed, device=device)
    k, v = (tensor_of((1, 150, 1, head_dim), seed=seed + n, device=device) for n in (1, 2))
    order = torch.randperm(150, generator=torch.Generator().manual_seed(seed)).to(device)
    shuffled = flash_attention(q, k[:, order].contiguous(), v[:, order].contiguous())
    truth, peer = references(q, k, v, q)
    assert_as_accurate_as_torch(shuffled, truth[0], peer[0])


@settings(max_examples=5)
@given(seed=SEEDS, causal=st.booleans())
def test_heads_do_not_know_of_each_other(device: str, seed: int, causal: bool) -> None:
    """Bit for bit: shuffled heads give the shuffled result."""
    q, k, v = (tensor_of((2, 70, 4, 40), seed=seed + n, device=device) for n in range(3))
    order = torch.tensor([2, 0, 3, 1], device=device)
    out = flash_attention(q, k, v, causal=causal)
    shuffled = flash_attention(q[:, :, order], k[:, :, order], v[:, :, order], causal=causal)
    assert torch.equal(shuffled, out[:, :, order])


@settings(max_examples=5)
@given(seed=SEEDS)
def test_query_heads_of_a_group_read_one_kv_head(device: str, seed: int) -> None:
    """Bit for bit as if each query head had a copy of it."""
    q = tensor_of((1, 70, 6, 64), seed=seed, device=device)
    k, v = (tensor_of((1, 90, 2, 64), seed=seed + n, device=device) for n in (1, 2))
    copied = (tensor.repeat_interleave(3, dim=2) for tensor in (k, v))
    assert torch.equal(flash_attention(q, k, v), flash_attention(q, *copied))


@settings(max_examples=5)
@given(seed=SEEDS, shift=st.sampled_from([-64.0, 16.0, 512.0]))
def test_a_constant_added_to_all_scores_moves_only_the_lse(
    device: str, seed: int, shift: float
) -> None:
    """One more column, 1 in q and `shift` in k, adds it to every product."""
    q, k, v = (tensor_of((1, 65, 1, 40), torch.float32, seed + n, device) for n in range(3))

    def with_column(tensor: torch.Tensor, value: float) -> torch.Tensor:
        return torch.cat([tensor, torch.full_like(tensor[..., :1], value)], -1)

    out, lse = flash_attention(q, k, v, scale=0.125, return_lse=True)
    moved, moved_lse = flash_attention(
        with_column(q, 1.0), with_column(k, shift), with_column(v, 0.0), scale=0.125,
        return_lse=True,
    )  # fmt: skip
    torch.testing.assert_close(moved[..., :40], out, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(moved_lse, lse + shift / 8, atol=1e-4, rtol=1e-5)


@settings(max_examples=5)
@given(seed=SEEDS, cut=st.sampled_from([1, 63, 64, 100]))
def test_two_halves_of_the_keys_merge_by_their_lse_into_one_pass(
    device: str, seed: int, cut: int
) -> None:
    q = tensor_of((1, 33, 2, 64), torch.float32, seed, device)
    k, v = (tensor_of((1, 150, 1, 64), torch.float32, seed + n, device) for n in (1, 2))
    whole, whole_lse = flash_attention(q, k, v, return_lse=True)
    first, first_lse = flash_attention(q, k[:, :cut], v[:, :cut], return_lse=True)
    second, second_lse = flash_attention(q, k[:, cut:], v[:, cut:], return_lse=True)
    lse = torch.logaddexp(first_lse, second_lse)
    share = (first_lse - lse).exp().transpose(1, 2)[..., None]
    torch.testing.assert_close(lse, whole_lse, atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(share * first + (1 - share) * second, whole, atol=1e-5, rtol=1e-5)


@settings(max_examples=5)
@given(seed=SEEDS, causal=st.booleans())
def test_a_row_does_not_depend_on_the_rows_beside_it(device: str, seed: int, causal: bool) -> None:
    q, k, v = (tensor_of((2, 70, 2, 59), seed=seed + n, device=device) for n in range(3))
    together = flash_attention(q, k, v, causal=causal)
    spoiled = torch.full_like(q, float("nan"))
    spoiled[1, 40, 1] = q[1, 40, 1]
    alone = flash_attention(spoiled, k, v, causal=causal)
    assert torch.equal(alone[1, 40, 1], together[1, 40, 1])


@settings(max_examples=5)
@given(seed=SEEDS, length=st.sampled_from([2, 64, 65, 130]))
def test_under_a_causal_mask_the_future_does_not_matter(
    device: str, seed: int, length: int
) -> None:
    q, k, v = (tensor_of((1, length, 1, 64), seed=seed + n, device=device) for n in range(3))
    out = flash_attention(q, k, v, causal=True)
    k[:, length // 2 :], v[:, length // 2 :] = 300.0, -300.0
    changed = flash_attention(q, k, v, causal=True)
    assert torch.equal(changed[:, : length // 2], out[:, : length // 2])


def test_the_last_query_of_a_causal_mask_sees_all_keys(device: str) -> None:
    """Decoding: one query, at the end; bit for bit as without a mask."""
    q = tensor_of((2, 1, 4, 64), device=device)
    k, v = (tensor_of((2, 147, 2, 64), seed=n, device=device) for n in (1, 2))
    assert torch.equal(flash_attention(q, k, v, causal=True), flash_attention(q, k, v))


def test_a_window_of_one_returns_the_values_themselves(device: str) -> None:
    q, k, v = (tensor_of((2, 150, 2, 80), seed=n, device=device) for n in range(3))
    assert torch.equal(flash_attention(q, k, v, causal=True, window=1), v)


def test_a_window_as_long_as_the_keys_is_none(device: str) -> None:
    q, k, v = (tensor_of((1, 150, 1, 64), seed=n, device=device) for n in range(3))
    causal = flash_attention(q, k, v, causal=True)
    assert torch.equal(flash_attention(q, k, v, causal=True, window=150), causal)
    assert torch.equal(flash_attention(q, k, v, causal=True, window=2**40), causal)


def test_a_scale_of_zero_gives_the_mean_of_the_values(device: str) -> None:
    q, k, v = (tensor_of((1, 70, 1, 64), torch.float32, n, device) for n in range(3))
    out, lse = flash_attention(q, k, v, scale=0.0, return_lse=True)
    torch.testing.assert_close(out, v.mean(1, keepdim=True).expand_as(out), atol=1e-6, rtol=1e-5)
    torch.testing.assert_close(lse, torch.full_like(lse, 70.0).log())


def test_a_negative_scale_turns_the_scores_round(device: str) -> None:
    q, k, v = (tensor_of((1, 70, 1, 64), seed=n, device=device) for n in range(3))
    assert torch.equal(flash_attention(q, k, v, scale=-3.0), flash_attention(-q, k, v, scale=3.0))


# Packed sequences.


@settings(max_examples=8)
@given(
    lengths=st.lists(
        st.tuples(st.sampled_from([0, 1, 50, 61, 64, 130]), st.sampled_from([0, 1, 33, 70, 147])),
        min_size=1, max_size=3,
    ),
    seed=SEEDS,
    dtype=st.sampled_from([torch.bfloat16, torch.float32]),
    options=st.sampled_from(
        [{}, {"causal": True}, {"causal": True, "window": 20}, {"softcap": 5.0}]
    ),
)  # fmt: skip
def test_packed_sequences_are_as_each_alone(
    device: str,
    lengths: list[tuple[int, int]],
    seed: int,
    dtype: torch.dtype,
    options: Mapping[str, Any],
) -> None:
    """Bit for bit; and the NaN in tokens before, behind and between buffers reaches nobody."""
    query_lengths, key_lengths = ([pair[n] for pair in lengths] for n in (0, 1))
    query_starts, key_starts = (
        starts_of(query_lengths, 3, device),
        starts_of(key_lengths, 1, device),
    )
    q = tensor_of((sum(query_lengths) + 8, 4, 40), dtype, seed, device, padding=8)
    k, v = (
        tensor_of((sum(key_lengths) + 8, 2, 40), dtype, seed + n, device, padding=8) for n in (1, 2)
    )
    for tensor, starts in ((q, query_starts), (k, key_starts), (v, key_starts)):
        tensor[: int(starts[0])] = tensor[int(starts[-1]) :] = float("nan")
    with watched(device) as watch:
        out, lse = flash_attention_varlen(
            q, k, v, query_starts, key_starts, max(query_lengths), max(key_lengths),
            return_lse=True, **options,
        )  # fmt: skip
        watch.require_written(out=out, lse=lse)
    outside = torch.ones(len(q), dtype=torch.bool, device=device)
    for place in range(len(lengths)):
        rows = slice(int(query_starts[place]), int(query_starts[place + 1]))
        keys = slice(int(key_starts[place]), int(key_starts[place + 1]))
        outside[rows] = False
        alone, alone_lse = flash_attention(
            q[None, rows], k[None, keys], v[None, keys], return_lse=True, **options
        )
        assert torch.equal(out[rows], alone[0])
        assert torch.equal(lse[:, rows], alone_lse[0])
    assert out[outside].eq(0).all()
    assert lse[:, outside].isneginf().all()


# Faults of other implementations.


def test_queries_before_the_first_key_get_zero_and_an_lse_of_minus_infinity(device: str) -> None:
    """flash-attention #1778: five queries, two keys, the last query sees both."""
    q = tensor_of((1, 5, 2, 64), device=device)
    k, v = (tensor_of((1, 2, 1, 64), seed=n, device=device) for n in (1, 2))
    with watched(device):
        out, lse = flash_attention(q, k, v, causal=True, return_lse=True)
    assert out[:, :3].eq(0).all()
    assert lse[:, :, :3].isneginf().all()
    assert torch.equal(out[:, 3], v[:, 0].expand(1, 2, 64))
    assert lse[:, :, 3:].isfinite().all()


def test_an_empty_sequence_leaves_its_neighbours_alone(device: str) -> None:
    """flash-attention #2842: lengths 61, 0 and 50."""
    starts = starts_of([61, 0, 50], device=device)
    q, k, v = (tensor_of((111, 2, 64), seed=n, device=device) for n in range(3))
    out, lse = flash_attention_varlen(q, k, v, starts, starts, 61, 61, return_lse=True)
    for rows in (slice(0, 61), slice(61, 111)):
        alone = flash_attention(q[None, rows], k[None, rows], v[None, rows], return_lse=True)
        assert torch.equal(out[rows], alone[0][0])
        assert torch.equal(lse[:, rows], alone[1][0])


@pytest.mark.parametrize("lengths", LENGTHS)
def test_a_cap_comes_before_the_mask(device: str, lengths: tuple[int, int]) -> None:
    """flash-attention PR 1025: capped after it, -inf would be -1 and hidden keys would count."""
    query_len, key_len = lengths
    q = tensor_of((1, query_len, 1, 64), torch.float32, device=device)
    k = tensor_of((1, key_len, 1, 64), torch.float32, 1, device)
    v = torch.zeros_like(k)
    v[:, 1:] = 1e6  # what only query key_len - query_len + 1 and later ones may see
    out = flash_attention(q, k, v, causal=True, softcap=1.0)
    assert out[:, : max(0, query_len - key_len + 1)].eq(0).all()


def test_a_capped_score_stays_below_the_cap(device: str) -> None:
    """unsloth-zoo PR 593: a score of 124 capped by 30 is 30 tanh(124 / 30)."""
    q = torch.full((1, 1, 1, 16), 2.0, device=device)
    k = torch.full((1, 1, 1, 16), 3.875, device=device)
    _, lse = flash_attention(q, k, k, scale=1.0, softcap=30.0, return_lse=True)
    wanted = 30.0 * torch.tanh(torch.tensor(124.0 / 30.0))
    torch.testing.assert_close(lse.cpu().view(()), wanted)
    assert lse.item() <= 30.0


@pytest.mark.parametrize("head_dim", [1, 15, 17, 80, 96, 111, 128, 200, 256])
def test_any_head_dim_is_padded_and_masked(device: str, head_dim: int) -> None:
    """sglang #1159, triton #621; NaN lies behind every head."""
    case = AttentionInputs(1, (20, 40), (2, 1), head_dim, torch.bfloat16, 0, 3, {"causal": True})
    require_right(case, device)


@pytest.mark.parametrize("lengths", LENGTHS)
def test_what_lies_behind_a_ragged_end_does_not_matter(
    device: str, lengths: tuple[int, int]
) -> None:
    """FlagGems #3716: NaN or zeros behind the last token, head and column; bit for bit."""
    results = []
    for padding in (0, 3):
        case = AttentionInputs(1, lengths, (2, 1), 59, torch.bfloat16, 0, padding)
        q, k, v, _ = case.tensors(device)
        results.append(flash_attention(q, k, v, causal=True, return_lse=True))
    (out, lse), (same_out, same_lse) = results
    assert torch.equal(out, same_out)
    assert torch.equal(lse, same_lse)


@pytest.mark.parametrize(
    ("batch", "tokens", "heads"), [(70000, 1, 1), (1, 70000, 1), (1, 1, 70000)]
)
def test_sixty_five_thousand_of_anything_fit_the_grid(
    device: str, batch: int, tokens: int, heads: int
) -> None:
    """vLLM PR 52381: y and z end at 65,535, x does not."""
    if device != "cpu":
        flash_attention(*(tensor_of((batch, tokens, heads, 16), device=device) for _ in range(3)))
        return
    q = tensor_of((batch, tokens, heads, 16))
    x, y, z = first_grid(lambda: flash_attention(q, q, q))
    assert x >= 70000 // 128
    assert (y, z) == (1, 1)


def test_more_tiles_than_a_grid_has_programs_are_refused(device: str) -> None:
    """One long sequence among many: each is given as many tiles as the longest."""
    q = tensor_of((1, 128, 16), device=device)
    starts = starts_of([0] * 2**17, device=device)
    with pytest.raises(KernelInputError, match=r"131072 sequences .* at most 2147483647"):
        flash_attention_varlen(q, q, q, starts, starts, 2**14, 1)


@pytest.mark.parametrize(
    ("batch", "query_len", "key_len", "heads"),
    [(0, 5, 5, 1), (2, 0, 5, 1), (2, 5, 0, 1), (2, 0, 0, 1), (2, 5, 5, 0)],
)
def test_an_empty_side_gives_zeros_or_nothing(
    device: str, batch: int, query_len: int, key_len: int, heads: int
) -> None:
    q = tensor_of((batch, query_len, heads, 64), device=device)
    k = tensor_of((batch, key_len, 1, 64), device=device)
    with watched(device) as watch:
        out, lse = flash_attention(q, k, k, causal=True, return_lse=True)
        watch.require_written(out=out, lse=lse)
    assert out.shape == q.shape
    assert lse.shape == (batch, heads, query_len)
    if not key_len:
        assert out.eq(0).all()
        assert lse.isneginf().all()


def test_a_batch_of_no_packed_sequences_gives_zeros(device: str) -> None:
    q, starts = tensor_of((4, 2, 64), device=device), starts_of([], device=device)
    assert flash_attention_varlen(q, q, q, starts, starts, 0, 0).eq(0).all()


# Offsets.


def test_token_offsets_are_64_bit(device: str) -> None:
    """The last tile, 2^31 elements from the first one, would be at -2^31 in 32 bits."""
    if device != "cpu":
        pytest.skip("needs the sanitizer")
    tensor = torch.zeros(64, dtype=torch.bfloat16)
    strides = (2**40, 2**24, 16) * 4
    with sanitize(), pytest.raises(OutOfBoundsError, match="element 2147483648 of 'q'"):
        flash_forward_kernel[(2,)](
            tensor, tensor, tensor, tensor, None, tensor, None, None, *strides, 256, 256,
            256, 0, 2, 1, 1, 1.0, 0.0, 0,
            ROWS=128, KEYS=64, HEAD_DIM=16, PADDED_DIM=16, CAUSAL=True, HAS_WINDOW=False,
            HAS_SOFTCAP=False, NEGATIVE=False, VARLEN=False,
        )  # fmt: skip


def test_tokens_eight_million_elements_apart_are_brought_together(device: str) -> None:
    buffer = torch.zeros(2**23 + 16, dtype=torch.float16, device=device)
    far = buffer.as_strided((1, 2, 1, 16), (1, 2**23, 16, 1))
    far.copy_(tensor_of((1, 2, 1, 16), torch.float16))
    with watched(device):
        out = flash_attention(far, far, far)
    near = far.contiguous()
    assert torch.equal(out, flash_attention(near, near, near))


def test_heads_inside_a_fused_projection_are_taken_as_they_are(device: str) -> None:
    qkv = tensor_of((2, 70, 8, 64), device=device)
    q, k, v = qkv[:, :, :4], qkv[:, :, 4:6], qkv[:, :, 6:]
    with watched(device):
        out = flash_attention(q, k, v, causal=True)
    wanted = flash_attention(q.contiguous(), k.contiguous(), v.contiguous(), causal=True)
    assert torch.equal(out, wanted)


def test_heads_may_lie_before_tokens(device: str) -> None:
    q, k, v = (tensor_of((2, 4, 70, 64), seed=n, device=device).transpose(1, 2) for n in range(3))
    out = flash_attention(q, k, v)
    assert torch.equal(out, flash_attention(q.contiguous(), k.contiguous(), v.contiguous()))


# Launches and refusals.


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("head_dim", WIDE_HEAD_DIMS)
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_a_launch_has_tiles_that_a_matrix_instruction_takes(
    arch: str, head_dim: int, dtype: str
) -> None:
    launch = choose_launch(arch, head_dim, dtype)
    assert {launch.rows, launch.keys} <= {16, 32, 64, 128}
    assert launch.num_warps in (4, 8)


def test_wrong_tensors_are_refused_with_what_was_wanted(device: str) -> None:
    q, k = torch.zeros(2, 5, 4, 64, device=device), torch.zeros(2, 7, 2, 64, device=device)
    refusals: list[tuple[str, tuple[torch.Tensor, ...], dict[str, Any]]] = [
        (r"q has shape \(5, 4, 64\), wanted \[batch, tokens, heads, head_dim\]", (q[0], k, k), {}),
        ("k is float16, wanted float32", (q, k.half(), k), {}),
        ("q is int32, wanted float16 or", (q.int(), k, k), {}),
        (r"v has shape \(2, 6, 2, 64\), wanted \(2, 7, 2, 64\)", (q, k, k[:, :6]), {}),
        ("a batch of 2, k of 1", (q, k[:1], k[:1]), {}),
        ("q has 4 heads and k 3", (q, *(torch.zeros(2, 7, 3, 64, device=device),) * 2), {}),
        ("head_dim of 64 and k of 32", (q, k[..., :32], k[..., :32]), {}),
        ("head_dim of 257", (torch.zeros(1, 1, 1, 257, device=device),) * 3, {}),
        (
            r"elements of a head of q must be adjacent.*contiguous\(\)",
            (q.mT.mT[..., ::2], k, k),
            {},
        ),
        ("window is 5 with causal=False", (q, k, k), {"window": 5}),
        ("window is 0 with causal=True", (q, k, k), {"window": 0, "causal": True}),
        ("softcap is -1.0", (q, k, k), {"softcap": -1.0}),
        ("scale is nan", (q, k, k), {"scale": float("nan")}),
    ]
    for message, tensors, options in refusals:
        with pytest.raises(KernelInputError, match=message):
            flash_attention(*tensors, **options)
    with pytest.raises(KernelInputError, match=r"one device, not q on .*k on meta"):
        flash_attention(q, k.to("meta"), k)


def test_wrong_start_offsets_are_refused_with_what_was_wanted(device: str) -> None:
    q, starts = torch.zeros(5, 2, 64, device=device), starts_of([2, 3], device=device)
    with pytest.raises(KernelInputError, match="query_start_loc is int64, wanted int32"):
        flash_attention_varlen(q, q, q, starts.long(), starts, 3, 3)
    with pytest.raises(KernelInputError, match=r"key_start_loc has shape \(2,\), wanted \(3,\)"):
        flash_attention_varlen(q, q, q, starts, starts[:2], 3, 3)
    with pytest.raises(KernelInputError, match=r"query_start_loc has shape \(1, 3\)"):
        flash_attention_varlen(q, q, q, starts[None], starts, 3, 3)
    with pytest.raises(KernelInputError, match="max_query_len is -1"):
        flash_attention_varlen(q, q, q, starts, starts, -1, 3)
    with pytest.raises(KernelInputError, match="query_start_loc on meta"):
        flash_attention_varlen(q, q, q, starts.to("meta"), starts, 3, 3)
