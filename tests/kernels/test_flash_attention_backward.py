"""Flash attention backward: gradients against float64 autograd, exact laws, known faults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st

from kernels import flash_attention_dk_dv, flash_attention_dq
from kernels.flash_attention import flash_attention, flash_attention_varlen
from kernels.testing.accuracy import assert_as_accurate_as_torch
from kernels.testing.architectures import ARCHITECTURES
from kernels.testing.faults import OutOfBoundsError
from kernels.testing.sanitizer import sanitize
from tests.kernels.attention_inputs import (
    DTYPES,
    WIDE_HEAD_DIMS,
    WIDE_HEADS,
    WIDE_LENGTHS,
    AttentionInputs,
    inputs,
    references,
    starts_of,
    tensor_of,
)
from tests.kernels.on_device import watched

SEEDS = st.integers(0, 2**31)


def gradients_of(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, d_out: torch.Tensor, **options: Any
) -> tuple[torch.Tensor, ...]:
    # detach, not clone: a view keeps its strides and what lies between its elements.
    leaves = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
    return torch.autograd.grad(flash_attention(*leaves, **options), leaves, d_out)


def require_right(case: AttentionInputs, device: str) -> None:
    q, k, v, d_out = case.tensors(device)
    with watched(device) as watch:
        dq, dk, dv = gradients_of(q, k, v, d_out, **case.options)
        watch.require_written(dq=dq, dk=dk, dv=dv)
    truth, peer = references(q, k, v, d_out, **case.options)
    # Where one key has all the weight, dP - delta is 0 but for the order of two fp32 sums.
    for out, wanted, same_dtype in zip((dq, dk, dv), truth[2:], peer[2:], strict=True):
        tiny = case.tiny_of(wanted, least=1e-5)
        assert_as_accurate_as_torch(out, wanted, same_dtype, factor=3, tiny=tiny)


def two_keys(seed: int) -> AttentionInputs:
    """Rounding the result to bf16 moves delta by more than the gradients' own rounding does."""
    return AttentionInputs(
        1, (5, 2), (1, 1), 96, torch.bfloat16, seed, padding=0, options={"scale": 0.5}
    )


@settings(max_examples=25)
@given(case=inputs())
@example(case=two_keys(90))
@example(case=two_keys(105))
def test_gradients_of_any_shape_and_mask_are_as_accurate_as_those_of_torch(
    device: str, case: AttentionInputs
) -> None:
    require_right(case, device)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=100)
@given(data=st.data())
def test_gradients_of_any_longer_shape_are_as_accurate_as_those_of_torch(
    device: str, dtype: torch.dtype, data: st.DataObject
) -> None:
    """A hundred shapes of each dtype, ten minutes and more: in three tests, for three workers."""
    require_right(data.draw(inputs(WIDE_LENGTHS, WIDE_HEAD_DIMS, WIDE_HEADS, [dtype])), device)


@settings(max_examples=6)
@given(
    lengths=st.lists(
        st.tuples(st.sampled_from([0, 1, 33, 61, 130]), st.sampled_from([0, 1, 33, 147])),
        min_size=1, max_size=3,
    ),
    seed=SEEDS,
    options=st.sampled_from(
        [{}, {"causal": True}, {"causal": True, "window": 20}, {"softcap": 5.0}]
    ),
)  # fmt: skip
def test_gradients_of_packed_sequences_are_as_of_each_alone(
    device: str, lengths: list[tuple[int, int]], seed: int, options: Mapping[str, Any]
) -> None:
    """Bit for bit; tokens outside all sequences hold NaN and get 0."""
    query_lengths, key_lengths = ([pair[n] for pair in lengths] for n in (0, 1))
    query_starts, key_starts = (
        starts_of(query_lengths, 3, device),
        starts_of(key_lengths, 1, device),
    )
    query_shape, key_shape = (sum(query_lengths) + 8, 4, 40), (sum(key_lengths) + 8, 2, 40)
    q, d_out = (tensor_of(query_shape, seed=seed + n, device=device, padding=8) for n in (0, 3))
    k, v = (tensor_of(key_shape, seed=seed + n, device=device, padding=8) for n in (1, 2))
    for tensor, starts in (
        (q, query_starts), (d_out, query_starts), (k, key_starts), (v, key_starts),
    ):  # fmt: skip
        tensor[: int(starts[0])] = tensor[int(starts[-1]) :] = float("nan")
    leaves = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
    with watched(device) as watch:
        out = flash_attention_varlen(
            *leaves, query_starts, key_starts, max(query_lengths), max(key_lengths), **options
        )
        dq, dk, dv = torch.autograd.grad(out, leaves, d_out)
        watch.require_written(dq=dq, dk=dk, dv=dv)
    for place in range(len(lengths)):
        rows = slice(int(query_starts[place]), int(query_starts[place + 1]))
        keys = slice(int(key_starts[place]), int(key_starts[place + 1]))
        parts = (q[None, rows], k[None, keys], v[None, keys], d_out[None, rows])
        alone = gradients_of(*parts, **options)
        for packed, single in zip((dq[rows], dk[keys], dv[keys]), alone, strict=True):
            assert torch.equal(packed, single[0])
    for gradient, starts in ((dq, query_starts), (dk, key_starts), (dv, key_starts)):
        assert gradient[: int(starts[0])].eq(0).all()
        assert gradient[int(starts[-1]) :].eq(0).all()


def test_gradients_are_the_same_in_every_run(device: str) -> None:
    tensors = [tensor_of((2, 150, 2, 64), seed=n, device=device) for n in range(4)]
    once, again = (gradients_of(*tensors, causal=True) for _ in range(2))
    assert all(torch.equal(a, b) for a, b in zip(once, again, strict=True))


def test_hidden_keys_and_blind_queries_get_a_gradient_of_zero(device: str) -> None:
    """flash-attention #1778 and #402: with two keys, three of five queries see none; and with
    a window of two, the first of four keys is seen by nobody.
    """
    q, d_out = (tensor_of((1, 5, 1, 64), seed=n, device=device) for n in (0, 3))
    k, v = (tensor_of((1, 2, 1, 64), seed=n, device=device) for n in (1, 2))
    dq, dk, dv = gradients_of(q, k, v, d_out, causal=True)
    assert dq[:, :3].eq(0).all()
    assert all(gradient.isfinite().all() for gradient in (dq, dk, dv))
    q, d_out = q[:, :2], d_out[:, :2]
    k, v = (tensor_of((1, 4, 1, 64), seed=n, device=device) for n in (1, 2))
    dq, dk, dv = gradients_of(q, k, v, d_out, causal=True, window=2)
    assert dk[:, 0].eq(0).all()
    assert dv[:, 0].eq(0).all()
    assert dv[:, 1:].ne(0).any(-1).all()


@pytest.mark.parametrize("causal", [False, True])
def test_many_queries_for_one_key_have_finite_gradients(device: str, causal: bool) -> None:
    """flash-attention #443: queries 76, 34 and 146, one key each."""
    starts, key_starts = (
        starts_of([76, 34, 146], device=device),
        starts_of([1, 1, 1], device=device),
    )
    q, d_out = (tensor_of((256, 2, 64), seed=n, device=device) for n in (0, 3))
    k, v = (tensor_of((3, 2, 64), seed=n, device=device) for n in (1, 2))
    leaves = [tensor.requires_grad_() for tensor in (q, k, v)]
    out = flash_attention_varlen(*leaves, starts, key_starts, 146, 1, causal=causal)
    dq, dk, dv = torch.autograd.grad(out, leaves, d_out)
    assert all(gradient.isfinite().all() for gradient in (dq, dk, dv))
    # One weight is 1 whatever the score: nothing moves it. P (dP - delta) cancels but for rounding.
    assert dq.abs().max() < 0.1
    assert dk.abs().max() < 0.1


@pytest.mark.parametrize("head_dim", [40, 128, 192])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_score_without_rivals_has_no_gradient(
    device: str, dtype: torch.dtype, head_dim: int
) -> None:
    """dP and delta are one sum, taken in one order: their difference is 0, not near 0.

    A GPU may take them with two instructions, whose orders differ by fp32's rounding.
    """
    q, k, v, d_out = (
        tensor_of((1, 130, 2, head_dim), dtype, seed=n, device=device) for n in range(4)
    )
    dq, dk, _ = gradients_of(q, k, v, d_out, causal=True, window=1, softcap=30.0, scale=0.5)
    limit = 0.0 if device == "cpu" else 1e-4
    assert dq.abs().max() <= limit
    assert dk.abs().max() <= limit


def test_a_gradient_of_any_strides_is_taken(device: str) -> None:
    """out.sum() sends one number expanded, of stride 0; a slice sends rows with NaN between."""
    q, k, v, wide = (tensor_of((1, 33, 2, 40), seed=n, device=device, padding=8) for n in range(4))
    leaves = [tensor.detach().requires_grad_() for tensor in (q, k, v)]
    summed = torch.autograd.grad(flash_attention(*leaves).sum(), leaves)
    ones = gradients_of(q, k, v, torch.ones_like(q))
    assert all(torch.equal(a, b) for a, b in zip(summed, ones, strict=True))
    strided, plain = gradients_of(q, k, v, wide), gradients_of(q, k, v, wide.contiguous())
    assert all(torch.equal(a, b) for a, b in zip(strided, plain, strict=True))


def test_fused_projections_get_their_gradient_in_one_tensor(device: str) -> None:
    qkv = tensor_of((2, 33, 6, 64), torch.float32, device=device).requires_grad_()
    flash_attention(
        qkv[:, :, :2], qkv[:, :, 2:4], qkv[:, :, 4:], causal=True
    ).square().sum().backward()
    assert qkv.grad is not None
    q, k, v = (qkv[:, :, n : n + 2].detach() for n in (0, 2, 4))
    parts = gradients_of(q, k, v, 2 * flash_attention(q, k, v, causal=True), causal=True)
    assert torch.equal(qkv.grad, torch.cat(parts, 2))


@pytest.mark.parametrize(("query_len", "key_len"), [(0, 5), (5, 0), (0, 0)])
def test_an_empty_side_has_gradients_of_zero(device: str, query_len: int, key_len: int) -> None:
    q, d_out = (tensor_of((2, query_len, 2, 64), seed=n, device=device) for n in (0, 3))
    k, v = (tensor_of((2, key_len, 1, 64), seed=n, device=device) for n in (1, 2))
    with watched(device) as watch:
        dq, dk, dv = gradients_of(q, k, v, d_out, causal=True)
        watch.require_written(dq=dq, dk=dk, dv=dv)
    for gradient, tensor in ((dq, q), (dk, k), (dv, v)):
        assert gradient.shape == tensor.shape
        assert gradient.eq(0).all()


def test_the_lse_has_no_gradient_and_inference_keeps_nothing(device: str) -> None:
    q = tensor_of((1, 5, 1, 64), device=device)
    out, lse = flash_attention(q, q, q, return_lse=True)
    assert not out.requires_grad
    leaf = q.clone().requires_grad_()
    out, lse = flash_attention(leaf, q, q, return_lse=True)
    assert out.requires_grad
    assert not lse.requires_grad
    with torch.no_grad():
        assert not flash_attention(leaf, q, q).requires_grad


def test_a_second_derivative_is_refused(device: str) -> None:
    q = tensor_of((1, 5, 1, 64), torch.float32, device=device).requires_grad_()
    (dq,) = torch.autograd.grad(flash_attention(q, q, q).square().sum(), q, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        dq.sum().backward()


def test_the_offsets_of_tokens_are_64_bit(device: str) -> None:
    """The last tile of queries, 2^31 elements from the first one, and of keys."""
    if device != "cpu":
        pytest.skip("needs the sanitizer")
    tensor = torch.zeros(64, dtype=torch.bfloat16)
    far = (2**40, 2**25, 16)
    rules = {
        "ROWS": 64, "KEYS": 64, "HEAD_DIM": 16, "PADDED_DIM": 16, "CAUSAL": True,
        "HAS_WINDOW": False, "HAS_SOFTCAP": False, "VARLEN": False,
    }  # fmt: skip
    numbers = (128, 128, 2, 1, 1, 1.0, 0.0, 0)
    with sanitize(), pytest.raises(OutOfBoundsError, match="element 2147483648 of 'q'"):
        flash_attention_dq.flash_dq_kernel[(1,)](
            *(tensor,) * 7, None, None, *far * 5, 128, 128, *numbers, **rules
        )
    near = (0, 0, 0)
    with sanitize(), pytest.raises(OutOfBoundsError, match="element 2147483648 of 'q'"):
        # One key that only the last tile of queries sees.
        flash_attention_dk_dv.flash_dk_dv_kernel[(1,)](
            *(tensor,) * 8, None, None, *far, *near * 5, 128, 128, 128, 1, *numbers[2:],
            **{**rules, "CAUSAL": True},
        )  # fmt: skip


@pytest.mark.parametrize("arch", ARCHITECTURES)
@pytest.mark.parametrize("head_dim", WIDE_HEAD_DIMS)
@pytest.mark.parametrize("dtype", ["bf16", "fp16", "fp32"])
def test_a_launch_has_tiles_that_a_matrix_instruction_takes(
    arch: str, head_dim: int, dtype: str
) -> None:
    for module in (flash_attention_dk_dv, flash_attention_dq):
        launch = module.choose_launch(arch, head_dim, dtype)
        assert {launch.rows, launch.keys} <= {16, 32, 64, 128}
        assert launch.num_warps in (4, 8)
