"""Why rounding a rotated model to nearest loses more than rounding the model as it is."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from infra_lab.bench.export import hugging_face_folder
from infra_lab.models.loader import open_checkpoint
from infra_lab.models.tokenizer import load_tokenizer
from infra_lab.quantization.corpus import calibration_text
from infra_lab.quantization.distance import relative_error
from infra_lab.quantization.integer import IntegerScheme
from infra_lab.quantization.rotation import random_rotation
from infra_lab.quantization.rtn import round_to_nearest

pytestmark = [pytest.mark.slow, pytest.mark.model]
MEASURED = Path(__file__).resolve().parents[2] / "docs" / "measured" / "quantization.json"
NUM_TOKENS = 1024
JITTER = 0.03  # of the weights' standard deviation: off their file's grid, and little else


@pytest.fixture(scope="module")
def seen(smollm2_path: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    """What share of its output, and of its weight, gate_proj of each layer errs by in four bits."""
    folder = hugging_face_folder(smollm2_path, tmp_path_factory.mktemp("export"))
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    token_ids = load_tokenizer(open_checkpoint(smollm2_path)).encode(calibration_text())
    inputs: list[torch.Tensor] = []
    for layer in model.model.layers:
        layer.mlp.gate_proj.register_forward_pre_hook(lambda _, given: inputs.append(given[0][0]))
    with torch.no_grad():
        model(torch.tensor([token_ids[:NUM_TOKENS]]))
    generator = torch.Generator().manual_seed(0)
    rotation = random_rotation(model.config.hidden_size, generator)
    found: dict[str, list[float]] = {}
    for layer, given in zip(model.model.layers, inputs, strict=True):
        weight, x = layer.mlp.gate_proj.weight.detach().double(), given.double()
        norm = layer.post_attention_layernorm.weight.detach().double()
        noise = torch.randn(weight.shape, generator=generator, dtype=torch.float64)
        for name, w, put_in in (
            ("as it is", weight, x),
            ("off its grid", weight + JITTER * weight.std() * noise, x),
            ("norm folded in", weight * norm, x / norm),
            ("rotated", rotation.apply(weight * norm), rotation.apply(x / norm)),
        ):
            back = round_to_nearest(w, IntegerScheme(4, granularity=64)).dequantize()
            share = relative_error(put_in @ back.double().T, put_in @ w.T)
            found.setdefault(name, []).append(share)
            found.setdefault(f"{name}: weight", []).append(relative_error(back, w))
        before, behind = (x / norm).square().sum(0), x.square().sum(0)
        largest = before.topk(6).indices
        for name, energy in (("before the norm's weight", before), ("behind it", behind)):
            found.setdefault(name, []).append(float(energy[largest].sum() / energy.sum()))
    return found


def test_the_documented_shares_are_those_of_the_median_layer(seen: dict[str, list[float]]) -> None:
    measured = json.loads(MEASURED.read_text(encoding="utf-8"))["rotation_alone"]
    for name, share in (measured["output_error"] | measured["energy_of_six_channels"]).items():
        assert median(seen[name]) == pytest.approx(share, abs=5e-4)
    for name, share in measured["weight_error"].items():
        assert median(seen[f"{name}: weight"]) == pytest.approx(share, abs=5e-4)


def test_what_costs_is_the_norm_folded_in_and_not_the_rotation(
    seen: dict[str, list[float]],
) -> None:
    """Channels that the norm's weight made small err as much as others once it is in the matrix."""
    plain, folded = median(seen["as it is"]), median(seen["norm folded in"])
    assert folded > 1.4 * plain
    assert median(seen["rotated"]) == pytest.approx(folded, rel=0.1)
    assert median(seen["rotated: weight"]) < median(seen["as it is: weight"])


def test_the_grid_that_the_weights_come_from_is_not_the_reason(
    seen: dict[str, list[float]],
) -> None:
    assert median(seen["off its grid"]) == pytest.approx(median(seen["as it is"]), rel=0.02)
