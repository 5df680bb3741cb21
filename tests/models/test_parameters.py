"""The parameter count from architecture numbers agrees with the list of tensors."""

from __future__ import annotations

from math import prod

from hypothesis import given
from hypothesis import strategies as st

from infra_lab.models.config import ModelConfig
from infra_lab.models.parameters import num_parameters
from infra_lab.models.shapes import optional_shapes, parameter_shapes


def config_with(architecture: str = "llama", **numbers: object) -> ModelConfig:
    values: dict[str, object] = {
        "vocab_size": 49_152,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "head_dim": 64,
        "max_position_embeddings": 8192,
        "rms_norm_eps": 1e-5,
        "rope_theta": 1e5,
        "tie_word_embeddings": True,
    }
    return ModelConfig(architecture=architecture, **{**values, **numbers})  # type: ignore[arg-type]


def test_smollm2_135m_has_the_parameters_its_name_promises() -> None:
    assert num_parameters(config_with()) == 134_515_008


sizes = st.integers(1, 8)


@given(
    st.builds(
        config_with,
        architecture=st.sampled_from(["llama", "mistral", "qwen2", "qwen3"]),
        vocab_size=sizes,
        hidden_size=sizes,
        intermediate_size=sizes,
        num_hidden_layers=st.integers(1, 3),
        num_attention_heads=sizes,
        num_key_value_heads=sizes,
        head_dim=sizes,
        tie_word_embeddings=st.booleans(),
        attention_bias=st.booleans(),
        mlp_bias=st.booleans(),
        qk_norm=st.booleans(),
    )
)
def test_the_count_equals_the_sum_over_all_tensors(config: ModelConfig) -> None:
    shapes = parameter_shapes(config)
    if config.architecture == "llama":
        shapes |= optional_shapes(config)
    assert num_parameters(config) == sum(prod(shape) for shape in shapes.values())
