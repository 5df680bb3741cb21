"""What few bits can say: levels, codes of small floats, steps, and noise against signal.

Answers "why do outliers ruin INT8 activations?": with a scale set by a channel of +-100, values of
+-3 fall on 9 of 255 levels, 3.17 bits. Formats: OCP FP8 and Microscaling 1.0; NF4: Dettmers et al.
2023 (arXiv 2305.14314), appendix E.
"""

from __future__ import annotations

from math import log2, log10
from statistics import NormalDist

from infra_lab.calculators.checks import require_count, require_positive
from infra_lab.errors import UsageError

_NF4_OFFSET = 0.9677083  # of the outermost quantile, bitsandbytes' create_normal_map


def integer_range(bits: int) -> tuple[int, int]:
    """All codes of a signed integer: (-128, 127) for 8 bits."""
    require_count("bits", bits)
    return -(1 << bits - 1), (1 << bits - 1) - 1


def largest_symmetric_code(bits: int) -> int:
    """2^(bits - 1) - 1: symmetric quantizers leave the lowest code out."""
    require_count("bits", bits, 2)
    return (1 << bits - 1) - 1


def symmetric_step(largest_value: float, bits: int) -> float:
    """The scale that reaches `largest_value`: largest / (2^(bits - 1) - 1)."""
    require_positive("largest_value", largest_value)
    return largest_value / largest_symmetric_code(bits)


def codes_used(largest_value: float, scale_largest: float, bits: int = 8) -> int:
    """Levels on which values up to +-`largest_value` fall when the scale was set by another."""
    if largest_value > scale_largest:
        raise UsageError(f"{largest_value} is beyond {scale_largest}, which the scale reaches")
    highest = round(largest_value / symmetric_step(scale_largest, bits))
    return 2 * highest + 1


def effective_bits(num_levels: int) -> float:
    """log2 of the levels that are in use."""
    require_count("num_levels", num_levels)
    return log2(num_levels)


def uniform_sqnr_db(bits: int, peak_to_rms: float = 3**0.5) -> float:
    """Signal over noise of a uniform quantizer, in decibels, with its error spread evenly.

    20 log10(2^bits) + 10 log10(3) - 20 log10(peak / rms): noise is step^2 / 12, the step is
    2 peak / 2^bits. 6.02 dB a bit; a uniform signal (peak / rms = sqrt 3) has exactly that much,
    outliers, which raise the peak, have less.
    """
    require_count("bits", bits)
    require_positive("peak_to_rms", peak_to_rms)
    return 20 * bits * log10(2) + 10 * log10(3) - 20 * log10(peak_to_rms)


def small_float_values(exponent_bits: int, mantissa_bits: int, largest_code: int) -> list[float]:
    """Every non-negative value of a float with a sign bit, ascending, up to the code of the largest
    finite one; subnormals included, the exponent's bias 2^(bits - 1) - 1."""
    require_count("exponent_bits", exponent_bits)
    require_count("mantissa_bits", mantissa_bits, 0)
    bias = 2 ** (exponent_bits - 1) - 1
    values = []
    for code in range(largest_code + 1):
        exponent, mantissa = divmod(code, 2**mantissa_bits)
        fraction = mantissa / 2**mantissa_bits
        if exponent == 0:
            values.append(fraction * 2.0 ** (1 - bias))
        else:
            values.append((1 + fraction) * 2.0 ** (exponent - bias))
    return values


def e4m3_values() -> list[float]:
    """FP8 for weights and activations: no infinity, one NaN, so that 448 is the largest."""
    return small_float_values(4, 3, 0x7E)


def e5m2_values() -> list[float]:
    """FP8 for gradients: IEEE's infinity and NaNs, the largest finite number 57344."""
    return small_float_values(5, 2, 0x7B)


def e2m1_values() -> list[float]:
    """FP4: the codes of MXFP4 and NVFP4. 0, 0.5, 1, 1.5, 2, 3, 4, 6."""
    return small_float_values(2, 1, 0b111)


def nf4_values() -> list[float]:
    """NF4's 16 levels: quantiles of a normal distribution, scaled to -1 to 1, 0 among them."""
    normal = NormalDist()

    def tail(count: int) -> list[float]:
        step = (_NF4_OFFSET - 0.5) / count
        return [normal.inv_cdf(_NF4_OFFSET - place * step) for place in range(count)]

    positive, negative = tail(8), [-value for value in tail(7)]
    largest = max(positive)
    return sorted(value / largest for value in (*positive, 0.0, *negative))


def smoothing_scale(activation_max: float, weight_max: float, strength: float = 0.5) -> float:
    """SmoothQuant's s_j = max|X_j|^alpha / max|W_j|^(1 - alpha), by which a channel's activations
    are divided and its weights multiplied (Xiao et al. 2023, arXiv 2211.10438, equation 4)."""
    require_positive("activation_max", activation_max)
    require_positive("weight_max", weight_max)
    if not 0 <= strength <= 1:
        raise UsageError(f"strength must be from 0 to 1, not {strength}")
    return float(activation_max**strength / weight_max ** (1 - strength))
