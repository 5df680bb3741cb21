"""Perplexity, KL divergence and agreement, against transformers in float64."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest
import torch

from infra_lab.attention.whole_sequence_backend import WholeSequenceBackend
from infra_lab.errors import ModelLoadError, UsageError
from infra_lab.models.loader import open_checkpoint
from infra_lab.quantization.evaluate import (
    DEFAULT_WINDOW,
    ReferenceText,
    TextModel,
    checked_windows,
    evaluate,
)
from infra_lab.quantization.overlay import OverlayCheckpoint
from tests.quantization.tiny_models import CONTEXT, tiny_model, token_ids

TOKENS = token_ids(150)


@pytest.mark.parametrize("window", [2, 7, 50, 96])
@pytest.mark.parametrize(
    ("family", "changes"),
    [
        ("llama", {"tie_word_embeddings": True}),
        ("mistral", {"sliding_window": 5}),
        ("qwen2", {}),
    ],
)
def test_perplexity_is_that_of_transformers_window_by_window(
    tmp_path: Path, window: int, family: str, changes: dict[str, object]
) -> None:
    theirs = tiny_model(tmp_path, family, **changes).double()
    windows = checked_windows(TOKENS, window, open_checkpoint(tmp_path).config)
    nll = [
        -theirs(torch.tensor([piece]))
        .logits[0, :-1]
        .log_softmax(-1)[range(len(piece) - 1), piece[1:]]
        for piece in windows
    ]
    ours = evaluate(TextModel.load(open_checkpoint(tmp_path), window), windows).likelihood
    expected = torch.cat(nll)
    assert len(ours.logprobs) == len(expected)
    assert ours.perplexity == pytest.approx(math.exp(float(expected.detach().mean())), rel=1e-5)


def test_divergence_and_agreement_are_those_of_the_whole_distributions(tmp_path: Path) -> None:
    reference, model = tiny_model(tmp_path).double(), tiny_model(tmp_path).double()
    checkpoint = open_checkpoint(tmp_path)
    name = "model.layers.1.mlp.down_proj.weight"
    changed = checkpoint.tensor(name, torch.float32).roll(1, 0)
    model.get_parameter(name).data.copy_(changed)
    windows = checked_windows(TOKENS, 60, checkpoint.config)
    divergence, agreed = [], []
    for piece in windows:
        p, q = (
            one(torch.tensor([piece])).logits[0, :-1].log_softmax(-1) for one in (reference, model)
        )
        divergence.append((p.exp() * (p - q)).sum(-1))
        agreed.append((p.argmax(-1) == q.argmax(-1)).double())
    said = ReferenceText(TextModel.load(checkpoint, 60), windows)
    other = OverlayCheckpoint(checkpoint, dense={name: changed})
    quality = evaluate(TextModel.load(other, 60), windows, said)
    assert quality.kl_divergence == pytest.approx(
        float(torch.cat(divergence).detach().mean()), rel=1e-5
    )
    assert quality.top1_agreement == pytest.approx(float(torch.cat(agreed).mean()))
    assert 0 < quality.top1_agreement < 1


def test_a_model_agrees_with_itself(tmp_path: Path) -> None:
    tiny_model(tmp_path, num_hidden_layers=1)
    model = TextModel.load(open_checkpoint(tmp_path), 60)
    windows = checked_windows(TOKENS, 60, model.model.config)
    quality = evaluate(model, windows, ReferenceText(model, windows))
    assert (quality.kl_divergence, quality.top1_agreement) == (0.0, 1.0)


def test_windows_are_read_through_the_backend_that_is_given(tmp_path: Path) -> None:
    tiny_model(tmp_path)
    model = TextModel.load(open_checkpoint(tmp_path), 60).model
    shape, seen = model.attention_shape, []

    class Watching(WholeSequenceBackend):
        def forward(self, query: torch.Tensor, *others: Any, **named: Any) -> None:
            seen.append(len(query))
            super().forward(query, *others, **named)

    watched = TextModel(model, Watching(shape)).hidden(TOKENS[:60])
    assert torch.equal(watched, TextModel(model).hidden(TOKENS[:60]))
    assert seen == [60] * len(model.layers)


def test_progress_counts_windows(tmp_path: Path) -> None:
    tiny_model(tmp_path)
    model = TextModel.load(open_checkpoint(tmp_path), 60)
    told: list[tuple[int, int]] = []
    evaluate(
        model, checked_windows(TOKENS, 60, model.model.config), None, lambda *n: told.append(n)
    )
    assert told == [(1, 3), (2, 3), (3, 3)]


def test_an_output_that_is_no_number_is_no_perplexity(tmp_path: Path) -> None:
    tiny_model(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    norm = torch.full((64,), float("nan"))
    broken = OverlayCheckpoint(checkpoint, dense={"model.norm.weight": norm})
    windows = checked_windows(TOKENS, 60, checkpoint.config)
    with pytest.raises(ModelLoadError, match="gives scored token 0 no probability"):
        evaluate(TextModel.load(broken, 60), windows)


def test_a_window_is_the_context_at_most(tmp_path: Path) -> None:
    tiny_model(tmp_path)
    config = open_checkpoint(tmp_path).config
    assert max(map(len, checked_windows(TOKENS, None, config))) == CONTEXT < DEFAULT_WINDOW
    with pytest.raises(UsageError, match=f"window of 97 tokens does not fit .* of {CONTEXT}"):
        checked_windows(TOKENS, 97, config)
    with pytest.raises(UsageError, match="a text of 1 tokens in windows of 96 predicts nothing"):
        checked_windows(TOKENS[:1], None, config)


def test_an_overlay_has_its_own_tensors_before_those_below(tmp_path: Path) -> None:
    tiny_model(tmp_path)
    base = open_checkpoint(tmp_path)
    norm = torch.full((64,), 2.0)
    overlay = OverlayCheckpoint(base, dense={"model.norm.weight": norm})
    out = torch.empty(64)
    assert torch.equal(overlay.tensor("model.norm.weight", torch.float32), norm)
    assert torch.equal(overlay.tensor("model.norm.weight", torch.float32, out), norm)
    assert overlay.names() == base.names()
    name = "model.layers.0.mlp.up_proj.weight"
    assert torch.equal(overlay.tensor(name, torch.float32), base.tensor(name, torch.float32))
    assert overlay.quantized(name) is None
