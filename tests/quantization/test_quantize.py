"""Whole models quantized layer by layer: what each method sees, and runs that stop and go on."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from infra_lab.errors import ModelLoadError, UsageError
from infra_lab.formats.quantized_weight import ActivationFormat, QuantizedWeight
from infra_lab.layers.quantized_input import rounded_input
from infra_lab.models.checkpoint import Checkpoint
from infra_lab.models.loader import open_checkpoint
from infra_lab.quantization.evaluate import TextModel
from infra_lab.quantization.gptq import GptqOptions, gptq
from infra_lab.quantization.hessian import InputStatistics
from infra_lab.quantization.layer_methods import LAYER_METHODS, integer_scheme
from infra_lab.quantization.layer_stream import LayerStream
from infra_lab.quantization.layer_view import LayerView
from infra_lab.quantization.modules import GATE_UP, GROUPS, QKV, linear_modules
from infra_lab.quantization.overlay import OverlayCheckpoint
from infra_lab.quantization.partial_folder import PartialFolder
from infra_lab.quantization.quantize import quantize_model
from infra_lab.quantization.rtn import round_to_nearest
from infra_lab.quantization.scaled_layer import ScaledLayer
from infra_lab.quantization.settings import METHODS, QuantizationSettings, choose_settings
from infra_lab.quantization.smoothquant import ALPHAS, smoothing_scales
from tests.quantization.tiny_models import tiny_model, token_ids

SEQUENCES = torch.tensor(token_ids(6 * 40, seed=1)).view(6, 40)
TOKENS = token_ids(30, seed=2)
Opened = tuple[Any, Checkpoint]


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Opened:
    folder = tmp_path_factory.mktemp("llama")
    return tiny_model(folder, intermediate_size=128), open_checkpoint(folder)


def settings_of(checkpoint: Checkpoint, method: str, **given: Any) -> QuantizationSettings:
    return choose_settings(method, checkpoint.config, given)


def same(ours: QuantizedWeight, theirs: QuantizedWeight) -> bool:
    for name in ("codes", "values", "scales", "zeros", "offsets", "g_idx"):
        one, other = getattr(ours, name), getattr(theirs, name)
        if (one is None) != (other is None) or (one is not None and not torch.equal(one, other)):
            return False
    return (ours.bits, ours.group_size) == (theirs.bits, theirs.group_size)


def logits(checkpoint: Checkpoint) -> torch.Tensor:
    model = TextModel.load(checkpoint, len(TOKENS))
    return model.model.logits(model.hidden(TOKENS))


@pytest.mark.parametrize("method", METHODS)
def test_every_method_quantizes_every_linear_layer_and_the_model_still_resembles_itself(
    llama: Opened, method: str
) -> None:
    checkpoint = llama[1]
    settings = settings_of(checkpoint, method, bits=8 if 8 in METHODS[method].bits else None)
    quantized = quantize_model(checkpoint, settings, SEQUENCES)
    modules = linear_modules(checkpoint.config)
    assert list(quantized.weights) == [f"{module}.weight" for module in modules]
    # Four bits leave these random layers little, and floats of 8 have four to tell them apart.
    tolerance = 0.6 if settings.bits == 4 else 0.3 if method == "fp8" else 0.05
    reference = logits(checkpoint)
    assert (logits(quantized) - reference).norm() < tolerance * reference.norm()


def test_rounding_to_nearest_needs_no_text_and_takes_each_matrix_for_itself(
    llama: Opened,
) -> None:
    checkpoint = llama[1]
    settings = settings_of(checkpoint, "rtn", bits=3)
    quantized = quantize_model(checkpoint, settings)
    name = "model.layers.1.mlp.up_proj.weight"
    weight = checkpoint.tensor(name, torch.float32)
    assert same(quantized.weights[name], round_to_nearest(weight, integer_scheme(settings)))
    with pytest.raises(UsageError, match="gptq is calibrated: give it sequences"):
        quantize_model(checkpoint, settings_of(checkpoint, "gptq"))


def test_gptq_sees_what_the_groups_quantized_before_give(llama: Opened, tmp_path: Path) -> None:
    """Against transformers: before each group's turn all earlier ones hold their rounded
    weights, and hooks on its modules tell the Hessian."""
    checkpoint = llama[1]
    settings = settings_of(checkpoint, "gptq", bits=3)
    quantized = quantize_model(checkpoint, settings, SEQUENCES)
    theirs = tiny_model(tmp_path, intermediate_size=128)
    options = GptqOptions(act_order=True, static_groups=True)
    scheme, agreeing, total = integer_scheme(settings), 0, 0
    for layer in range(2):
        for group in GROUPS:
            names = [f"model.layers.{layer}.{module}" for module in group.modules]
            module = theirs.get_submodule(names[0])
            statistics = InputStatistics(module.in_features)
            hook = module.register_forward_pre_hook(
                lambda module, inputs, statistics=statistics: statistics.add(inputs[0])
            )
            with torch.no_grad():
                theirs(SEQUENCES)
            hook.remove()
            for name in names:
                linear = theirs.get_submodule(name)
                ours = quantized.weights[f"{name}.weight"]
                expected = gptq(linear.weight.data, statistics.hessian, scheme, options)
                agreeing += int((ours.codes == expected.codes).sum())
                total += ours.codes.numel()
                linear.weight.data = ours.dequantize()
    # A code at a tie may fall otherwise when the last bit of a product does, and others follow.
    assert agreeing > 0.995 * total


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_scales_folded_into_a_layer_leave_its_output_as_it_was(tmp_path: Path, family: str) -> None:
    tiny_model(tmp_path, family)
    checkpoint = open_checkpoint(tmp_path)
    generator = torch.Generator().manual_seed(0)
    stream, dense = LayerStream(checkpoint, SEQUENCES), {}
    for layer in range(3):
        view = LayerView(checkpoint, layer, stream)
        scaled = ScaledLayer(view)
        for group in GROUPS:
            features = view.weight(group.modules[0]).shape[1]
            scales = torch.rand(features, generator=generator) * 4 + 0.2
            scaled.divide_input(group, scaled.possible(group, scales))
        dense |= scaled.changed
        for group in GROUPS:
            for module in group.modules:
                dense[view.name(module)] = scaled.rows(module) * scaled.scales[group]
        stream.advance(checkpoint)
    changed = OverlayCheckpoint(checkpoint, dense=dense)
    torch.testing.assert_close(logits(changed), logits(checkpoint), rtol=1e-4, atol=1e-4)


def test_each_input_gets_the_alpha_at_which_its_outputs_err_least(llama: Opened) -> None:
    checkpoint = llama[1]
    automatic = settings_of(checkpoint, "smoothquant", bits=3)
    assert automatic.alpha == "auto"
    view = LayerView(checkpoint, 0, LayerStream(checkpoint, SEQUENCES), ActivationFormat(8))
    seen = view.inputs()
    done = LAYER_METHODS["smoothquant"](view, automatic)
    for group in (QKV, GATE_UP):
        assert group.norm is not None
        inputs, norm = seen[group], view.weight(group.norm)
        weights = [view.weight(module) for module in group.modules]
        errors = {}
        for alpha in ALPHAS:
            scales = smoothing_scales(inputs.abs().amax(0), weights, alpha)
            rounded = rounded_input(inputs / scales, ActivationFormat(8)).double()
            for weight in weights:
                columns = round_to_nearest(weight * scales, integer_scheme(automatic)).dequantize()
                error = rounded @ columns.double().T - inputs.double() @ weight.double().T
                errors[alpha] = errors.get(alpha, 0.0) + float(error.square().sum())
        best = smoothing_scales(
            inputs.abs().amax(0), weights, min(ALPHAS, key=lambda alpha: errors[alpha])
        )
        assert torch.equal(done.dense[view.name(group.norm)], norm / best)


def test_inputs_are_rounded_where_the_method_says_so(llama: Opened) -> None:
    checkpoint = llama[1]
    weights_only = settings_of(checkpoint, "rtn", bits=8, group_size=-1, symmetric=True)
    both = settings_of(checkpoint, "rtn", bits=8, group_size=-1, symmetric=True, activation_bits=8)
    alone, rounded = (quantize_model(checkpoint, one) for one in (weights_only, both))
    name = "model.layers.0.mlp.up_proj.weight"
    assert alone.activation_format(name) is None
    assert rounded.activation_format(name) == ActivationFormat(8)
    assert rounded.activation_format("lm_head.weight") is None
    assert not torch.equal(logits(alone), logits(rounded))


@pytest.mark.parametrize("method", ["gptq", "awq", "smoothquant"])
def test_a_run_that_was_interrupted_goes_on_to_the_same_bits(
    llama: Opened, tmp_path: Path, method: str
) -> None:
    checkpoint = llama[1]
    settings = settings_of(checkpoint, method)
    at_once = quantize_model(checkpoint, settings, SEQUENCES)

    def interrupt(done: int, total: int, what: str) -> None:
        if done == 2:
            raise KeyboardInterrupt

    partial = PartialFolder.open(tmp_path / "p", {"a": 1})
    with pytest.raises(KeyboardInterrupt):
        quantize_model(checkpoint, settings, SEQUENCES, partial=partial, progress=interrupt)
    again = PartialFolder.open(tmp_path / "p", {"a": 1})
    assert again.num_layers == 2
    resumed = quantize_model(checkpoint, settings, SEQUENCES, partial=again)
    assert list(resumed.weights) == list(at_once.weights)
    assert all(same(resumed.weights[name], at_once.weights[name]) for name in at_once.weights)
    assert resumed.dense.keys() == at_once.dense.keys()
    assert all(torch.equal(resumed.dense[name], at_once.dense[name]) for name in at_once.dense)


def test_only_one_layer_is_held_while_layers_are_kept(llama: Opened, tmp_path: Path) -> None:
    checkpoint = llama[1]
    partial = PartialFolder.open(tmp_path / "p", {})
    quantized = quantize_model(checkpoint, settings_of(checkpoint, "rtn"), partial=partial)
    name = "model.layers.1.mlp.up_proj.weight"
    assert quantized.weights[name] is not quantized.weights[name]  # read anew, not held


def test_runs_with_one_seed_are_the_same_and_with_another_not(llama: Opened) -> None:
    checkpoint = llama[1]
    runs = [
        quantize_model(checkpoint, settings_of(checkpoint, "rotation", seed=seed))
        for seed in (0, 0, 1)
    ]
    name = "model.layers.0.mlp.up_proj.weight"
    codes = [run.weights[name].codes for run in runs]
    assert torch.equal(codes[0], codes[1])
    assert not torch.equal(codes[0], codes[2])


def test_weights_that_are_no_numbers_are_named(tmp_path: Path) -> None:
    tiny_model(tmp_path)
    tensors = load_file(tmp_path / "model.safetensors")
    name = "model.layers.2.self_attn.o_proj.weight"
    tensors[name][3, 4] = float("nan")
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    checkpoint = open_checkpoint(tmp_path)
    with pytest.raises(ModelLoadError, match=f"{name}' has 1 numbers that are NaN or infinite"):
        quantize_model(checkpoint, settings_of(checkpoint, "rtn"))


def test_an_unfinished_run_with_other_settings_is_refused(tmp_path: Path) -> None:
    PartialFolder.open(tmp_path / "p", {"model": "a", "settings": {"bits": 4}})
    PartialFolder.open(tmp_path / "p", {"model": "a", "settings": {"bits": 4}})
    with pytest.raises(UsageError, match="unfinished run with another settings: give the same"):
        PartialFolder.open(tmp_path / "p", {"model": "a", "settings": {"bits": 3}})
    with pytest.raises(UsageError, match="with another model, settings"):
        PartialFolder.open(tmp_path / "p", {"model": "b", "settings": {"bits": 3}})
    (tmp_path / "q").mkdir()
    with pytest.raises(UsageError, match="q is in the way and no unfinished run"):
        PartialFolder.open(tmp_path / "q", {})
