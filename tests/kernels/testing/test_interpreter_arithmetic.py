"""What a lane computes is what a GPU's lane computes: casts, arithmetic, comparisons, products."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import triton
import triton.language as tl
from hypothesis import given
from hypothesis import strategies as st

from kernels.testing.float_codecs import FLOAT_FORMATS, decode, encode, float_format
from kernels.testing.interpreter import KernelCrashError

FLOATS = {
    "bf16": torch.bfloat16,
    "fp16": torch.float16,
    "fp32": torch.float32,
    "fp64": torch.float64,
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e5": torch.float8_e5m2,
    "fp8e4b8": torch.float8_e4m3fnuz,
    "fp8e5b16": torch.float8_e5m2fnuz,
}
NARROW = [name for name, value in FLOAT_FORMATS.items() if value.narrow]
SPECIAL = [0.0, -0.0, 1.0, 1.9375, 240.0, 448.0, 464.0, 480.0, 57344.0, 61440.0, 1e9, 1e-9]
SPECIAL += [float("inf"), float("-inf"), float("nan"), 3.3e38, 2.0**-17, 1 + 2.0**-8]


@triton.jit
def cast_kernel(source, target, count, BLOCK: tl.constexpr):
    lanes = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    values = tl.load(source + lanes, mask=lanes < count)
    tl.store(target + lanes, values.to(target.dtype.element_ty), mask=lanes < count)


@triton.jit
def cast_toward_zero_kernel(source, target, count, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    values = tl.load(source + lanes, mask=lanes < count)
    cut = values.to(target.dtype.element_ty, fp_downcast_rounding="rtz")
    tl.store(target + lanes, cut, mask=lanes < count)


@triton.jit
def binary_kernel(left, right, target, BLOCK: tl.constexpr, OPERATION: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    a = tl.load(left + lanes)
    b = tl.load(right + lanes)
    if OPERATION == "add":
        result = a + b
    elif OPERATION == "sub":
        result = a - b
    elif OPERATION == "mul":
        result = a * b
    elif OPERATION == "div":
        result = a / b
    elif OPERATION == "mod":
        result = a % b
    elif OPERATION == "maximum":
        result = tl.maximum(a, b)
    elif OPERATION == "minimum":
        result = tl.minimum(a, b)
    elif OPERATION == "maximum_with_nan":
        result = tl.maximum(a, b, propagate_nan=tl.PropagateNan.ALL)
    elif OPERATION == "where":
        result = tl.where(a > b, a, b)
    else:
        result = tl.clamp(a, -1.0, 1.0)
    tl.store(target + lanes, result)


@triton.jit
def comparison_kernel(left, right, target, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    a = tl.load(left + lanes)
    b = tl.load(right + lanes)
    tl.store(target + lanes, a < b)
    tl.store(target + BLOCK + lanes, a <= b)
    tl.store(target + 2 * BLOCK + lanes, a > b)
    tl.store(target + 3 * BLOCK + lanes, a >= b)
    tl.store(target + 4 * BLOCK + lanes, a == b)
    tl.store(target + 5 * BLOCK + lanes, a != b)


@triton.jit
def unary_kernel(source, target, BLOCK: tl.constexpr, OPERATION: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    x = tl.load(source + lanes)
    if OPERATION == "exp":
        x = tl.exp(x)
    elif OPERATION == "exp2":
        x = tl.exp2(x)
    elif OPERATION == "log":
        x = tl.log(x)
    elif OPERATION == "log2":
        x = tl.log2(x)
    elif OPERATION == "sqrt":
        x = tl.sqrt(x)
    elif OPERATION == "rsqrt":
        x = tl.rsqrt(x)
    elif OPERATION == "sin":
        x = tl.sin(x)
    elif OPERATION == "cos":
        x = tl.cos(x)
    elif OPERATION == "erf":
        x = tl.erf(x)
    elif OPERATION == "sigmoid":
        x = tl.sigmoid(x)
    elif OPERATION == "floor":
        x = tl.floor(x)
    elif OPERATION == "ceil":
        x = tl.ceil(x)
    elif OPERATION == "abs":
        x = tl.abs(x)
    else:
        x = -x
    tl.store(target + lanes, x)


@triton.jit
def fma_kernel(x, y, z, target, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    result = tl.fma(tl.load(x + lanes), tl.load(y + lanes), tl.load(z + lanes))
    tl.store(target + lanes, result)


@triton.jit
def dot_kernel(
    left, right, target, M: tl.constexpr, N: tl.constexpr, K: tl.constexpr, PRECISION: tl.constexpr
):
    rows = tl.arange(0, M)
    columns = tl.arange(0, N)
    inner = tl.arange(0, K)
    a = tl.load(left + rows[:, None] * K + inner[None, :])
    b = tl.load(right + inner[:, None] * N + columns[None, :])
    places = rows[:, None] * N + columns[None, :]
    accumulator = tl.load(target + places)
    product = tl.dot(
        a, b, accumulator, input_precision=PRECISION, out_dtype=target.dtype.element_ty
    )
    tl.store(target + places, product)


@triton.jit
def constants_kernel(target, BLOCK: tl.constexpr):
    lanes = tl.arange(0, BLOCK)
    tl.store(target + lanes, tl.full((BLOCK,), 1.5, target.dtype.element_ty))


def codes(tensor: torch.Tensor) -> np.ndarray:
    """Bits of a tensor whose type numpy does not know."""
    return tensor.view({1: torch.uint8, 2: torch.uint16}[tensor.element_size()]).numpy()


def cast(source: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    target = torch.zeros(source.shape, dtype=dtype)
    cast_kernel[(triton.cdiv(source.numel(), 1024),)](source, target, source.numel(), BLOCK=1024)
    return target


def probe_values() -> np.ndarray:
    generator = np.random.default_rng(0)
    scaled = generator.standard_normal(8192) * 2.0 ** generator.integers(-20, 20, 8192)
    return np.concatenate([scaled, SPECIAL]).astype(np.float32)


def same_numbers(got: np.ndarray, expected: np.ndarray) -> None:
    """Equal bit for bit, apart from which NaN it is."""
    np.testing.assert_array_equal(np.isnan(got), np.isnan(expected))
    kept = ~np.isnan(expected)
    np.testing.assert_array_equal(got[kept], expected[kept])
    np.testing.assert_array_equal(np.signbit(got[kept]), np.signbit(expected[kept]))


@pytest.mark.parametrize("name", NARROW)
def test_every_code_is_read_as_its_value(name: str) -> None:
    bits = 8 * float_format(name).code_type.itemsize
    every = np.arange(2**bits).astype(float_format(name).code_type)
    source = torch.from_numpy(every.copy()).view(FLOATS[name])
    same_numbers(cast(source, torch.float32).numpy(), decode(every, float_format(name)))


@pytest.mark.parametrize("name", NARROW)
def test_float32_is_written_as_its_nearest_code(name: str) -> None:
    kind = float_format(name)
    values = probe_values()
    got = decode(codes(cast(torch.from_numpy(values), FLOATS[name])), kind)
    same_numbers(got, decode(encode(values, kind), kind))


@pytest.mark.parametrize("name", ["bf16", "fp8e4nv"])
@pytest.mark.parametrize("source_type", [torch.float64, torch.float16])
def test_other_floats_are_written_as_their_nearest_code(
    name: str, source_type: torch.dtype
) -> None:
    kind = float_format(name)
    source = torch.from_numpy(probe_values()).double()
    source[0] = 1 + 2.0**-8 + 2.0**-40
    source = source.to(source_type)
    got = decode(codes(cast(source, FLOATS[name])), kind)
    same_numbers(got, decode(encode(source.numpy(), kind), kind))


def test_bfloat16_is_rounded_as_torch_rounds_it() -> None:
    values = torch.from_numpy(probe_values())
    same_numbers(cast(values, torch.bfloat16).float().numpy(), values.bfloat16().float().numpy())


@pytest.mark.parametrize("name", ["fp16", "bf16"])
def test_a_cast_toward_zero_cuts(name: str) -> None:
    values = torch.tensor([1.9999, -1.9999, 1e38, -1e38, 7e4, float("inf"), 0.1, 1.0])
    target = torch.zeros(8, dtype=FLOATS[name])
    cast_toward_zero_kernel[(1,)](values, target, 8, BLOCK=8)
    expected = encode(values.numpy(), float_format(name), "toward_zero")
    np.testing.assert_array_equal(target.float().numpy(), decode(expected, float_format(name)))
    assert (target.float().abs() <= values.abs()).all()


@given(st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=64))
def test_integers_become_bfloat16_in_one_rounding(values: list[int]) -> None:
    source = torch.tensor(values, dtype=torch.int32)
    expected = encode(source.numpy(), float_format("bf16"))
    np.testing.assert_array_equal(codes(cast(source, torch.bfloat16)), expected)


def test_floats_become_integers_as_the_conversion_instruction_makes_them() -> None:
    nan, inf = float("nan"), float("inf")
    source = torch.tensor([1.9, -1.9, nan, inf, -inf, 3e9, -3e9, 200.0])
    assert cast(source, torch.int32).tolist() == [
        1, -1, 0, 2**31 - 1, -(2**31), 2**31 - 1, -(2**31), 200,
    ]  # fmt: skip
    # Through 16 bits, of which the low 8 are kept.
    assert cast(source, torch.int8).tolist() == [1, -1, 0, -1, 0, -1, 0, -56]
    assert cast(torch.tensor([40000.0, -40000.0]), torch.int8).tolist() == [-1, 0]
    assert cast(source.bfloat16(), torch.int32)[:3].tolist() == [1, -1, 0]


@pytest.mark.parametrize("name", ["bf16", "fp16", "fp32", "fp64"])
@pytest.mark.parametrize(
    "operation",
    ["add", "sub", "mul", "div", "mod", "maximum", "minimum", "maximum_with_nan", "where", "clamp"],
)
def test_arithmetic_agrees_with_torch(name: str, operation: str) -> None:
    generator = torch.Generator().manual_seed(1)
    left = torch.randn(512, generator=generator, dtype=torch.float64).to(FLOATS[name])
    right = torch.randn(512, generator=generator, dtype=torch.float64).to(FLOATS[name])
    left[0], right[1] = float("nan"), float("nan")
    left[2], right[3] = float("inf"), float("-inf")
    target = torch.zeros(512, dtype=FLOATS[name])
    binary_kernel[(1,)](left, right, target, BLOCK=512, OPERATION=operation)
    expected = {
        "add": torch.add,
        "sub": torch.sub,
        "mul": torch.mul,
        "div": torch.div,
        "mod": torch.fmod,
        "maximum": torch.fmax,
        "minimum": torch.fmin,
        "maximum_with_nan": torch.maximum,
        "where": lambda a, b: torch.where(a > b, a, b),
        "clamp": lambda a, b: torch.fmin(torch.fmax(a, a.new_tensor(-1)), a.new_tensor(1)),
    }[operation](left, right)
    same_numbers(target.double().numpy(), expected.double().numpy())


@pytest.mark.parametrize("name", NARROW[1:])
def test_8_bit_floats_add_in_one_rounding(name: str) -> None:
    kind = float_format(name)
    generator = np.random.default_rng(2)
    a, b = generator.integers(0, 256, (2, 256)).astype(np.uint8)
    target = torch.zeros(256, dtype=FLOATS[name])
    operands = [torch.from_numpy(x).view(FLOATS[name]) for x in (a, b)]
    binary_kernel[(1,)](*operands, target, BLOCK=256, OPERATION="add")
    expected = decode(encode(decode(a, kind) + decode(b, kind), kind), kind)
    same_numbers(decode(codes(target), kind), expected)


@pytest.mark.parametrize("name", list(FLOATS))
def test_comparisons_are_of_values_and_false_for_nan(name: str) -> None:
    numbers = torch.tensor([-2.0, -1.0, -0.0, 0.0, 1.0, float("nan"), 2.0, 3.0])
    left, right = numbers.to(FLOATS[name]), numbers.flip(0).to(FLOATS[name])
    target = torch.zeros(48, dtype=torch.int8)
    comparison_kernel[(1,)](left, right, target, BLOCK=8)
    a, b = left.float(), right.float()
    expected = torch.cat([a < b, a <= b, a > b, a >= b, a == b, a != b])
    assert target.bool().tolist() == expected.tolist()


@pytest.mark.parametrize("name", ["fp32", "fp64"])
@pytest.mark.parametrize(
    "operation",
    [
        "exp", "exp2", "log", "log2", "sqrt", "rsqrt", "sin", "cos", "erf", "sigmoid", "floor",
        "ceil", "abs", "neg",
    ],
)  # fmt: skip
def test_functions_agree_with_torch_in_float64(name: str, operation: str) -> None:
    dtype = FLOATS[name]
    source = torch.cat([torch.linspace(-8, 8, 253), torch.tensor([0.0, float("inf"), 1e-30])])
    source = source.to(dtype)
    target = torch.zeros(256, dtype=dtype)
    unary_kernel[(1,)](source, target, BLOCK=256, OPERATION=operation)
    function = getattr(torch, operation)
    tolerance = 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(
        target.double(),
        function(source.double()),
        rtol=tolerance,
        atol=tolerance,
        equal_nan=True,
    )


@pytest.mark.parametrize("name", ["bf16", "fp16", "fp8e4b8"])
@pytest.mark.parametrize("operation", ["abs", "neg"])
def test_signs_of_narrow_floats(name: str, operation: str) -> None:
    source = torch.tensor([1.5, -1.5, float("nan"), -2.0]).to(FLOATS[name])
    target = torch.zeros(4, dtype=FLOATS[name])
    unary_kernel[(1,)](source, target, BLOCK=4, OPERATION=operation)
    same_numbers(target.float().numpy(), getattr(torch, operation)(source.float()).numpy())


@given(st.lists(st.tuples(*[st.floats(-1e6, 1e6, width=32)] * 3), min_size=1, max_size=16))
def test_a_fused_multiply_add_rounds_once(rows: list[tuple[float, float, float]]) -> None:
    from fractions import Fraction

    x, y, z = torch.zeros(3, 16)
    for index, row in enumerate(rows):
        x[index], y[index], z[index] = row
    target = torch.zeros(16)
    fma_kernel[(1,)](x, y, z, target, BLOCK=16)
    for a, b, c, got in zip(*(t.tolist() for t in (x, y, z, target)), strict=True):
        exact = Fraction(a) * Fraction(b) + Fraction(c)
        error = abs(Fraction(got) - exact)
        for neighbour in np.nextafter(np.float32(got), np.float32([-np.inf, np.inf])):
            assert error <= abs(Fraction(float(neighbour)) - exact)


@pytest.mark.parametrize("name", ["bf16", "fp16", "fp8e4nv", "fp8e5", "fp8e4b8"])
def test_products_of_narrow_matrices_accumulate_in_float32(name: str) -> None:
    generator = torch.Generator().manual_seed(3)
    left = torch.randn(16, 64, generator=generator).to(FLOATS[name])
    right = torch.randn(64, 32, generator=generator).to(FLOATS[name])
    start = torch.randn(16, 32, generator=generator)
    target = start.clone()
    dot_kernel[(1,)](left, right, target, M=16, N=32, K=64, PRECISION=None)
    expected = left.double() @ right.double() + start.double()
    torch.testing.assert_close(target.double(), expected, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", ["bf16", "fp16", "fp32"])
def test_an_element_of_a_product_does_not_depend_on_the_tile(name: str) -> None:
    """A linear-algebra library changes its order of summing with the shape; an instruction
    does not. Kernels may rely on it: the rows of one tile are those of another."""
    generator = torch.Generator().manual_seed(5)
    left = torch.randn(64, 256, generator=generator).to(FLOATS[name])
    right = torch.randn(256, 64, generator=generator).to(FLOATS[name])
    whole, part = torch.zeros(64, 64), torch.zeros(16, 32)
    few = right[:, :32].contiguous()
    dot_kernel[(1,)](left, right, whole, M=64, N=64, K=256, PRECISION="ieee")
    dot_kernel[(1,)](left, few, part, M=16, N=32, K=256, PRECISION="ieee")
    assert torch.equal(whole[:16, :32], part)


def test_a_product_with_a_half_accumulator_is_rounded_to_half() -> None:
    left, right = torch.full((16, 16), 0.1).half(), torch.full((16, 16), 0.1).half()
    target = torch.zeros(16, 16).half()
    dot_kernel[(1,)](left, right, target, M=16, N=16, K=16, PRECISION=None)
    assert torch.equal(target, (left.float() @ right.float()).half())


def test_integer_products_are_exact() -> None:
    left = torch.full((16, 128), -128, dtype=torch.int8)
    right = torch.randint(-128, 128, (128, 16), dtype=torch.int8)
    target = torch.full((16, 16), 7, dtype=torch.int32)
    dot_kernel[(1,)](left, right, target, M=16, N=16, K=128, PRECISION=None)
    assert torch.equal(target, (left.int() @ right.int()) + 7)


def test_float32_products_are_tf32_unless_asked_to_be_ieee() -> None:
    left = torch.full((16, 16), 1 + 2.0**-12)
    right = torch.eye(16)
    exact, cut = torch.zeros(16, 16), torch.zeros(16, 16)
    dot_kernel[(1,)](left, right, exact, M=16, N=16, K=16, PRECISION="ieee")
    dot_kernel[(1,)](left, right, cut, M=16, N=16, K=16, PRECISION="tf32")
    assert torch.equal(exact, left)
    assert torch.equal(cut, torch.ones(16, 16))


def test_a_product_too_short_for_the_tensor_cores_is_refused() -> None:
    operand = torch.zeros(8, 8).bfloat16()
    with pytest.raises(KernelCrashError, match="dot_kernel"):
        dot_kernel[(1,)](operand, operand, torch.zeros(8, 8), M=8, N=8, K=8, PRECISION=None)


@pytest.mark.parametrize("name", ["bf16", "fp16", "fp32", "fp64"])
def test_constants_have_the_value_that_is_written(name: str) -> None:
    target = torch.zeros(8, dtype=FLOATS[name])
    constants_kernel[(1,)](target, BLOCK=8)
    assert target.float().tolist() == [1.5] * 8
