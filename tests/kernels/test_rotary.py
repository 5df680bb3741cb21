"""Rotary embedding against float64, its exact laws, and the engine's own layer."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infra_lab.layers.rope_scaling import RopeScaling
from infra_lab.layers.rotary import RotaryEmbedding, inverse_frequencies, rotate_
from kernels.errors import KernelInputError
from kernels.rotary import choose_launch, rotary, rotary_, rotary_kernel, rotary_reference
from kernels.rotary_table import rotary_table
from kernels.testing.accuracy import assert_as_accurate_as_torch
from kernels.testing.sanitizer import sanitize
from tests.kernels.on_device import bits, on, watched
from tests.kernels.strategies import DTYPES, SEEDS, rows_of

# head_dim and how much of it turns: whole, a part, no power of two, the smallest.
DIMS = st.sampled_from(
    [(64, 64), (128, 128), (80, 32), (80, 80), (96, 96), (7, 4), (2, 2), (256, 64)]
)
HEADS = st.sampled_from([(1, 1), (4, 4), (9, 3), (8, 1), (5, 2), (0, 2), (3, 0)])
POSITIONS = 512


def frequencies(rotary_dim: int, theta: float = 10000.0) -> torch.Tensor:
    return theta ** -(torch.arange(0, rotary_dim, 2, dtype=torch.float64) / rotary_dim)


def positions_of(tokens: int, seed: int) -> torch.Tensor:
    return torch.randint(0, POSITIONS, (tokens,), generator=torch.Generator().manual_seed(seed))


@settings(max_examples=80)
@given(
    tokens=st.sampled_from([0, 1, 2, 5]),
    heads=HEADS,
    dims=DIMS,
    dtype=DTYPES,
    interleaved=st.booleans(),
    padding=st.sampled_from([0, 1, 8]),
    seed=SEEDS,
)
def test_queries_and_keys_turn_as_accurately_as_in_torch(
    device: str,
    tokens: int,
    heads: tuple[int, int],
    dims: tuple[int, int],
    dtype: torch.dtype,
    interleaved: bool,
    padding: int,
    seed: int,
) -> None:
    """And in place just so, bit for bit, with NaN between the rows."""
    head_dim, rotary_dim = dims
    table = rotary_table(frequencies(rotary_dim), POSITIONS)
    positions = positions_of(tokens, seed)
    query, key = (
        rows_of((tokens, count, head_dim), dtype, seed + count, padding=padding) for count in heads
    )
    placed = on(device, query), on(device, key), positions.to(device), table.to(device)
    with watched(device) as sanitizer:
        turned = rotary(*placed, interleaved=interleaved)
        sanitizer.require_written(query=turned[0], key=turned[1])
        rotary_(*placed, interleaved=interleaved)
    for x, out, in_place in zip((query, key), turned, placed, strict=False):
        if x.numel():
            assert_as_accurate_as_torch(
                out.cpu(),
                rotary_reference(x.double(), positions, table, interleaved=interleaved),
                rotary_reference(x, positions, table, interleaved=interleaved),
            )
        assert torch.equal(bits(in_place), bits(out))
        assert torch.equal(bits(out[..., rotary_dim:]), bits(x[..., rotary_dim:]))


@settings(max_examples=30)
@given(dims=DIMS, dtype=DTYPES, interleaved=st.booleans(), seed=SEEDS)
def test_position_zero_changes_no_bit(
    device: str, dims: tuple[int, int], dtype: torch.dtype, interleaved: bool, seed: int
) -> None:
    head_dim, rotary_dim = dims
    x = rows_of((2, 4, head_dim), dtype, seed).to(device)
    table = rotary_table(frequencies(rotary_dim), 1).to(device)
    positions = torch.zeros(2, dtype=torch.int32, device=device)
    with watched(device):
        query, key = rotary(x, x[:, :2], positions, table, interleaved=interleaved)
    assert torch.equal(bits(query), bits(x))
    assert torch.equal(bits(key), bits(x[:, :2]))


@settings(max_examples=30)
@given(dims=DIMS, interleaved=st.booleans(), seed=SEEDS)
def test_lengths_stay_and_turning_back_undoes(
    device: str, dims: tuple[int, int], interleaved: bool, seed: int
) -> None:
    head_dim, rotary_dim = dims
    x = rows_of((3, 2, head_dim), torch.float32, seed).to(device)
    positions = positions_of(3, seed).to(device)
    forth = rotary_table(frequencies(rotary_dim), POSITIONS).to(device)
    back = rotary_table(-frequencies(rotary_dim), POSITIONS).to(device)
    turned, _ = rotary(x, x, positions, forth, interleaved=interleaved)
    returned, _ = rotary(turned, turned, positions, back, interleaved=interleaved)
    longest = x.norm(dim=-1).max().item()
    assert (turned.norm(dim=-1) - x.norm(dim=-1)).abs().max() <= 4e-7 * longest
    assert (returned - x).abs().max() <= 4e-7 * longest


@settings(max_examples=30)
@given(
    dims=st.sampled_from([(64, 64), (80, 32), (128, 128)]),
    interleaved=st.booleans(),
    offset=st.integers(0, POSITIONS - 20),
    distance=st.integers(0, 19),
    seed=SEEDS,
)
def test_a_score_depends_on_the_distance_only(
    device: str,
    dims: tuple[int, int],
    interleaved: bool,
    offset: int,
    distance: int,
    seed: int,
) -> None:
    """Up to the rounding of angles, 2^-24 of each: products of 512 unit frequencies."""
    head_dim, rotary_dim = dims
    query = rows_of((1, 1, head_dim), torch.float32, seed).to(device).expand(2, 1, head_dim)
    key = rows_of((1, 1, head_dim), torch.float32, seed + 1).to(device).expand(2, 1, head_dim)
    table = rotary_table(frequencies(rotary_dim), POSITIONS).to(device)
    start = torch.tensor([0, offset], device=device)
    with watched(device):
        turned, _ = rotary(query, query, start + distance, table, interleaved=interleaved)
        _, turned_key = rotary(key, key, start, table, interleaved=interleaved)
    here, there = (turned.double() * turned_key.double()).sum((1, 2)).tolist()
    size = query[0].norm().item() * key[0].norm().item()
    assert abs(here - there) <= size * 2 * POSITIONS * 2**-24


@settings(max_examples=20)
@given(dims=DIMS, dtype=DTYPES, seed=SEEDS)
def test_both_layouts_are_one_up_to_the_order_of_elements(
    device: str, dims: tuple[int, int], dtype: torch.dtype, seed: int
) -> None:
    head_dim, rotary_dim = dims
    order = torch.arange(head_dim)
    order[:rotary_dim] = torch.arange(rotary_dim).view(2, -1).t().reshape(-1)
    x = rows_of((3, 2, head_dim), dtype, seed).to(device)
    positions = positions_of(3, seed).to(device)
    table = rotary_table(frequencies(rotary_dim), POSITIONS).to(device)
    halves, _ = rotary(x, x, positions, table)
    pairs, _ = rotary(x[..., order], x[..., order], positions, table, interleaved=True)
    assert torch.equal(pairs, halves[..., order])


@pytest.mark.parametrize("scaling", ["default", "linear", "llama3"])
def test_results_are_those_of_the_engines_layer(device: str, scaling: str) -> None:
    """In fp32 within a rounding or two of each product; the same angles by definition."""
    rope = {
        "default": RopeScaling(),
        "linear": RopeScaling(kind="linear", factor=4.0),
        "llama3": RopeScaling(kind="llama3", factor=8.0, original_max_position_embeddings=128),
    }[scaling]
    inv_freq = inverse_frequencies(64, 500000.0, rope)
    layer = RotaryEmbedding(inv_freq, POSITIONS, torch.float32, torch.device("cpu"))
    positions = positions_of(7, 3)
    x = rows_of((7, 9, 64), torch.float32, 5)
    table = rotary_table(inv_freq, POSITIONS)
    assert torch.equal(layer.table, table)
    out, _ = rotary(x.to(device), x[:, :3].to(device), positions.to(device), table.to(device))
    wanted = x.clone()
    rotate_(wanted, *layer.tables(positions))
    assert (out.cpu() - wanted).abs().max() <= 4 * 2**-24 * x.abs().max()


def test_the_table_is_right_to_the_last_place_up_to_position_2_to_the_20() -> None:
    """For the angle that fp32 makes of position and frequency; of the exact angle it is wrong by
    up to 1/16 radian there: by the product's rounding and by that of the frequency."""
    inv_freq = frequencies(16, 500000.0)
    table = rotary_table(inv_freq, 2**20)[-4096:].double()
    positions = torch.arange(2**20 - 4096, 2**20)
    angles = torch.outer(positions.float(), inv_freq.float()).double()
    wanted = torch.cat((angles.cos(), angles.sin()), -1)
    assert (table - wanted).abs().max() <= 2**-24
    exact = torch.outer(positions.double(), inv_freq)
    assert (angles - exact).abs().max() <= 2**-4


@pytest.mark.parametrize("interleaved", [False, True])
def test_views_of_a_fused_projection_are_taken_as_they_are(device: str, interleaved: bool) -> None:
    qkv = rows_of((3, 10 * 64), torch.bfloat16, 0, padding=8)
    heads = on(device, qkv).unflatten(1, (10, 64))
    positions = torch.tensor([5, 0, 77], device=device)
    table = rotary_table(frequencies(64), 100).to(device)
    query, key = heads[:, :6], heads[:, 6:8]
    with watched(device):
        turned = rotary(query, key, positions, table, interleaved=interleaved)
    copies = rotary(query.contiguous(), key.contiguous(), positions, table, interleaved=interleaved)
    for view, copy in zip(turned, copies, strict=True):
        assert torch.equal(bits(view), bits(copy))


def test_in_place_touches_no_element_that_does_not_turn(device: str) -> None:
    """The rest is neither read nor written: it may be another tensor's."""
    memory = rows_of((3, 2, 64), torch.float32, 0, padding=16).to(device)
    x = memory[..., :64]
    table = rotary_table(frequencies(32), 100).to(device)
    wanted, _ = rotary(x, x, torch.tensor([1, 2, 3], device=device), table)
    with watched(device):
        rotary_(x, x[:, :0], torch.tensor([1, 2, 3], device=device), table)
    assert torch.equal(x, wanted)


def test_offsets_are_64_bit() -> None:
    """Heads 2^30 elements apart, all but the first masked off: in int32 heads 2 and 3 wrap."""
    out = torch.zeros(16)
    heads = {"QUERY_HEADS": 1, "KEY_HEADS": 1, "HEADS": 4, "HEAD_DIM": 16, "REST": 0}
    turn = {"ROTARY_DIM": 16, "HALF": 8, "INTERLEAVED": False}
    one = torch.zeros(1, dtype=torch.int32)
    table = rotary_table(frequencies(16), 1)
    with sanitize():
        rotary_kernel[(2,)](
            torch.ones(16), torch.ones(16), out, torch.zeros(16), one, table,
            0, 2**30, 0, 2**30, 0, 2**30, 0, 2**30, **heads, **turn,
        )  # fmt: skip
    assert out.eq(1).all()


@pytest.mark.parametrize("arch", ["sm_80", "sm_90", "gfx942"])
@pytest.mark.parametrize("key_heads", [0, 1, 3, 8, 128])
@pytest.mark.parametrize("dims", [(2, 2), (64, 64), (80, 32), (128, 128), (1024, 1024)])
def test_a_launch_fits_any_model_and_any_number_of_tokens(
    arch: str, key_heads: int, dims: tuple[int, int]
) -> None:
    """Tokens lie along x: 65,536 of them, and 2^20, stay below its limit of 2^31 - 1."""
    launch = choose_launch(key_heads, *dims, arch)
    assert launch.heads == 2 ** round(math.log2(launch.heads))
    assert launch.heads * (2 * launch.half + launch.rest) <= 4096
    assert 2**20 * launch.programs_of_a_token(128, 128) < 2**31


def test_no_tokens_launch_nothing(device: str) -> None:
    x = torch.zeros(0, 4, 64, device=device)
    none = torch.zeros(0, dtype=torch.int64, device=device)
    query, key = rotary(x, x[:, :2], none, rotary_table(frequencies(64), 1).to(device))
    assert query.shape == (0, 4, 64)
    assert key.shape == (0, 2, 64)


def test_wrong_tensors_are_refused_with_what_was_wanted() -> None:
    x, positions = torch.zeros(3, 4, 64), torch.zeros(3, dtype=torch.int64)
    table = rotary_table(frequencies(64), 8)

    def refused(message: str, *arguments: torch.Tensor) -> None:
        with pytest.raises(KernelInputError, match=message):
            rotary(*arguments)

    refused("query is int32, wanted float16", x.int(), x, positions, table)
    refused("key is float16, wanted float32", x, x.half(), positions, table)
    refused(r"query has shape \(3, 64\).*wanted \[num_tokens", x[:, 0], x, positions, table)
    refused(r"key has shape \(2, 4, 64\), wanted \(3, 4, 64\)", x, x[:2], positions, table)
    refused("query must be adjacent", torch.zeros(3, 64, 4).mT, x, positions, table)
    refused("positions is float32, wanted int32 or int64", x, x, positions.float(), table)
    refused(r"positions has shape \(2,\)", x, x, positions[:2], table)
    refused("table is float64, wanted float32", x, x, positions, table.double())
    refused("make it with rotary_table", x, x, positions, table[:, ::2])
    refused("rotary_dim is 63", x, x, positions, table[:, :63].contiguous())
    refused("rotary_dim is 64 and head_dim 32", x[..., :32], x[..., :32], positions, table)
    refused("one device", x, x, positions.to("meta"), table)
    with pytest.raises(KernelInputError, match=r"inv_freq is torch\.int64"):
        rotary_table(torch.arange(4), 8)
    with pytest.raises(KernelInputError, match="16777217 positions, wanted 0 to 16777216"):
        rotary_table(torch.ones(4), 2**24 + 1)


@pytest.mark.slow
@settings(max_examples=400)
@given(
    heads=st.tuples(st.integers(1, 12), st.integers(1, 5)),
    half=st.integers(1, 64),
    rest=st.integers(0, 40),
    dtype=DTYPES,
    interleaved=st.booleans(),
    seed=SEEDS,
)
def test_turning_widely(
    device: str,
    heads: tuple[int, int],
    half: int,
    rest: int,
    dtype: torch.dtype,
    interleaved: bool,
    seed: int,
) -> None:
    table = rotary_table(frequencies(2 * half), POSITIONS)
    positions = positions_of(3, seed)
    shapes = [(3, count, 2 * half + rest) for count in heads]
    inputs = [rows_of(shape, dtype, seed + i) for i, shape in enumerate(shapes)]
    with watched(device):
        turned = rotary(
            inputs[0].to(device),
            inputs[1].to(device),
            positions.to(device),
            table.to(device),
            interleaved=interleaved,
        )
    for x, out in zip(inputs, turned, strict=True):
        assert_as_accurate_as_torch(
            out.cpu(),
            rotary_reference(x.double(), positions, table, interleaved=interleaved),
            rotary_reference(x, positions, table, interleaved=interleaved),
        )
