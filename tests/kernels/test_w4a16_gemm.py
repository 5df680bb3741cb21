"""The 4-bit product against float64 on exactly dequantized weights, under the sanitizer."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels.devices import Device
from kernels.errors import KernelInputError
from kernels.testing.accuracy import assert_as_accurate_as_torch
from kernels.testing.architectures import ARCHITECTURES
from kernels.testing.sanitizer import sanitize
from kernels.w4_packing import HALF, PackedW4, from_gptq, pack_int4
from kernels.w4a16_gemm import (
    ALL_OF_K,
    choose_launch,
    w4a16_gemm,
    w4a16_gemm_kernel,
    w4a16_gemm_reference,
)
from tests.kernels.gemm_helpers import mean_relative_error
from tests.kernels.on_device import rows_on, watched
from tests.kernels.strategies import SEEDS

HALVES = st.sampled_from([torch.bfloat16, torch.float16])
M = st.sampled_from([1, 2, 3, 8, 16, 24, 33])
N = st.sampled_from([1, 64, 80, 257])
K = st.sampled_from([64, 100, 128, 200, 320, 512])
A100 = Device("sm_80", (8, 0), 108, has_fp8=False)
GROUPS = st.sampled_from([32, 64, 96, 128, 256, -1])


def weight_of(
    inputs: int, outputs: int, group: int, seed: int, *, symmetric: bool = False
) -> PackedW4:
    generator = torch.Generator().manual_seed(seed)
    groups = 1 if group == -1 else -(-inputs // group)
    codes = torch.randint(0, 16, (inputs, outputs), generator=generator)
    zeros = torch.randint(0, 16, (groups, outputs), generator=generator)
    scales = (torch.rand(groups, outputs, generator=generator) + 0.5).half() / 64
    return pack_int4(codes, scales, None if symmetric else zeros, group)


def check(
    device: str, shape: tuple[int, int, int], dtype: torch.dtype, group: int, seed: int,
    *, symmetric: bool = False, padding: int = 0, bias: bool = True,
) -> None:  # fmt: skip
    rows, outputs, inputs = shape
    x = rows_on(device, (rows, inputs), dtype, seed, padding=padding)
    weight = weight_of(inputs, outputs, group, seed, symmetric=symmetric).to(device)
    addend = rows_on(device, (outputs,), dtype, seed + 1) if bias else None
    with watched(device) as watch:
        out = w4a16_gemm(x, weight, addend)
        watch.require_written(out=out)
    truth = w4a16_gemm_reference(x.double(), weight, addend)
    assert_as_accurate_as_torch(out, truth, w4a16_gemm_reference(x, weight, addend))
    if dtype == torch.float16 and outputs > 1:
        assert mean_relative_error(out, truth) < 1e-3


@settings(max_examples=30)
@given(
    rows=M, outputs=N, inputs=K, group=GROUPS, dtype=HALVES, seed=SEEDS,
    symmetric=st.booleans(), padding=st.sampled_from([0, 3, 8]), bias=st.booleans(),
)  # fmt: skip
def test_any_shape_and_group_is_as_accurate_as_torch(
    device: str, rows: int, outputs: int, inputs: int, group: int, dtype: torch.dtype, seed: int,
    symmetric: bool, padding: int, bias: bool,
) -> None:  # fmt: skip
    """NaN lies between the rows of x; K is no multiple of groups or tiles."""
    check(
        device, (rows, outputs, inputs), dtype, group, seed,
        symmetric=symmetric, padding=padding, bias=bias,
    )  # fmt: skip


@pytest.mark.slow
@settings(max_examples=300)
@given(
    rows=st.integers(0, 300), outputs=st.integers(1, 300), inputs=st.integers(1, 2200),
    group=GROUPS, dtype=HALVES, seed=SEEDS, symmetric=st.booleans(), bias=st.booleans(),
)  # fmt: skip
def test_every_shape_up_to_some_tiles_is_as_accurate_as_torch(
    device: str, rows: int, outputs: int, inputs: int, group: int, dtype: torch.dtype, seed: int,
    symmetric: bool, bias: bool,
) -> None:  # fmt: skip
    if rows:
        check(device, (rows, outputs, inputs), dtype, group, seed, symmetric=symmetric, bias=bias)


@pytest.mark.parametrize(("inputs", "group"), [(4304, 128), (1024, 256), (1100, -1), (1056, 32)])
def test_long_rows_are_split_and_merged_the_same_way_every_time(
    device: str, inputs: int, group: int
) -> None:
    """Groups of 256, and a K that groups of 128 do not divide (fault 24)."""
    assert choose_launch(3, 80, inputs, group, A100).splits.count > 1
    check(device, (3, 80, inputs), torch.float16, group, 0)
    x = rows_on(device, (3, inputs), torch.float16, 1)
    weight = weight_of(inputs, 80, group, 2).to(device)
    assert torch.equal(w4a16_gemm(x, weight), w4a16_gemm(x, weight))


@settings(max_examples=12)
@given(inputs=K, group=GROUPS, dtype=HALVES, seed=SEEDS)
def test_a_row_with_a_single_one_reads_out_an_input_exactly(
    device: str, inputs: int, group: int, dtype: torch.dtype, seed: int
) -> None:
    """So nothing is rounded before the store, whatever the place of a code in its byte."""
    weight = weight_of(inputs, 80, group, seed).to(device)
    places = torch.randint(0, inputs, (16,), generator=torch.Generator().manual_seed(seed))
    x = torch.nn.functional.one_hot(places, inputs).to(dtype).to(device)
    out = w4a16_gemm(x, weight)
    assert torch.equal(out, weight.dequantized()[places.to(device)].to(dtype))


@settings(max_examples=10)
@given(dtype=HALVES, seed=SEEDS)
def test_inputs_in_activation_order_are_put_in_order(
    device: str, dtype: torch.dtype, seed: int
) -> None:
    generator = torch.Generator().manual_seed(seed)
    inputs, outputs, group = 128, 16, 32
    g_idx = (torch.arange(inputs) // group)[torch.randperm(inputs, generator=generator)]
    words = torch.randint(-(2**31), 2**31, (inputs // 8, outputs), generator=generator)
    zeros = torch.randint(-(2**31), 2**31, (4, outputs // 8), generator=generator)
    scales = (torch.rand(4, outputs, generator=generator) + 0.5).half() / 64
    weight = from_gptq(words.int(), zeros.int(), scales, g_idx).to(device)
    assert weight.permutation is not None
    x = rows_on(device, (3, inputs), dtype, seed, padding=8)
    with watched(device) as watch:
        out = w4a16_gemm(x, weight)
        watch.require_written(out=out)
    truth = w4a16_gemm_reference(x.double(), weight)
    assert_as_accurate_as_torch(out, truth, w4a16_gemm_reference(x, weight))


def test_q4_0_blocks_of_gguf_are_groups_of_32(device: str) -> None:
    """Quantized and dequantized by gguf itself."""
    gguf = pytest.importorskip("gguf")
    kind = gguf.GGMLQuantizationType.Q4_0
    dense = rows_on("cpu", (48, 160), torch.float32, 0).numpy()
    blocks = gguf.quants.quantize(dense, kind)
    truth = torch.from_numpy(gguf.quants.dequantize(blocks, kind))
    fields = torch.from_numpy(blocks).view(48, 5, 18)
    scales = fields[..., :2].contiguous().view(torch.float16).squeeze(-1)
    codes = torch.cat((fields[..., 2:] & 15, fields[..., 2:] >> 4), -1).view(48, 160)
    weight = pack_int4(codes.t(), scales.t(), None, 32).to(device)
    assert torch.equal(weight.dequantized().cpu(), truth.t())
    x = rows_on(device, (5, 160), torch.bfloat16, 1)
    out = w4a16_gemm(x, weight)
    assert_as_accurate_as_torch(
        out, x.double().cpu() @ truth.t().double(), x.cpu() @ truth.t().bfloat16()
    )


def test_a_row_does_not_depend_on_the_rows_beside_it(device: str) -> None:
    x = rows_on(device, (16, 256), torch.float16, 0)
    weight = weight_of(256, 80, 128, 1).to(device)
    together = w4a16_gemm(x, weight)
    x[3] = float("nan")
    spoiled = w4a16_gemm(x, weight)
    assert bool(spoiled[3].isnan().all())
    others = torch.arange(16, device=device) != 3
    assert torch.equal(spoiled[others], together[others])


def test_many_rows_take_several_tiles_each_way(device: str) -> None:
    check(device, (130, 129, 64), torch.bfloat16, 64, 0)


def test_leading_dimensions_are_rows_and_an_empty_batch_launches_nothing(device: str) -> None:
    weight = weight_of(64, 80, 64, 0).to(device)
    x = rows_on(device, (2, 3, 64), torch.bfloat16, 0)
    assert torch.equal(w4a16_gemm(x, weight).view(6, 80), w4a16_gemm(x.view(6, 64), weight))
    assert w4a16_gemm(x[:0], weight).shape == (0, 3, 80)


def test_row_offsets_are_64_bit() -> None:
    """Rows of x and of out 2^30 elements apart, all but the first masked off."""
    weight = weight_of(64, 64, 64, 0)
    x, out = rows_on("cpu", (1, 64), torch.float16, 0), torch.zeros(1, 64, dtype=torch.float16)
    with sanitize():
        w4a16_gemm_kernel[(1, 1)](
            x, weight.codes, weight.words, None, out, 1, 64, 64, 2**30,
            weight.codes.stride(0), 64, 2**30, 0, 1,
            GROUP=64, HALF=HALF, BLOCK_M=16, BLOCK_N=64, BLOCK_K=64, BAND=8,
        )  # fmt: skip
        alone = w4a16_gemm(x, weight)
    assert torch.equal(out, alone)


@given(
    rows=st.integers(1, 5000), outputs=st.integers(1, 30000), inputs=st.integers(1, 30000),
    group=st.sampled_from([32, 64, 96, 128, 256, ALL_OF_K]),
    arch=st.sampled_from(list(ARCHITECTURES)), processors=st.integers(1, 200),
)  # fmt: skip
def test_a_launch_takes_all_of_k_once_and_no_tile_crosses_a_group(
    rows: int, outputs: int, inputs: int, group: int, arch: str, processors: int
) -> None:
    device = Device(arch, (0, 0), processors, has_fp8=True)
    launch = choose_launch(rows, outputs, inputs, group, device)
    splits = launch.splits
    steps = -(-inputs // launch.block_k)
    assert (splits.count - 1) * splits.steps < steps <= splits.count * splits.steps
    assert group % launch.block_k == 0 or launch.block_k == 2 * HALF
    assert launch.block_m >= min(rows, 128)


def test_wrong_tensors_are_refused_with_what_was_wanted() -> None:
    weight = weight_of(64, 8, 64, 0)
    x = torch.zeros(2, 64).half()
    with pytest.raises(KernelInputError, match="x is float32, wanted float16 or bfloat16"):
        w4a16_gemm(x.float(), weight)
    with pytest.raises(KernelInputError, match="x has rows of 32, the weight takes 64 inputs"):
        w4a16_gemm(x[:, :32], weight)
    with pytest.raises(KernelInputError, match=r"bias has shape \(7,\), wanted \(8,\)"):
        w4a16_gemm(x, weight, torch.zeros(7))
    with pytest.raises(KernelInputError, match="bias is int64"):
        w4a16_gemm(x, weight, torch.zeros(8).long())
    with pytest.raises(KernelInputError, match=r"must be adjacent.*contiguous\(\)"):
        w4a16_gemm(torch.zeros(64, 2).half().t(), weight)
    with pytest.raises(KernelInputError, match="one device, not x on cpu, codes on meta"):
        w4a16_gemm(x, replace(weight, codes=weight.codes.to("meta")))
    with pytest.raises(KernelInputError, match="x is on meta, a Triton kernel needs a GPU"):
        w4a16_gemm(x.to("meta"), weight.to("meta"))
