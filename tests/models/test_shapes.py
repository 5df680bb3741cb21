from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from infra_lab.errors import ModelLoadError
from infra_lab.models.parameters import num_parameters
from infra_lab.models.shapes import check_shapes, optional_shapes, parameter_shapes

CHECKPOINT = Path("model")


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
@pytest.mark.parametrize("tied", [True, False])
def test_the_shapes_add_up_to_the_number_of_parameters(family: str, tied: bool, tiny: Any) -> None:
    config = tiny.config(family, tie_word_embeddings=tied)
    total = sum(math.prod(shape) for shape in parameter_shapes(config).values())
    assert total == num_parameters(config)


def test_an_output_bias_is_taken_where_the_checkpoint_has_it(tiny: Any) -> None:
    config = tiny.config("llama", attention_bias=True)
    found = parameter_shapes(config)
    assert check_shapes(config, found, (), CHECKPOINT) == list(found)
    with_output_bias = found | optional_shapes(config)
    assert set(check_shapes(config, with_output_bias, (), CHECKPOINT)) == set(with_output_bias)


def test_ignored_names_are_passed_over_and_others_refused(tiny: Any) -> None:
    config = tiny.config("llama")
    found = parameter_shapes(config) | {"model.layers.0.self_attn.rotary_emb.inv_freq": (8,)}
    names = check_shapes(config, found, ["rotary_emb.inv_freq"], CHECKPOINT)
    assert set(names) == set(parameter_shapes(config))
    with pytest.raises(ModelLoadError, match=r"rotary_emb\.inv_freq' has no place"):
        check_shapes(config, found, (), CHECKPOINT)
