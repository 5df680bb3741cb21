"""The interpreter's operations with a GPU's arithmetic.

Triton's interpreter carries bf16 and fp8 as bare unsigned integers, and computes with them as
such: bf16 products are products of bit patterns, casts truncate, NaN decodes to a number. Here
every operation decodes its operands, computes in fp32 and rounds once, which is what the GPU's
instruction gives (fp32 has more than twice the bits of bf16, so rounding twice does no harm).

What the lanes touch in memory is told to a `LaunchObserver`; the sanitizer is one.

Triton 3.6, 3.7 and 3.9 call the memory operations with different numbers of cache hints. No
hint changes a result, so they are taken as `*hints` and dropped.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import triton.language as tl
from triton._C.libtriton import interpreter as memory
from triton._C.libtriton import ir
from triton.language.semantic import TritonSemantic
from triton.runtime import interpreter as stock
from triton.runtime.interpreter import TensorHandle

from kernels.testing.float_codecs import Array, decode, encode, float_format, round_to_tf32
from kernels.testing.handles import Handle, handle_of, number_format, undefined_values, values_of
from kernels.testing.observer import LaunchObserver

PRODUCTS_AT_A_TIME = 16
"""The K of mma.sync and wgmma for 16-bit operands."""


class FaithfulBuilder(stock.InterpreterBuilder):  # type: ignore[misc]
    """Triton's interpreter builder, with operations on floats as a GPU does them.

    Pure operations on floats are added below the class, from tables.
    """

    def __init__(self, observer: LaunchObserver) -> None:
        super().__init__()
        self.observer = observer
        # The tensor cores' smallest K; the stock interpreter takes any.
        self.codegen_fns["min_dot_size"] = lambda left, right: (
            (1, 1, 32) if left.scalar.primitive_bitwidth == 8 else (1, 1, 16)
        )

    # Constants that the stock builder lacks or gets wrong in some versions.

    def get_bf16(self, value: float) -> Handle:
        return handle_of(np.array([value], np.float32), tl.bfloat16)

    def get_all_ones_value(self, dtype: Any) -> Handle:
        numpy_type = stock._get_np_dtype(dtype)
        return TensorHandle(~np.zeros(1, numpy_type), dtype.scalar)

    # Memory.

    def create_load(self, pointers: Handle, *hints: Any, **more_hints: Any) -> Handle:
        everywhere = TensorHandle(np.ones_like(pointers.data, dtype=bool), tl.int1)
        return self.create_masked_load(pointers, everywhere, None)

    def create_masked_load(
        self, pointers: Handle, mask: Handle, other: Handle, *hints: Any, **more_hints: Any
    ) -> Handle:
        dtype = pointers.get_element_ty()
        active = _mask_array(mask, pointers)
        self.observer.load(pointers.data[active], _size(dtype))
        fill = undefined_values(pointers.data.shape, dtype) if other is None else other.data
        numpy_type = stock._get_np_dtype(dtype)
        return TensorHandle(memory.load(pointers.data, active, fill, numpy_type), dtype)

    def create_store(self, pointers: Handle, value: Handle, *hints: Any, **more_hints: Any) -> None:
        everywhere = TensorHandle(np.ones_like(pointers.data, dtype=bool), tl.int1)
        self.create_masked_store(pointers, value, everywhere)

    def create_masked_store(
        self, pointers: Handle, value: Handle, mask: Handle, *hints: Any, **more_hints: Any
    ) -> None:
        active = _mask_array(mask, pointers)
        values = np.broadcast_to(value.data, pointers.data.shape)
        self.observer.store(pointers.data[active], _size(pointers.get_element_ty()), values[active])
        memory.store(pointers.data, value.data, active)

    def create_descriptor_load(
        self, descriptor: Any, indices: list[Handle], *hints: Any, **more_hints: Any
    ) -> Handle:
        pointers, mask = descriptor.materialize_pointers(indices)
        dtype = pointers.get_element_ty()
        fill = np.zeros(pointers.data.shape, stock._get_np_dtype(dtype))
        if descriptor.padding == ir.PADDING_OPTION.PAD_NAN:
            fill = undefined_values(pointers.data.shape, dtype)
        loaded = self.create_masked_load(pointers, mask, TensorHandle(fill, dtype))
        if getattr(descriptor, "round_f32_to_tf32", False) and dtype == tl.float32:
            return TensorHandle(stock._round_f32_to_tf32(loaded.data), dtype)
        return loaded

    def create_atomic_rmw(
        self, operation: Any, pointers: Handle, value: Handle, mask: Handle, *order: Any
    ) -> Handle:
        dtype = value.dtype.scalar
        active = _mask_array(mask, pointers)
        self.observer.atomic(pointers.data[active], _size(dtype))
        if dtype.is_floating() and dtype.primitive_bitwidth == 16:
            if operation != ir.ATOMIC_OP.FADD:
                raise NotImplementedError(f"atomic {operation} on {dtype}: GPUs have only add")
            return self._atomic_add_16_bit(pointers, value, active)
        found = super().create_atomic_rmw(operation, pointers, value, mask, *order)
        nothing = undefined_values(pointers.data.shape, dtype)
        return TensorHandle(np.where(active, found.data, nothing), dtype)

    def create_atomic_cas(
        self, pointers: Handle, expected: Handle, value: Handle, *order: Any
    ) -> Handle:
        self.observer.atomic(pointers.data.reshape(-1), _size(value.dtype.scalar))
        return super().create_atomic_cas(pointers, expected, value, *order)

    def _atomic_add_16_bit(self, pointers: Handle, value: Handle, active: Array) -> Handle:
        """One lane after the other, each sum rounded; returns what each lane found."""
        dtype = value.dtype.scalar
        numpy_type = stock._get_np_dtype(dtype)
        addends = np.broadcast_to(values_of(value), pointers.data.shape).astype(np.float32)
        before = undefined_values(pointers.data.shape, dtype)
        one = np.ones(1, dtype=bool)
        for lane in np.argwhere(active):
            index = tuple(lane)
            address = pointers.data[index].reshape(1)
            found = TensorHandle(
                memory.load(address, one, np.zeros(1, numpy_type), numpy_type), dtype
            )
            before[index] = found.data[0]
            total = values_of(found).astype(np.float32) + addends[index]
            memory.store(address, handle_of(total, dtype).data, one)
        return TensorHandle(before, dtype)

    # Casts.

    def _convert(self, source: Handle, dtype: Any) -> Handle:
        return handle_of(values_of(source), dtype)

    create_si_to_fp = create_ui_to_fp = create_fp_ext = create_fp_trunc = _convert

    def create_fp_to_fp(self, source: Handle, dtype: Any, rounding: Any) -> Handle:
        scalar = dtype.scalar
        toward_zero = rounding == ir.ROUNDING_MODE.RTZ
        return TensorHandle(
            encode(
                values_of(source),
                float_format(scalar.name),
                "toward_zero" if toward_zero else "nearest_even",
            ),
            scalar,
        )

    def create_fp_to_si(self, source: Handle, dtype: Any) -> Handle:
        """PTX `cvt.rzi`: cut, clamped to the instruction's integer, NaN to 0 (64 bit: least).

        The instruction has at least 16 bits; int8 keeps the low byte of it.
        """
        scalar = dtype.scalar
        bits, signed = scalar.int_bitwidth, scalar.is_int_signed()
        through = np.dtype(f"{'i' if signed else 'u'}{max(bits, 16) // 8}")
        limits = np.iinfo(through)
        values = np.trunc(values_of(source).astype(np.float64))
        with np.errstate(all="ignore"):
            whole = np.where(np.isnan(values), 0, values).astype(through)
        whole[values >= float(limits.max)] = limits.max
        whole[values <= float(limits.min)] = limits.min
        if bits == 64:
            whole[np.isnan(values)] = limits.min if signed else 1 << 63
        return TensorHandle(whole.astype(stock._get_np_dtype(scalar)), scalar)

    create_fp_to_ui = create_fp_to_si

    # Matrix products.

    def create_dot(
        self, left: Handle, right: Handle, accumulator: Handle, precision: Any, *limits: Any
    ) -> Handle:
        """Exact products, added to the sum sixteen at a time, which is rounded to fp32 after each
        (fp64 for fp64); exact for int8.

        They are taken in the order of K: an element comes out the same in a tile of any shape,
        as it does of one instruction. fp32 operands in TF32 mode (Triton's default on NVIDIA) lose
        their last 13 bits, as the tensor cores read them: pass input_precision="ieee" for full
        fp32. Not modelled: Hopper's fp8 products keep fewer bits of a sum than fp32 has.
        """
        if number_format(left) is None:
            # Exact in fp64 up to K = 2^39; and it has a fast product, where integers have none.
            product = np.matmul(left.data.astype(np.float64), right.data.astype(np.float64))
            total = product.astype(np.int64) + accumulator.data
            return TensorHandle(total.astype(accumulator.data.dtype), accumulator.dtype.scalar)
        a, b = values_of(left), values_of(right)
        if a.dtype == np.float32 and precision == ir.INPUT_PRECISION.TF32:
            full = number_format(left).name == "fp32"  # type: ignore[union-attr]
            a, b = (round_to_tf32(a), round_to_tf32(b)) if full else (a, b)
        wide = np.float64 if a.dtype == np.float64 else np.float32
        total = _add_products(values_of(accumulator).astype(wide), a, b)
        return handle_of(total, accumulator.dtype)

    def create_dot_scaled(self, *operands: Any) -> Handle:
        """Only where Triton's interpreter has it (3.9), on formats that are decoded right here."""
        if not hasattr(stock.InterpreterBuilder, "create_dot_scaled"):
            raise NotImplementedError("this Triton's interpreter has no tl.dot_scaled, 3.9's has")
        return super().create_dot_scaled(*operands)

    # Ternary operations.

    def create_fma(self, x: Handle, y: Handle, z: Handle) -> Handle:
        """One rounding: the product is exact in fp64, and the sum is rounded to odd there."""
        a, b, c = (values_of(handle) for handle in (x, y, z))
        if c.dtype == np.float64:
            return super().create_fma(x, y, z)
        product = a.astype(np.float64) * b.astype(np.float64)
        return handle_of(_sum_rounded_to_odd(product, c.astype(np.float64)), z.dtype)

    def create_clampf(self, x: Handle, low: Handle, high: Handle, propagate_nan: Any) -> Handle:
        a, least, most = (values_of(handle) for handle in (x, low, high))
        if propagate_nan == ir.PROPAGATE_NAN.NONE:
            return handle_of(np.fmin(np.fmax(a, least), most), x.dtype)
        return handle_of(np.minimum(np.maximum(a, least), most), x.dtype)


class FaithfulSemantic(TritonSemantic):  # type: ignore[misc]
    """Triton's semantic layer, with its overflow check told to the observer.

    Triton asks for this check wherever it would compile one in debug mode: signed and unsigned
    sums, differences and products of at most 32 bits, unless written with
    `sanitize_overflow=False`. Unsigned arithmetic wraps by intention in hashes and random
    numbers, so only signed is told.
    """

    def binary_op_sanitize_overflow_impl(self, lhs: Any, rhs: Any, binary_op: Any) -> None:
        scalar = lhs.type.scalar
        if scalar.int_bitwidth >= 64 or not scalar.is_int_signed() or scalar.is_bool():
            return
        operation = binary_op.__name__
        exact = {"add": np.add, "sub": np.subtract, "mul": np.multiply}[operation]
        wide = exact(lhs.handle.data.astype(np.int64), rhs.handle.data.astype(np.int64))
        self.builder.observer.integer_operation(operation, scalar.int_bitwidth, wide)

    def load(self, pointers: Any, mask: Any, other: Any, *hints: Any) -> Any:
        """Triton asks `if other`, which for one number means here whether it is 0: `other=0` of
        a single element would be dropped.
        """
        if mask is None or other is None or pointers.handle.data.size > 1:
            return super().load(pointers, mask, other, *hints)
        loaded = super().load(pointers, mask, None, *hints)
        return self.where(mask, loaded, self.cast(other, loaded.dtype))


def convert_float(data: Array, source: Any, target: Any, rounding: Any) -> Array:
    """In place of Triton's own conversion, for its operations that are used as they are."""
    values = decode(data, float_format(source.scalar.name))
    return encode(values, float_format(target.scalar.name))


def _size(dtype: Any) -> int:
    return max(1, int(dtype.primitive_bitwidth) // 8)


def _mask_array(mask: Any, pointers: Handle) -> Array:
    data = mask.data if isinstance(mask, TensorHandle) else mask
    # Triton's interpreter holds some int1 blocks in bytes, which would be taken for indices.
    return np.ascontiguousarray(np.broadcast_to(data, pointers.data.shape), dtype=bool)


def _sum_rounded_to_odd(a: Array, b: Array) -> Array:
    """a + b in fp64 such that rounding it to fp32 or less rounds once (see round_to_odd)."""
    with np.errstate(all="ignore"):
        total = a + b
        shift = total - a  # Knuth's TwoSum: `lost` is the exact error of `total`
        lost = (a - (total - shift)) + (b - shift)
    inexact = (lost != 0) & np.isfinite(total) & np.isfinite(lost)
    bits = total.view(np.uint64)
    beyond = np.signbit(lost) != np.signbit(total)  # the true sum is nearer to zero
    odd = (bits - (inexact & beyond)) | np.uint64(1)
    return np.where(inexact, odd, bits).view(np.float64)


def _add_products(total: Array, a: Array, b: Array) -> Array:
    """total + a @ b: [..., M, N] + [..., M, K] @ [..., K, N], in total's type."""
    a, b = a.astype(np.float64), b.astype(np.float64)
    with np.errstate(over="ignore", invalid="ignore"):
        for first in range(0, a.shape[-1], PRODUCTS_AT_A_TIME):
            some = slice(first, first + PRODUCTS_AT_A_TIME)
            total = (total + np.matmul(a[..., some], b[..., some, :])).astype(total.dtype)
    return total


def _binary(operation: Callable[..., Array]) -> Callable[..., Handle]:
    def method(self: FaithfulBuilder, lhs: Handle, rhs: Handle) -> Handle:
        return handle_of(operation(values_of(lhs), values_of(rhs)), lhs.dtype)

    return method


def _comparison(operation: Callable[..., Array]) -> Callable[..., Handle]:
    def method(self: FaithfulBuilder, lhs: Handle, rhs: Handle) -> Handle:
        return TensorHandle(operation(values_of(lhs), values_of(rhs)), tl.int1)

    return method


def _unary(operation: Callable[[Array], Array]) -> Callable[..., Handle]:
    def method(self: FaithfulBuilder, operand: Handle) -> Handle:
        return handle_of(operation(values_of(operand)), operand.dtype)

    return method


def _erf(values: Array) -> Array:
    return np.asarray(stock.np_erf_fp64(values.astype(np.float64)), dtype=np.float64)


# Triton calls the NaN-ignoring minimum `minnum` and the NaN-keeping one `minimum`, after LLVM.
_BINARY: dict[str, Callable[..., Array]] = {
    "fadd": np.add,
    "fsub": np.subtract,
    "fmul": np.multiply,
    "fdiv": np.divide,
    "precise_divf": np.divide,
    "approx_divf": np.divide,
    "frem": np.fmod,
    "minnumf": np.fmin,
    "maxnumf": np.fmax,
    "minimumf": np.minimum,
    "maximumf": np.maximum,
}
_COMPARISONS: dict[str, Callable[..., Array]] = {
    "fcmpOLT": np.less,
    "fcmpOGT": np.greater,
    "fcmpOLE": np.less_equal,
    "fcmpOGE": np.greater_equal,
    "fcmpOEQ": np.equal,
    "fcmpONE": lambda a, b: (a < b) | (a > b),
    "fcmpULT": lambda a, b: ~(a >= b),
    "fcmpUGT": lambda a, b: ~(a <= b),
    "fcmpULE": lambda a, b: ~(a > b),
    "fcmpUGE": lambda a, b: ~(a < b),
    "fcmpUEQ": lambda a, b: ~((a < b) | (a > b)),
    "fcmpUNE": np.not_equal,
    # Stock gives these the type of what they compare: spread over lanes, truth became a number,
    # and a mask made with it a list of indices.
    "icmpEQ": np.equal,
    "icmpNE": np.not_equal,
    "icmpSLT": np.less,
    "icmpSLE": np.less_equal,
    "icmpSGT": np.greater,
    "icmpSGE": np.greater_equal,
    "icmpULT": np.less,
    "icmpULE": np.less_equal,
    "icmpUGT": np.greater,
    "icmpUGE": np.greater_equal,
}
_UNARY: dict[str, Callable[[Array], Array]] = {
    "fneg": np.negative,
    "fabs": np.abs,
    "exp": np.exp,
    "exp2": np.exp2,
    "log": np.log,
    "log2": np.log2,
    "sin": np.sin,
    "cos": np.cos,
    "sqrt": np.sqrt,
    "precise_sqrt": np.sqrt,
    "rsqrt": lambda values: 1 / np.sqrt(values),
    "floor": np.floor,
    "ceil": np.ceil,
    "erf": _erf,
}

for _names, _make in ((_BINARY, _binary), (_COMPARISONS, _comparison), (_UNARY, _unary)):
    for _name, _operation in _names.items():
        setattr(FaithfulBuilder, f"create_{_name}", _make(_operation))
