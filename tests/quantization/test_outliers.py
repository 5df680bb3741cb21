"""Outliers that change nothing but what rounding activations costs, and the cure."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from infra_lab.errors import UsageError
from infra_lab.models.checkpoint import Checkpoint
from infra_lab.models.loader import open_checkpoint
from infra_lab.quantization.evaluate import TextModel
from infra_lab.quantization.layer_stream import LayerStream
from infra_lab.quantization.modules import GATE_UP, QKV, LinearGroup
from infra_lab.quantization.outliers import with_planted_outliers
from infra_lab.quantization.quantize import quantize_model
from infra_lab.quantization.settings import choose_settings
from tests.quantization.tiny_models import tiny_model, token_ids

SEQUENCES = torch.tensor(token_ids(6 * 40, seed=1)).view(6, 40)
TOKENS = token_ids(60, seed=2)


def logits(checkpoint: Checkpoint) -> torch.Tensor:
    model = TextModel.load(checkpoint, len(TOKENS))
    return model.model.logits(model.hidden(TOKENS))


def test_planted_outliers_leave_the_output_and_are_there(tmp_path: Path) -> None:
    tiny_model(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    planted = with_planted_outliers(checkpoint, 256)
    torch.testing.assert_close(logits(planted), logits(checkpoint), rtol=1e-5, atol=1e-5)
    seen: list[dict[LinearGroup, torch.Tensor]] = [{}, {}]
    for one, inputs in zip((checkpoint, planted), seen, strict=True):
        stream = LayerStream(one, SEQUENCES)
        stream.visit(one, lambda group, x, inputs=inputs: inputs.update({group: x.clone()}))
    for group in (QKV, GATE_UP):
        growth = (seen[1][group] / seen[0][group]).nanmedian(0).values
        torch.testing.assert_close(growth.sort().values[-2:], torch.tensor([1.0, 256.0]))


def test_they_ruin_plain_rounding_of_inputs_and_smoothing_cures_it(tmp_path: Path) -> None:
    tiny_model(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    planted = with_planted_outliers(checkpoint, 256)
    reference = logits(checkpoint)
    w8a8 = {"bits": 8, "activation_bits": 8, "group_size": -1, "symmetric": True}

    def error(method: str, model: Checkpoint) -> float:
        settings = choose_settings(method, checkpoint.config, w8a8)
        found = logits(quantize_model(model, settings, SEQUENCES))
        return float((found - reference).norm() / reference.norm())

    plain, ruined = error("rtn", checkpoint), error("rtn", planted)
    cured = error("smoothquant", planted)
    assert ruined > 5 * plain
    assert cured < 1.5 * plain


@pytest.mark.parametrize("factor", [1.0, 0.5, 100.0, float("inf"), float("nan"), -2.0])
def test_a_factor_that_would_round_is_refused(tmp_path: Path, factor: float) -> None:
    tiny_model(tmp_path)
    with pytest.raises(UsageError, match="a power of two"):
        with_planted_outliers(open_checkpoint(tmp_path), factor)
