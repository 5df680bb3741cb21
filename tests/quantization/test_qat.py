"""QAT: the estimator against torch's own, and a small model that is trained to the end."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from infra_lab.errors import UsageError
from infra_lab.formats.quantized_weight import ActivationFormat
from infra_lab.layers.quantized_input import rounded_input
from infra_lab.models.loader import open_checkpoint
from infra_lab.quantization.corpus import calibration_text
from infra_lab.quantization.evaluate import TextModel, evaluate
from infra_lab.quantization.integer import IntegerGrid, IntegerScheme, by_groups
from infra_lab.quantization.overlay import OverlayCheckpoint
from infra_lab.quantization.qat import (
    QATLinear,
    fake_quantize,
    prepare_qat,
    quantized_weights,
    round_linears,
)
from infra_lab.quantization.qat_training import (
    Characters,
    QATResult,
    compare_with_rounding,
    loss_of,
    tiny_llama,
    train,
    windows,
)
from infra_lab.quantization.rtn import round_to_nearest
from tests.quantization.inputs import SEEDS, random_weight, schemes


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """These products are too small to share: two threads on a busy machine wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@settings(max_examples=50)
@given(SEEDS, st.integers(2, 8), st.booleans())
def test_forward_and_gradients_are_those_of_torchs_own(
    seed: int, bits: int, symmetric: bool
) -> None:
    """torch's takes 1 where the code is on the grid and 0 elsewhere; LSQ's gradient of scales."""
    numbers = random_weight(4, 32, seed, torch.float32).requires_grad_()
    scales = random_weight(4, 1, seed + 1, torch.float32).abs().mul_(0.3).add_(0.02)
    scales.requires_grad_()
    middle = 2 ** (bits - 1)
    zeros = torch.full((4, 1), middle) + (0 if symmetric else torch.tensor([[1], [0], [-1], [1]]))
    grid = IntegerGrid(bits, scales, zeros.float())
    ours = fake_quantize(numbers, grid)
    upstream = random_weight(4, 32, seed + 2, torch.float32)
    gradients = torch.autograd.grad(ours, (numbers, scales), upstream)
    theirs = torch._fake_quantize_learnable_per_channel_affine(
        numbers, scales[:, 0], zeros[:, 0].float(), 0, 0, 2**bits - 1, 1.0
    )
    wanted = torch.autograd.grad(theirs, (numbers, scales), upstream)
    close = (ours - theirs).abs() < 1e-5  # they multiply by 1 / scale: a tie may fall elsewhere
    assert close.float().mean() > 0.98
    assert torch.equal(gradients[0][close], wanted[0][close])
    if close.all():
        torch.testing.assert_close(gradients[1], wanted[1], rtol=1e-3, atol=1e-3)


def test_the_gradient_is_one_inside_and_zero_outside() -> None:
    """At 2 bits and scale 1: the codes -2, -1, 0 and 1; up to 1.5 a number rounds to one."""
    numbers = torch.tensor([-9.0, -2.51, -2.49, -0.3, 0.0, 0.7, 1.49, 1.51, 9.0])
    numbers.requires_grad_()
    grid = IntegerGrid(2, torch.ones(1), torch.full((1,), 2.0))
    rounded = fake_quantize(numbers, grid)
    assert rounded.tolist() == [-2, -2, -2, 0, 0, 1, 1, 1, 1]
    rounded.sum().backward()
    assert numbers.grad is not None
    assert numbers.grad.tolist() == [0, 0, 1, 1, 1, 1, 1, 0, 0]


@settings(max_examples=30)
@given(SEEDS, schemes(scale_dtype=None), st.booleans(), st.booleans())
def test_the_exported_weight_is_the_one_that_was_multiplied_by(
    seed: int, scheme: IntegerScheme, learn_scales: bool, biased: bool
) -> None:
    if learn_scales and scheme.granularity == "tensor":
        scheme = replace(scheme, granularity="channel")
    weight = random_weight(6, 24, seed, torch.float32)
    bias = random_weight(1, 6, seed + 1, torch.float32)[0] if biased else None
    layer = QATLinear(weight, bias, scheme, learn_scales)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.05)
    for _ in range(3):
        loss = layer(random_weight(5, 24, seed + 2, torch.float32)).square().sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    quantized = layer.quantized()
    assert torch.equal(quantized.scales.to(scheme.scale_dtype).float(), quantized.scales)
    x = random_weight(5, 24, seed + 3, torch.float32)
    wanted = nn.functional.linear(x, quantized.dequantize(), layer.bias)
    assert torch.equal(layer(x), wanted)
    assert not torch.equal(layer.weight.detach(), weight)


def test_without_learnt_scales_every_weight_has_the_whole_gradient() -> None:
    weight, x = random_weight(3, 8, 0, torch.float32), random_weight(5, 8, 1, torch.float32)
    layer = QATLinear(weight, None, IntegerScheme(3, granularity=3))
    layer(x).sum().backward()
    assert layer.weight.grad is not None
    torch.testing.assert_close(layer.weight.grad, x.sum(0).expand(3, 8))
    assert torch.equal(
        layer.quantized().codes, round_to_nearest(weight, IntegerScheme(3, granularity=3)).codes
    )


def test_lsq_begins_with_finer_steps_and_learns_them() -> None:
    weight = random_weight(4, 64, 0, torch.float32)
    scheme = IntegerScheme(2, symmetric=True, granularity=16)
    layer = QATLinear(weight, None, scheme, learn_scales=True)
    groups = by_groups(weight, 16)
    wanted = torch.minimum(2 * groups.abs().mean(-1), groups.abs().amax(-1) * 2 / 3)
    torch.testing.assert_close(layer.grid().scales.detach(), wanted)
    x = random_weight(32, 64, 1, torch.float32)
    goal = x @ weight.T
    optimizer = torch.optim.Adam([layer.log_scales], lr=0.01)  # the scales alone
    losses = []
    for _ in range(40):
        loss = (layer(x) - goal).square().mean()
        losses.append(loss.item())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert min(losses[-5:]) < 0.97 * losses[0]


def test_inputs_are_rounded_and_their_gradients_pass() -> None:
    weight, x = random_weight(3, 8, 0, torch.float32), random_weight(5, 8, 1, torch.float32)
    form = ActivationFormat(4)
    layer = QATLinear(weight, None, IntegerScheme(8), activation=form)
    x.requires_grad_()
    out = layer(x)
    dense = layer.quantized().dequantize()
    assert torch.equal(out, nn.functional.linear(rounded_input(x.detach(), form), dense))
    out.sum().backward()
    assert x.grad is not None
    torch.testing.assert_close(x.grad, dense.sum(0).expand(5, 8))


def test_every_linear_layer_but_the_head_is_replaced() -> None:
    model = tiny_llama(30)
    names = prepare_qat(model, IntegerScheme(4))
    assert len(names) == 2 * 7
    assert isinstance(model.lm_head, nn.Linear)
    assert set(quantized_weights(model)) == {f"{name}.weight" for name in names}
    other = tiny_llama(30)
    assert round_linears(other, IntegerScheme(4)) == names
    ids = torch.arange(20)[None]
    with torch.no_grad():
        torch.testing.assert_close(model(ids).logits, other(ids).logits)


@pytest.fixture(scope="module")
def two_bits() -> QATResult:
    """Some seconds on one core."""
    scheme = IntegerScheme(2, symmetric=True, scale_dtype=torch.float16)
    return compare_with_rounding(
        calibration_text(), scheme, learn_scales=True, steps=100, qat_steps=70, learning_rate=6e-3
    )


def test_training_wins_back_more_than_half_of_what_two_bits_lose(two_bits: QATResult) -> None:
    assert two_bits.fp32 < 2.2  # it has learnt: a uniform guess is 4.2, letter frequencies 2.9
    assert two_bits.rounded > two_bits.fp32 + 0.15
    assert two_bits.trained < two_bits.rounded
    assert two_bits.recovered > 0.5


def test_what_was_trained_runs_in_the_engines_layers(two_bits: QATResult, tmp_path: Path) -> None:
    """Its codes over a folder of the other tensors, and the same likelihood."""
    model: Any = two_bits.model
    text = Characters.of(calibration_text())
    plain = tiny_llama(len(text.vocabulary))
    state = {
        name: tensor
        for name, tensor in model.state_dict().items()
        if name in dict(plain.named_parameters())
    }
    plain.load_state_dict(state, strict=False)
    plain.save_pretrained(tmp_path)
    checkpoint = OverlayCheckpoint(open_checkpoint(tmp_path), quantized_weights(model))
    window = text.held_out[:200]
    quality = evaluate(TextModel.load(checkpoint, 200), [window.tolist()])
    with torch.no_grad():
        wanted = float(loss_of(model, window[None]))
    assert -sum(quality.likelihood.logprobs) / 199 == pytest.approx(wanted, rel=1e-4)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("scheme", "learn_scales", "recovered"),
    [
        (IntegerScheme(2, symmetric=True), True, 0.7),
        (IntegerScheme(2), False, 0.6),
        (IntegerScheme(2, granularity=32), True, 0.6),
        (IntegerScheme(3, symmetric=True), False, 0.4),
    ],
)
def test_longer_training_wins_back_more(
    scheme: IntegerScheme, learn_scales: bool, recovered: float
) -> None:
    result = compare_with_rounding(
        calibration_text(), scheme, learn_scales, steps=400, qat_steps=300, learning_rate=6e-3
    )
    assert result.recovered > recovered


def test_the_same_seed_trains_the_same_model() -> None:
    text = calibration_text()[:3000]
    scheme = IntegerScheme(3)
    runs = [compare_with_rounding(text, scheme, steps=4, qat_steps=3, seed=1) for _ in range(2)]
    assert replace(runs[0], model=runs[1].model) == runs[1]
    other = compare_with_rounding(text, scheme, steps=4, qat_steps=3, seed=2)
    assert other.fp32 != runs[0].fp32


def refused() -> list[tuple[Any, str]]:
    scheme = IntegerScheme(granularity="tensor")
    return [
        (
            lambda: QATLinear(torch.ones(2, 2), None, scheme, learn_scales=True),
            "not a whole tensor",
        ),
        (lambda: prepare_qat(nn.ReLU(), IntegerScheme()), "no linear layer to quantize"),
        (lambda: compare_with_rounding("abc" * 50, IntegerScheme()), "give a longer text"),
        (lambda: next(windows(torch.arange(5), 5, 1, 0)), "a window takes 6"),
        (
            lambda: train(tiny_llama(9), windows(torch.arange(9), 4, 2, 0), 20, 1e20),
            "give a smaller learning rate",
        ),
    ]


@pytest.mark.parametrize("index", range(len(refused())))
def test_what_makes_no_sense_is_refused(index: int) -> None:
    make, message = refused()[index]
    with pytest.raises(UsageError, match=message):
        make()
