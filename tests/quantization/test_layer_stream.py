"""Calibration layer by layer, against transformers' whole model and hooks on its modules."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import torch

from infra_lab.models.loader import open_checkpoint
from infra_lab.quantization.layer_stream import LayerStream
from infra_lab.quantization.modules import GROUPS, LinearGroup
from tests.quantization.tiny_models import tiny_model, token_ids

SEQUENCES = torch.tensor(token_ids(3 * 20)).view(3, 20)


@pytest.mark.parametrize("family", ["llama", "qwen2"])
def test_the_stream_is_the_models_own_between_any_two_layers(tmp_path: Path, family: str) -> None:
    theirs = tiny_model(tmp_path, family)
    checkpoint = open_checkpoint(tmp_path)
    with torch.no_grad():
        states = theirs(SEQUENCES, output_hidden_states=True).hidden_states
    stream = LayerStream(checkpoint, SEQUENCES)
    # The last of theirs is normed.
    for layer in range(3):
        assert stream.layer == layer
        torch.testing.assert_close(
            stream.hidden.view(3, 20, 64), states[layer], rtol=1e-4, atol=1e-4
        )
        stream.advance(checkpoint)
    normed = theirs.model.norm(stream.hidden.view(3, 20, 64))
    torch.testing.assert_close(normed, states[3], rtol=1e-4, atol=1e-4)


def test_every_group_is_shown_its_input_and_the_stream_stays(tmp_path: Path) -> None:
    theirs = tiny_model(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    seen: dict[str, torch.Tensor] = {}

    def keep(module: torch.nn.Module, inputs: tuple[torch.Tensor, ...], name: str) -> None:
        seen[name] = inputs[0].flatten(0, 1)

    for name, module in theirs.model.layers[1].named_modules():
        if name.endswith("_proj"):
            module.register_forward_pre_hook(partial(keep, name=name))
    with torch.no_grad():
        theirs(SEQUENCES)
    stream = LayerStream(checkpoint, SEQUENCES)
    stream.advance(checkpoint)
    before = stream.hidden.clone()
    order: list[LinearGroup] = []

    def visit(group: LinearGroup, inputs: torch.Tensor) -> None:
        order.append(group)
        for module in group.modules:
            torch.testing.assert_close(inputs, seen[module], rtol=1e-4, atol=1e-4)

    stream.visit(checkpoint, visit)
    assert tuple(order) == GROUPS
    assert torch.equal(stream.hidden, before)
    assert stream.layer == 1


def test_a_visitors_layer_takes_the_place_of_the_one_it_saw(tmp_path: Path) -> None:
    tiny_model(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    stream = LayerStream(checkpoint, SEQUENCES)
    inputs: dict[str, torch.Tensor] = {}

    class Zero:
        def __init__(self, out_features: int) -> None:
            self.in_features, self.out_features = 0, out_features

        def __call__(self, x: torch.Tensor) -> torch.Tensor:
            return x.new_zeros(x.shape[0], self.out_features)

        def rows(self, indices: torch.Tensor) -> torch.Tensor:
            raise NotImplementedError

    def visit(group: LinearGroup, x: torch.Tensor) -> Zero | None:
        inputs[group.layer] = x
        return Zero(128) if group.layer == "qkv" else None

    stream.visit(checkpoint, visit)
    assert not inputs["output"].any()
    assert inputs["gate_up"].any()


def test_sequences_do_not_see_each_other(tmp_path: Path) -> None:
    tiny_model(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    together, alone = LayerStream(checkpoint, SEQUENCES), LayerStream(checkpoint, SEQUENCES[1:2])
    for stream in (together, alone):
        stream.advance(checkpoint)
    torch.testing.assert_close(
        together.hidden.view(3, 20, 64)[1], alone.hidden, rtol=1e-5, atol=1e-5
    )
