"""The exported folder: config.json says what our ModelConfig says, and is there whole or not."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from infra_lab.bench import export
from infra_lab.bench.export import hugging_face_config, hugging_face_folder
from infra_lab.errors import ModelLoadError, ModelNotFoundError
from infra_lab.models.config import ModelConfig, RopeScaling
from infra_lab.models.loader import read_config

CONFIG = ModelConfig(
    architecture="llama",
    vocab_size=32,
    hidden_size=8,
    intermediate_size=16,
    num_hidden_layers=1,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=4,
    max_position_embeddings=64,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
    bos_token_id=1,
    eos_token_ids=(2,),
)
LINEAR = RopeScaling(kind="linear", factor=2.0)
LLAMA3 = RopeScaling("llama3", 8.0, 1.0, 4.0, 32)


@pytest.mark.parametrize(
    "config",
    [
        CONFIG,
        replace(CONFIG, tie_word_embeddings=True, rope_scaling=LINEAR),
        replace(CONFIG, rope_scaling=LLAMA3, eos_token_ids=(2, 3)),
        replace(CONFIG, architecture="mistral", sliding_window=16),
        replace(CONFIG, architecture="qwen2", attention_bias=True),
        replace(CONFIG, architecture="qwen3", qk_norm=True),
    ],
)
def test_a_config_written_out_reads_back_equal(config: ModelConfig, tmp_path: Path) -> None:
    text = json.dumps(hugging_face_config(config))
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    assert read_config(tmp_path) == config


def test_a_folder_is_used_as_it_is(tmp_path: Path) -> None:
    assert hugging_face_folder(tmp_path, tmp_path / "cache") == tmp_path


def test_an_export_that_fails_leaves_nothing(tmp_path: Path) -> None:
    damaged = tmp_path / "model.gguf"
    damaged.write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(ModelLoadError):
        hugging_face_folder(damaged, tmp_path / "cache")
    assert list((tmp_path / "cache").rglob("*.json")) == []


@pytest.mark.model
def test_the_default_models_export_has_the_very_weights_we_compute_with(tmp_path: Path) -> None:
    import torch

    from infra_lab.models.loader import open_checkpoint
    from infra_lab.models.store import resolve

    try:
        path = resolve("smollm2-135m")
    except ModelNotFoundError as error:
        pytest.skip(str(error))
    folder = hugging_face_folder(path, tmp_path)
    ours, exported = open_checkpoint(path), open_checkpoint(folder)
    assert exported.config == replace(ours.config, dtype="float32")
    assert sorted(exported.names()) == sorted(ours.names())
    for name in ("model.norm.weight", "model.layers.7.self_attn.q_proj.weight"):
        same = torch.equal(exported.tensor(name, torch.float32), ours.tensor(name, torch.float32))
        assert same, name
    assert (folder / "tokenizer.json").is_file()


def test_an_export_is_made_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Path] = []

    def make(path: Path, folder: Path) -> None:
        made.append(folder)
        folder.mkdir(parents=True)

    monkeypatch.setattr(export, "export_folder", make)
    model = tmp_path / "model.gguf"
    model.write_bytes(b"first")
    first = hugging_face_folder(model, tmp_path)
    assert hugging_face_folder(model, tmp_path) == first
    model.write_bytes(b"another file of another size")
    second = hugging_face_folder(model, tmp_path)
    assert made == [first, second]
    assert first != second
