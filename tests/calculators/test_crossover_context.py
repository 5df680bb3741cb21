"""The context beyond which no batch of decodes is bound by arithmetic."""

from __future__ import annotations

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from infra_lab.calculators.hardware import DEVICES, Device, device
from infra_lab.calculators.model_table import MODELS, model
from infra_lab.calculators.models import Model
from infra_lab.calculators.roofline import (
    Setting,
    crossover_batch,
    crossover_context,
    intensity_limit,
)

dense = st.sampled_from([one for one in MODELS.values() if one.experts is None])


def test_a_70b_on_an_a100_worked_by_hand() -> None:
    # 2 x 68.71e9 FLOPs at 312e12 a second, over 327,680 bytes at 2.039e12 less 2.62e6 FLOPs.
    by_hand = (137.43e9 / 312e12) / (327_680 / 2.039e12 - 2_621_440 / 312e12)
    found = crossover_context(model("llama-2-70b"), Setting(device("a100")))
    assert found == pytest.approx(by_hand, rel=1e-3)


@given(dense, st.sampled_from(list(DEVICES.values())))
def test_a_batch_reaches_the_ridge_up_to_that_context_and_none_beyond_it(
    shape: Model, gpu: Device
) -> None:
    setting = Setting(gpu)
    context = crossover_context(shape, setting)
    assume(context is not None and context > 2)
    assert context is not None
    assert crossover_batch(shape, int(context), setting) is not None
    assert crossover_batch(shape, int(context) + 1, setting) is None


@given(st.sampled_from(list(MODELS.values())), st.sampled_from(list(DEVICES.values())))
def test_there_an_endless_batch_stands_on_the_ridge(shape: Model, gpu: Device) -> None:
    setting = Setting(gpu)
    context = crossover_context(shape, setting)
    assume(context is not None and context > 100)
    assert context is not None
    ridge = gpu.ridge_flops_per_byte("bf16")
    assert intensity_limit(shape, int(context), setting) >= ridge * 0.999
    assert intensity_limit(shape, int(context) + 1, setting) <= ridge * 1.001


def test_attention_over_latents_may_be_bound_by_arithmetic_at_any_context() -> None:
    assert crossover_context(model("deepseek-v3"), Setting(device("a100"))) is None
    assert crossover_context(model("deepseek-v3"), Setting(device("h100"))) is not None
