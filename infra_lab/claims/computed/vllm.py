"""Section V: batching, prefixes and messages."""

from __future__ import annotations

from infra_lab.calculators.model_table import model
from infra_lab.calculators.parallel import all_reduces_per_step, layer_ranges
from infra_lab.calculators.prefix import prefill_speedup
from infra_lab.calculators.scheduling import (
    continuous_batches,
    exponential_gain,
    static_batches,
)
from infra_lab.claims.claim import Numbers


def v3() -> Numbers:
    def gain(lengths: list[int]) -> float:
        return static_batches(lengths, 3).num_steps / continuous_batches(lengths, 3).num_steps

    return {
        "post": gain([200, 50, 100] * 50),
        "equal": gain([100] * 150),
        "exponential_8": exponential_gain(8),
        "exponential_32": exponential_gain(32),
    }


def v4() -> Numbers:
    return {
        "half": prefill_speedup(0.5),
        "four_fifths": prefill_speedup(0.8),
        "nine_tenths": prefill_speedup(0.9),
    }


def v12() -> Numbers:
    layers = model("llama-2-70b").num_layers
    return {
        "tp_messages": all_reduces_per_step(layers),
        "pp_messages": len(layer_ranges(layers, 2)) - 1,
    }
