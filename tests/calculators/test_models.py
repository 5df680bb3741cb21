"""Parameter counts are exact: against published counts, and against transformers' own modules."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from infra_lab.calculators.checks import divisors
from infra_lab.calculators.model_table import MODELS, model
from infra_lab.calculators.models import Experts, Model, custom_model
from infra_lab.calculators.parameters import (
    active_linear_parameters,
    expert_parameters,
    head_parameters,
    linear_parameters,
    num_active_parameters,
    num_parameters,
    parameter_counts,
)
from infra_lab.errors import UsageError

# As the model cards' weight files have them, or the papers to the digits they give.
PUBLISHED = {
    "smollm2-135m": 134_515_008,
    "llama-2-7b": 6_738_415_616,
    "llama-2-13b": 13_015_864_320,
    "llama-2-70b": 68_976_648_192,
    "llama-3-8b": 8_030_261_248,
    "llama-3-70b": 70_553_706_496,
    "llama-3.1-405b": 405_853_388_800,
    "mistral-7b": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "qwen2-72b": 72_706_203_648,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-0.6b": 596_049_920,
    "qwen3-8b": 8_190_735_360,
    "qwen3-30b-a3b": 30_532_122_624,
}
ROUNDED = {  # billions, as their papers say them: (all, active), to within half of the last digit
    "deepseek-v2": ((236, 0.5), (21, 0.5)),
    "deepseek-v3": ((671, 0.5), (37, 0.6)),
    "mixtral-8x7b": ((47, 0.5), (13, 0.5)),
    "qwen3-235b-a22b": ((235, 0.5), (22, 0.5)),
    "gpt-3": ((174.6, 0.05), (174.6, 0.05)),  # appendix D: 174,600 millions
    "opt-13b": ((13, 0.5), (13, 0.5)),
    "qwen1.5-72b": ((72.3, 0.05), (72.3, 0.05)),
}

shapes = st.builds(
    custom_model,
    num_layers=st.integers(1, 100),
    num_query_heads=st.just(8),
    num_kv_heads=st.sampled_from([1, 2, 4, 8]),
    head_dim=st.sampled_from([32, 64, 128]),
    intermediate_size=st.integers(1, 10_000),
    vocab_size=st.integers(1, 100_000),
)


@pytest.mark.parametrize("name", PUBLISHED)
def test_the_count_is_the_published_one(name: str) -> None:
    assert num_parameters(model(name)) == PUBLISHED[name]


@pytest.mark.parametrize("name", ROUNDED)
def test_the_count_rounds_to_what_the_paper_says(name: str) -> None:
    (total, total_error), (active, active_error) = ROUNDED[name]
    assert abs(num_parameters(model(name)) / 1e9 - total) <= total_error
    assert abs(num_active_parameters(model(name)) / 1e9 - active) <= active_error


def test_the_count_of_the_default_model_is_the_engines_own() -> None:
    from infra_lab.models.config import ModelConfig
    from infra_lab.models.parameters import num_parameters as engine_count

    shape = model("smollm2-135m")
    config = ModelConfig(
        architecture="llama",
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        intermediate_size=shape.intermediate_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_query_heads,
        num_key_value_heads=shape.num_kv_heads,
        head_dim=shape.head_dim,
        max_position_embeddings=shape.max_context,
        rms_norm_eps=1e-5,
        rope_theta=1e5,
        tie_word_embeddings=True,
    )
    assert num_parameters(shape) == engine_count(config) == 134_515_008


def transformers_config(shape: Model) -> object:
    """The same shape as transformers takes it."""
    import transformers as hf

    common = {
        "vocab_size": shape.vocab_size,
        "hidden_size": shape.hidden_size,
        "intermediate_size": shape.intermediate_size,
        "num_hidden_layers": shape.num_layers,
        "num_attention_heads": shape.num_query_heads,
        "num_key_value_heads": shape.num_kv_heads,
        "tie_word_embeddings": shape.tied_embeddings,
    }
    experts, latent = shape.experts, shape.latent
    if shape.name == "opt-13b":
        return hf.OPTConfig(
            vocab_size=shape.vocab_size,
            hidden_size=shape.hidden_size,
            word_embed_proj_dim=shape.hidden_size,
            ffn_dim=shape.intermediate_size,
            num_hidden_layers=shape.num_layers,
            num_attention_heads=shape.num_query_heads,
        )
    if shape.name == "gpt-3":
        return hf.GPT2Config(
            vocab_size=shape.vocab_size,
            n_embd=shape.hidden_size,
            n_layer=shape.num_layers,
            n_head=shape.num_query_heads,
            n_positions=shape.learned_positions,
        )
    if latent is not None and experts is not None:
        kind = hf.DeepseekV2Config if shape.name == "deepseek-v2" else hf.DeepseekV3Config
        return kind(
            **common,
            moe_intermediate_size=experts.intermediate_size,
            n_routed_experts=experts.num_experts,
            n_shared_experts=experts.num_shared,
            num_experts_per_tok=experts.num_active,
            first_k_dense_replace=experts.num_dense_layers,
            q_lora_rank=latent.query_rank,
            kv_lora_rank=latent.kv_rank,
            qk_nope_head_dim=latent.nope_dim,
            qk_rope_head_dim=latent.rope_dim,
            v_head_dim=latent.value_dim,
        )
    if shape.name == "mixtral-8x7b":
        return hf.MixtralConfig(**common)
    if experts is not None:
        return hf.Qwen3MoeConfig(
            **common,
            head_dim=shape.head_dim,
            num_experts=experts.num_experts,
            num_experts_per_tok=experts.num_active,
            moe_intermediate_size=experts.intermediate_size,
        )
    if shape.qk_norm:
        return hf.Qwen3Config(**common, head_dim=shape.head_dim)
    return hf.Qwen2Config(**common) if shape.qkv_bias else hf.LlamaConfig(**common)


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_the_count_is_that_of_transformers_modules(name: str) -> None:
    import torch
    import transformers as hf

    config = transformers_config(model(name))
    with torch.device("meta"):
        built = hf.AutoModelForCausalLM.from_config(config)
    assert num_parameters(model(name)) == sum(one.numel() for one in built.parameters())


def test_experts_that_a_token_does_not_meet_are_all_that_is_inactive() -> None:
    mixtral = model("mixtral-8x7b")
    idle = 6 * 32 * expert_parameters(mixtral)
    assert expert_parameters(mixtral) == 3 * 4096 * 14336
    assert num_active_parameters(mixtral) == num_parameters(mixtral) - idle


def test_a_dense_model_is_all_active() -> None:
    llama = model("llama-3-8b")
    assert num_active_parameters(llama) == num_parameters(llama)
    assert active_linear_parameters(llama) == linear_parameters(llama)


def test_tied_embeddings_count_once_and_are_still_multiplied() -> None:
    tied = model("smollm2-135m")
    untied = replace(tied, tied_embeddings=False)
    assert num_parameters(untied) - num_parameters(tied) == 49152 * 576 == head_parameters(tied)


@given(shapes)
def test_the_parts_add_up_and_each_layer_costs_the_same(shape: Model) -> None:
    counts = parameter_counts(shape)
    more = parameter_counts(replace(shape, num_layers=shape.num_layers + 1))
    twice = parameter_counts(replace(shape, num_layers=shape.num_layers + 2))
    assert counts.total == num_parameters(shape)
    assert twice.total - more.total == more.total - counts.total > 0


@given(shapes)
def test_fewer_kv_heads_are_fewer_parameters(shape: Model) -> None:
    most = replace(shape, num_kv_heads=shape.num_query_heads)
    saved = 2 * (8 - shape.num_kv_heads) * shape.head_dim * shape.hidden_size * shape.num_layers
    assert num_parameters(most) - num_parameters(shape) == saved


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("llama-2-13b", "MHA"),
        ("llama-2-70b", "GQA"),
        ("qwen1.5-72b", "MHA"),
        ("qwen2-72b", "GQA"),
        ("deepseek-v3", "MLA"),
    ],
)
def test_the_kind_of_attention_is_named(name: str, kind: str) -> None:
    assert model(name).attention_kind == kind


def test_one_kv_head_is_multi_query_attention() -> None:
    assert custom_model(1, 8, 1, 64).attention_kind == "MQA"


def test_an_unknown_model_is_answered_with_near_names() -> None:
    with pytest.raises(
        UsageError, match=r"no model is called 'llama2-70b': did you mean llama-2-70b"
    ):
        model("llama2-70b")


def test_every_model_says_where_its_numbers_are_from() -> None:
    assert [one.name for one in MODELS.values() if not one.source] == []


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"num_layers": 0}, "num_layers must be at least 1, not 0"),
        ({"num_kv_heads": 3}, "num_kv_heads 3 does not divide num_query_heads 8"),
        ({"head_dim": -1}, "must be at least 1"),
        ({"num_layers": 1.5}, "num_layers must be a whole number, not 1.5"),
    ],
)
def test_a_shape_that_cannot_be_is_refused(arguments: dict[str, int], message: str) -> None:
    numbers = {"num_layers": 2, "num_query_heads": 8, "num_kv_heads": 8, "head_dim": 64}
    with pytest.raises(UsageError, match=message):
        custom_model(**{**numbers, **arguments})


@given(st.integers(1, 5000))
def test_divisors_are_all_that_divide(value: int) -> None:
    assert divisors(value) == [one for one in range(1, value + 1) if value % one == 0]


def test_more_active_experts_than_there_are_is_refused() -> None:
    with pytest.raises(UsageError, match="9 active experts of 8"):
        replace(
            model("mixtral-8x7b"),
            experts=Experts(num_experts=8, num_active=9, intermediate_size=1),
        )
