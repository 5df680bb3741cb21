"""`infra-lab models`: what it prints, and what it says when there is nothing to print."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra_lab.cli.models import describe
from infra_lab.models.store import ModelStore

Run = Callable[..., Any]

CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 32,
    "hidden_size": 8,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "rope_theta": 10000.0,
    "tie_word_embeddings": True,
    "eos_token_id": [1, 2],
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    (path / "model.safetensors").write_bytes(b"x" * 1000)
    return path


def test_list_shows_the_default_model_and_that_it_is_not_here(
    run_command: Run, tmp_path: Path
) -> None:
    result = run_command("models", "list", "--cache-dir", str(tmp_path))
    assert result.status == 0
    assert "smollm2-135m" in result.out
    assert "missing" in result.out
    assert "\033" not in result.out


def test_list_as_json_is_json_and_nothing_else(run_command: Run, tmp_path: Path) -> None:
    (row,) = json.loads(run_command("models", "list", "--json", "--cache-dir", str(tmp_path)).out)
    assert row["name"] == "smollm2-135m"
    assert row["size_bytes"] == 98_362_432
    assert row["state"] == "missing"


def test_info_computes_kv_bytes_and_parameters_from_the_config(folder: Path) -> None:
    facts = describe("mine", folder, known=None)
    assert facts.kv_bytes_per_token_fp32 == 2 * 2 * 2 * 2 * 4  # K, V; layers; heads; dim; fp32
    assert facts.kv_bytes_per_token_bf16 == facts.kv_bytes_per_token_fp32 // 2
    assert facts.parameters == 32 * 8 + 2 * (8 * 16 + 8 * 8 + 3 * 8 * 16 + 2 * 8) + 8
    assert facts.eos_token_ids == [1, 2]
    assert facts.size_bytes == 1000


def test_info_of_a_folder_as_a_table_and_as_json_say_the_same(
    run_command: Run, folder: Path
) -> None:
    as_json = json.loads(run_command("models", "info", str(folder), "--json").out)
    table = run_command("models", "info", str(folder)).out
    assert f"{as_json['parameters']:,}" in table
    assert f"{as_json['kv_bytes_per_token_fp32']:,} bytes in fp32" in table
    assert str(folder) in table


def test_info_says_how_the_weights_are_stored(folder: Path) -> None:
    plain = describe("m", folder, known=None)
    assert plain.stored_as == "float32"
    assert plain.bits_per_parameter == round(8 * 1000 / plain.parameters, 3)
    quantization = {"quant_method": "gptq", "bits": 4, "group_size": 8, "desc_act": True}
    (folder / "config.json").write_text(json.dumps(CONFIG | {"quantization_config": quantization}))
    assert describe("m", folder, known=None).stored_as == "GPTQ int4, groups of 8, act-order"


@pytest.mark.model
def test_info_of_a_gguf_file_names_its_types(smollm2_path: Path) -> None:
    facts = describe("smollm2-135m", smollm2_path, known=None)
    assert facts.stored_as == "Q4_1, Q8_0, F32"
    assert 5 < facts.bits_per_parameter < 6


def test_info_of_a_model_that_is_not_here_says_how_to_get_it(
    run_command: Run, tmp_path: Path
) -> None:
    result = run_command("models", "info", "smollm2-135m", "--cache-dir", str(tmp_path))
    assert result.status == 1
    assert "infra-lab models pull smollm2-135m" in result.err


def test_pulling_an_unknown_name_says_which_are_known(run_command: Run, tmp_path: Path) -> None:
    result = run_command("models", "pull", "gpt-7", "--cache-dir", str(tmp_path))
    assert result.status == 1
    assert "smollm2-135m" in result.err


def test_verify_of_a_damaged_model_fails_and_names_the_mend(
    run_command: Run, tmp_path: Path
) -> None:
    store = ModelStore(tmp_path)
    path = store.path(store.known("smollm2-135m"))
    path.parent.mkdir(parents=True)
    path.write_bytes(b"GGUF")
    result = run_command("models", "verify", "smollm2-135m", "--cache-dir", str(tmp_path))
    assert result.status == 1
    assert "wrong size" in result.err
    assert "infra-lab models pull smollm2-135m" in result.err


@pytest.mark.model
def test_pull_has_nothing_to_say_when_asked_to_be_quiet_and_the_model_is_there(
    run_command: Run,
) -> None:
    store = ModelStore()
    if not store.path(store.known("smollm2-135m")).is_file():
        pytest.skip("not pulled: infra-lab models pull smollm2-135m")
    result = run_command("models", "pull", "smollm2-135m", "--quiet-if-present")
    assert (result.status, result.out, result.err) == (0, "", "")
