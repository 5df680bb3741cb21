"""Bytes of weights in any number format, with the scales, zeros and unquantized tables counted.

Answers "does a 70B in 4 bits fit into 24 GB?" (no: 35 GB of codes alone) and "how many bits could
each weight have?". Quantizers leave embeddings, output matrix, norms and biases in 16 bits.
"""

from __future__ import annotations

from dataclasses import dataclass

from infra_lab.calculators.checks import require_count, require_positive
from infra_lab.calculators.formats import NumberFormat, number_format
from infra_lab.calculators.models import Model
from infra_lab.calculators.parameters import linear_parameters, num_parameters

BF16 = number_format("bf16")


@dataclass(frozen=True, slots=True)
class WeightBytes:
    """`linear_bytes`: the layers' matrices; `other_bytes`: tables, head, norms, biases."""

    linear_bytes: float
    other_bytes: float

    @property
    def total_bytes(self) -> float:
        return self.linear_bytes + self.other_bytes


def stored_bytes(num_elements: float, number: NumberFormat) -> float:
    """elements x (bits + scale and zero bits / group) / 8."""
    return num_elements * number.bytes_per_element


def weight_bytes(
    model: Model, linear: NumberFormat = BF16, other: NumberFormat | None = None
) -> WeightBytes:
    """A model whose layers' matrices are in one format and everything else in another (None: as
    quantizers leave it, see `other_format`)."""
    rest = other_format(linear) if other is None else other
    in_layers = linear_parameters(model)
    return WeightBytes(
        linear_bytes=stored_bytes(in_layers, linear),
        other_bytes=stored_bytes(num_parameters(model) - in_layers, rest),
    )


def other_format(linear: NumberFormat) -> NumberFormat:
    """What tables, head and norms stay in: 16 bits, or the layers' own format if it is wider."""
    return linear if linear.bits > 16 else BF16


def most_bits_per_weight(num_elements: int, available_bytes: float) -> float:
    """The bits a weight may take, scales included, that all of them fit: 8 x bytes / elements."""
    require_count("num_elements", num_elements)
    require_positive("available_bytes", available_bytes)
    return 8 * available_bytes / num_elements
