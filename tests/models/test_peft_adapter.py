"""PEFT folders: read as peft reads them, or refused with the reason."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from infra_lab.errors import ModelLoadError, ModelNotFoundError
from infra_lab.models.config import ModelConfig
from infra_lab.models.loader import read_config
from infra_lab.models.peft_adapter import PRODUCTS, read_adapter
from tests.models.lora_helpers import save_adapter, save_tiny_model

MODULES = ["q_proj", "v_proj", "up_proj"]
A0 = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_model(tmp_path_factory.mktemp("base"))


@pytest.fixture(scope="module")
def config(base: Path) -> ModelConfig:
    return read_config(base)


@pytest.fixture(scope="module")
def whole(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_adapter(base, tmp_path_factory.mktemp("adapter"), r=4, target_modules=MODULES)


@pytest.fixture
def adapter(whole: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return Path(shutil.copytree(whole, tmp_path / "copy"))


def change_config(folder: Path, **values: Any) -> None:
    path = folder / "adapter_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def change_tensors(folder: Path, change: Callable[[dict[str, torch.Tensor]], object]) -> None:
    path = folder / "adapter_model.safetensors"
    tensors = load_file(path)
    change(tensors)
    save_file(tensors, path)


@pytest.mark.parametrize("is_stabilised", [False, True])
def test_the_fused_product_is_the_sum_of_the_modules_own(
    adapter: Path, config: ModelConfig, is_stabilised: bool
) -> None:
    change_config(adapter, lora_alpha=6, use_rslora=is_stabilised)
    scaling = 6 / (math.sqrt(4) if is_stabilised else 4)
    read = read_adapter(adapter, config, 64)
    tensors = load_file(adapter / "adapter_model.safetensors")
    hidden, head_dim = config.hidden_size, config.head_dim
    sizes = {
        "q_proj": config.num_attention_heads * head_dim,
        "k_proj": config.num_key_value_heads * head_dim,
        "v_proj": config.num_key_value_heads * head_dim,
        "gate_proj": config.intermediate_size,
        "up_proj": config.intermediate_size,
    }
    assert [sorted(layer) for layer in read.layers] == [["gate_up", "qkv"]] * 2
    for index, layer in enumerate(read.layers):
        for product, low_rank in layer.items():
            parts = []
            for module in PRODUCTS[product]:
                stem = f"base_model.model.model.layers.{index}.{module}"
                short = module.rpartition(".")[2]
                if short in MODULES:
                    a, b = (tensors[f"{stem}.lora_{side}.weight"] for side in "AB")
                    parts.append(scaling * (b @ a))
                else:
                    parts.append(torch.zeros(sizes[short], hidden))
            torch.testing.assert_close(low_rank.expand @ low_rank.shrink, torch.cat(parts))


def test_a_digest_names_what_an_adapter_computes(
    adapter: Path, whole: Path, config: ModelConfig
) -> None:
    first = read_adapter(whole, config, 64).digest
    assert read_adapter(adapter, config, 64).digest == first
    change_tensors(adapter, lambda tensors: tensors[A0].mul_(2))
    changed = read_adapter(adapter, config, 64).digest
    assert changed != first
    change_config(adapter, lora_alpha=5)
    assert read_adapter(adapter, config, 64).digest not in (first, changed)


@pytest.mark.parametrize(
    ("values", "said"),
    [
        ({"peft_type": "LOHA"}, "only LORA"),
        ({"use_dora": True}, "use_dora is True: this option is not supported"),
        ({"bias": "all"}, "bias is 'all'"),
        ({"modules_to_save": ["lm_head"]}, "modules_to_save"),
        ({"rank_pattern": {"q_proj": 2}}, "rank_pattern"),
        ({"alpha_pattern": {"q_proj": 2}}, "alpha_pattern"),
        ({"fan_in_fan_out": True}, "fan_in_fan_out"),
        ({"lora_bias": True}, "lora_bias"),
        ({"trainable_token_indices": [1]}, "trainable_token_indices"),
        ({"layer_replication": [[0, 1]]}, "layer_replication"),
        ({"an_option_of_next_year": 1}, "an_option_of_next_year"),
        ({"init_lora_weights": "pissa"}, "changed the base model's weights"),
        ({"target_modules": ["q_proj", "lm_head"]}, "'lm_head' is not supported"),
        ({"target_modules": []}, "a list of modules"),
        ({"r": 65}, "above the limit of 64: raise max_lora_rank"),
        ({"r": 0}, "'r'"),
        ({"r": 8}, r"r = 8 ask for \[8, 32\]"),
        ({"lora_alpha": "x"}, "lora_alpha"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_options_that_would_be_computed_wrongly_are_refused_by_name(
    adapter: Path, config: ModelConfig, values: dict[str, Any], said: str
) -> None:
    change_config(adapter, **values)
    with pytest.raises(ModelLoadError, match=said):
        read_adapter(adapter, config, 64)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda t: t.pop(A0), "lacks the other half"),
        (lambda t: t.clear(), "nothing to add"),
        (lambda t: t.update({A0: t[A0][:, 1:].contiguous()}), "made for another model"),
        (lambda t: t.update({A0.replace("layers.0", "layers.9"): t.pop(A0)}), "no place"),
        (lambda t: t.update({A0.replace("lora_A", "lora_magnitude"): t.pop(A0)}), "no place"),
        (lambda t: t.update({"base_model.model.lm_head.lora_A.weight": t.pop(A0)}), "no place"),
        (lambda t: t.update({A0: t[A0].to(torch.int32)}), "type I32"),
    ],
)
def test_tensors_that_do_not_fit_the_model_are_refused(
    adapter: Path, config: ModelConfig, change: Callable[..., object], said: str
) -> None:
    change_tensors(adapter, change)
    with pytest.raises(ModelLoadError, match=said):
        read_adapter(adapter, config, 64)


def test_missing_and_damaged_files_are_named(adapter: Path, config: ModelConfig) -> None:
    with pytest.raises(ModelNotFoundError, match="no such adapter folder"):
        read_adapter(adapter / "nowhere", config, 64)
    file = adapter / "adapter_model.safetensors"
    file.write_bytes(file.read_bytes()[:100])
    with pytest.raises(ModelLoadError, match="damaged"):
        read_adapter(adapter, config, 64)
    file.unlink()
    with pytest.raises(ModelLoadError, match="but no adapter_model"):
        read_adapter(adapter, config, 64)
    (adapter / "adapter_config.json").write_text("{")
    with pytest.raises(ModelLoadError, match="cannot be read as JSON"):
        read_adapter(adapter, config, 64)
    (adapter / "adapter_config.json").unlink()
    with pytest.raises(ModelLoadError, match="no such file"):
        read_adapter(adapter, config, 64)
