"""Tensors as fp8, bit for bit as torch and ml_dtypes round them, under the sanitizer."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import kernels.quantize_fp8
from kernels.devices import Device
from kernels.errors import KernelInputError
from kernels.quantize_fp8 import (
    fp8_maxima_kernel,
    quantize_fp8_groups,
    quantize_fp8_groups_kernel,
    quantize_fp8_per_tensor,
    quantize_fp8_per_tensor_kernel,
    quantize_fp8_reference,
)
from kernels.testing.sanitizer import sanitize
from tests.kernels.on_device import first_grid, rows_on, watched
from tests.kernels.strategies import COLUMNS, DTYPES, SEEDS

ROWS = st.sampled_from([1, 2, 3, 5, 17])
GROUPS = st.sampled_from([16, 64, 128, 1024])


def same_codes(got: torch.Tensor, wanted: torch.Tensor) -> bool:
    return torch.equal(got.view(torch.uint8), wanted.view(torch.uint8))


def in_groups(x: torch.Tensor, group: int) -> torch.Tensor:
    """[rows, columns] as fp32 [rows, groups, group], zeros at the end."""
    missing = -x.shape[-1] % group
    return torch.nn.functional.pad(x.float(), (0, missing)).view(x.shape[0], -1, group)


@settings(max_examples=25)
@given(
    rows=ROWS, columns=COLUMNS, dtype=DTYPES, seed=SEEDS, group=GROUPS,
    padding=st.sampled_from([0, 1, 8]), power=st.integers(-14, 10),
)  # fmt: skip
def test_groups_are_quantized_as_by_torch(
    device: str, rows: int, columns: int, dtype: torch.dtype, seed: int, group: int,
    padding: int, power: int,
) -> None:  # fmt: skip
    x = rows_on(device, (rows, columns), dtype, seed, padding=padding, scale=2.0**power)
    with watched(device) as watch:
        codes, scales = quantize_fp8_groups(x, group)
        watch.require_written(codes=codes.view(torch.uint8), scales=scales)
    wanted_codes, wanted_scales = quantize_fp8_reference(in_groups(x, group))
    wanted_codes = wanted_codes.view(torch.uint8).flatten(1)[:, :columns].contiguous()
    assert same_codes(codes, wanted_codes)
    assert torch.equal(scales, wanted_scales.squeeze(-1))


@settings(max_examples=15)
@given(rows=ROWS, columns=COLUMNS, dtype=DTYPES, seed=SEEDS, padding=st.sampled_from([0, 1, 8]))
def test_a_whole_tensor_is_quantized_as_by_torch(
    device: str, rows: int, columns: int, dtype: torch.dtype, seed: int, padding: int
) -> None:
    x = rows_on(device, (rows, columns), dtype, seed, padding=padding)
    with watched(device) as watch:
        codes, scale = quantize_fp8_per_tensor(x)
        watch.require_written(codes=codes.view(torch.uint8), scale=scale)
    wanted_codes, wanted_scale = quantize_fp8_reference(x.float().flatten())
    assert same_codes(codes.flatten(), wanted_codes)
    assert torch.equal(scale, wanted_scale)


def test_every_row_and_block_of_a_tensor_has_its_part_in_the_scale(device: str) -> None:
    """More rows than programs look for maxima, and rows longer than a block."""
    tall, long = torch.zeros(260, 4, device=device), torch.zeros(2, 4200, device=device)
    for x, place in ((tall, (259, 3)), (long, (1, 4199))):
        x.zero_()[place] = -448.0
        codes, scale = quantize_fp8_per_tensor(x)
        assert float(scale) == 1.0
        assert float(codes[place].float()) == -448.0


def test_numbers_of_e4m3_stay_and_ties_go_to_even(device: str) -> None:
    """All finite magnitudes and all midpoints, as ml_dtypes rounds them; -0 keeps its sign."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    codes = torch.arange(127, dtype=torch.uint8).view(torch.float8_e4m3fn).float()
    middles = (codes[1:] + codes[:-1]) / 2
    values = torch.cat((codes, -codes, middles, -middles))
    values = torch.nn.functional.pad(values, (0, -len(values) % 127)).view(-1, 127)
    x = torch.cat((torch.full((len(values), 1), 448.0), values), 1)  # so that every scale is 1
    got, scales = quantize_fp8_groups(x.to(device))
    assert scales.eq(1).all()
    wanted = torch.from_numpy(x.numpy().astype(ml_dtypes.float8_e4m3fn).view("u1"))
    assert same_codes(got.cpu(), wanted)


@pytest.mark.parametrize("per_tensor", [False, True])
def test_infinities_saturate_and_nan_stays(device: str, per_tensor: bool) -> None:
    """Neither has a part in the scale: the other values keep their precision (fault 19)."""
    values = [float("inf"), -float("inf"), float("nan"), 224.0, -0.0, 464.0, 480.0, 896.0]
    x = torch.tensor([values * 4], device=device)
    codes, scales = quantize_fp8_per_tensor(x) if per_tensor else quantize_fp8_groups(x)
    assert scales.flatten().tolist() == [2.0]
    got = codes.float().flatten()[:8].tolist()
    assert got[:2] == [448.0, -448.0]
    assert math.isnan(got[2])
    assert got[3:] == [112.0, -0.0, 224.0, 240.0, 448.0]
    assert math.copysign(1.0, got[4]) == -1.0


@pytest.mark.parametrize("power_of_two", [False, True])
def test_zeros_have_scale_zero_and_tiny_groups_are_not_lost(
    device: str, power_of_two: bool
) -> None:
    """Fault 21: no division by zero, and 1e-30 is as good as 1."""
    x = torch.zeros(2, 256, device=device)
    x[1, :128] = 1e-30
    codes, scales = quantize_fp8_groups(x, power_of_two=power_of_two)
    assert scales.eq(0).tolist() == [[True, True], [False, True]]
    assert codes.float()[0].eq(0).all()
    back = codes[1, :128].double() * scales[1, 0].double()
    assert bool(((back / 1e-30 - 1).abs() < 2.0**-4).all())


@pytest.mark.parametrize(
    ("largest", "scale"),
    [(7.9, 2.0**-5), (448.0, 1.0), (448.0 * 2.0**-20, 2.0**-20), (449.0, 2.0), (7.0, 2.0**-6)],
)
def test_powers_of_two_are_rounded_up_and_exact_ones_stay(
    device: str, largest: float, scale: float
) -> None:
    """Fault 25: the scale of 448 * 2^k is 2^k, not its double."""
    _, scales = quantize_fp8_groups(torch.full((1, 128), largest, device=device), power_of_two=True)
    assert scales.tolist() == [[scale]]


@settings(max_examples=15)
@given(power=st.integers(-130, 119), mantissa=st.integers(0, 2**23 - 1))
def test_a_power_of_two_is_the_least_that_holds_the_group(
    device: str, power: int, mantissa: int
) -> None:
    largest = (1 + mantissa * 2.0**-23) * 2.0**power
    x = torch.full((1, 16), largest, device=device)
    _, (exact,) = (tensor.double().flatten() for tensor in quantize_fp8_groups(x, 16))
    _, (rounded,) = (
        tensor.double().flatten() for tensor in quantize_fp8_groups(x, 16, power_of_two=True)
    )
    assert math.frexp(float(rounded))[0] == 0.5
    assert float(rounded) >= float(exact)
    assert float(rounded) < 2 * float(exact) or float(rounded) == 2.0**-126


def test_leading_dimensions_are_rows_and_an_empty_batch_launches_nothing(device: str) -> None:
    x = rows_on(device, (2, 3, 200), torch.bfloat16, 0)
    codes, scales = quantize_fp8_groups(x)
    assert codes.shape == x.shape
    assert scales.shape == (2, 3, 2)
    assert quantize_fp8_groups(x[:0])[1].shape == (0, 3, 2)
    codes, scale = quantize_fp8_per_tensor(x[:0])
    assert codes.shape == (0, 3, 200)
    assert scale.tolist() == [0.0]


def test_more_than_65535_programs_fit_the_grid() -> None:
    """Rows lie along its x axis, parts of a row along y, which ends at 65,535."""
    x = torch.zeros(65_537 * 16, 16)
    assert first_grid(lambda: quantize_fp8_groups(x, 16)) == (65_537, 1, 1)
    wide = torch.empty(1, 65_535 * 4096 + 1, dtype=torch.float16)  # never touched
    with pytest.raises(KernelInputError, match="rows of 268431361, wanted at most 268431360"):
        quantize_fp8_per_tensor(wide)


def test_row_offsets_are_64_bit() -> None:
    x, codes, scales = torch.ones(1, 16), torch.zeros(1, 16, dtype=torch.uint8), torch.ones(1)
    with sanitize():
        quantize_fp8_groups_kernel[(1, 1)](
            x, codes.view(torch.float8_e4m3fn), scales, 2**30, 1, 16, 1,
            GROUP=16, ROWS=4, POWER_OF_TWO=False,
        )  # fmt: skip
        fp8_maxima_kernel[(1,)](x, scales, 2**31, 1, 16, BLOCK=16)
        quantize_fp8_per_tensor_kernel[(1, 1)](
            x, scales, codes.view(torch.float8_e4m3fn), scales.new_empty(1), 2**31, 16, 1,
            PARTS=16, BLOCK=16,
        )  # fmt: skip
    assert codes.view(torch.float8_e4m3fn).float().eq(448).all()


@pytest.mark.parametrize(
    ("gpu", "complaint"),
    [
        (Device("sm_80", (8, 0), 108, has_fp8=False), r"capability 8\.0 has no fp8, 8\.9 and"),
        (Device("gfx942", (0, 0), 304, has_fp8=True), "gfx942 multiplies float8_e4m3fnuz"),
    ],
)
def test_gpus_without_this_fp8_are_refused(
    monkeypatch: pytest.MonkeyPatch, device: str, gpu: Device, complaint: str
) -> None:
    monkeypatch.setattr(kernels.quantize_fp8, "device_of", lambda tensor: gpu)
    x = torch.zeros(1, 16, device=device)
    for quantize in (quantize_fp8_groups, quantize_fp8_per_tensor):
        with pytest.raises(KernelInputError, match=complaint):
            quantize(x)


def test_wrong_tensors_are_refused_with_what_was_wanted() -> None:
    x = torch.zeros(2, 64)
    with pytest.raises(KernelInputError, match="x is float64, wanted float16 or bfloat16"):
        quantize_fp8_per_tensor(x.double())
    with pytest.raises(KernelInputError, match="group 96, wanted a power of two from 16 to 1024"):
        quantize_fp8_groups(x, 96)
    with pytest.raises(KernelInputError, match="group 8, wanted"):
        quantize_fp8_groups(x, 8)
    with pytest.raises(KernelInputError, match=r"must be adjacent.*contiguous\(\)"):
        quantize_fp8_groups(x.t())
    with pytest.raises(KernelInputError, match="65536 groups in a row, wanted at most 65535"):
        quantize_fp8_groups(torch.zeros(1, 65535 * 16 + 1), 16)
    with pytest.raises(KernelInputError, match="x is on meta, a Triton kernel needs a GPU"):
        quantize_fp8_groups(x.to("meta"))
