"""Hadamard's matrices, the rotations made of them, and a model that does not notice them."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infra_lab.errors import UsageError
from infra_lab.models.config import ModelConfig
from infra_lab.models.shapes import optional_shapes, parameter_shapes
from infra_lab.quantization.integer import IntegerScheme
from infra_lab.quantization.rotated_checkpoint import RotatedCheckpoint, by_heads
from infra_lab.quantization.rotation import (
    RandomHadamard,
    RandomOrthogonal,
    hadamard_matrix,
    hadamard_part,
    incoherence,
    random_rotation,
)
from infra_lab.quantization.rtn import round_to_nearest
from tests.quantization.inputs import SEEDS, random_weight

OFFERED = [n for n in range(1, 200) if hadamard_part(n) is not None]
# Widths of real models: SmolLM2, Qwen2.5 0.5B to 72B, Llama 3, Gemma.
REAL = [64, 128, 576, 896, 1536, 2048, 3072, 3584, 4096, 4864, 5120, 8192, 8960, 14336, 28672]


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_most_multiples_of_four_have_a_matrix_here() -> None:
    assert OFFERED[:2] == [1, 2]
    assert all(n % 4 == 0 for n in OFFERED[2:])
    missing = [n for n in range(4, 200, 4) if n not in OFFERED]
    # 52, 100 and 188 = 2 (q + 1) or q + 1 for a power of a prime; the others are no Paley's at
    # all (92 was found by computer, in 1961).
    assert missing == [52, 92, 100, 116, 156, 172, 184, 188]


@pytest.mark.parametrize("n", [*OFFERED[:10], 76, 148, 384, 576, 896, 1536])
def test_h_times_its_transpose_is_n_times_the_identity(n: int) -> None:
    matrix = hadamard_matrix(n)
    assert matrix.abs().eq(1).all()
    assert torch.equal(matrix @ matrix.T, n * torch.eye(n, dtype=torch.float64))


def test_all_parts_that_are_no_power_of_two_are_hadamards() -> None:
    parts = {len(part): part for n in OFFERED if (part := hadamard_part(n)) is not None}
    assert {1, 12, 20, 28, 36, 44, 60, 68, 76, 84, 108, 124, 140, 148} <= parts.keys()
    for k, part in parts.items():
        assert torch.equal(part @ part.T, k * torch.eye(k, dtype=torch.float64))


@pytest.mark.parametrize("n", REAL)
def test_widths_of_real_models_have_a_fast_rotation(n: int) -> None:
    rotation = random_rotation(n, generator(0))
    assert isinstance(rotation, RandomHadamard)
    x = random_weight(2, n, 1)
    torch.testing.assert_close(rotation.apply(x).norm(dim=1), x.norm(dim=1), rtol=1e-12, atol=0)


@settings(max_examples=30)
@given(st.sampled_from([*OFFERED[:40], 3, 5, 6, 7, 9, 92, 129]), SEEDS)
def test_a_rotation_is_orthogonal_and_is_its_matrix(n: int, seed: int) -> None:
    rotation = random_rotation(n, generator(seed))
    matrix = rotation.apply(torch.eye(n, dtype=torch.float64))
    torch.testing.assert_close(
        matrix @ matrix.T, torch.eye(n, dtype=torch.float64), rtol=0, atol=1e-12
    )
    x = random_weight(6, n, seed).view(2, 3, n)
    torch.testing.assert_close(rotation.apply(x), x @ matrix, rtol=1e-12, atol=1e-12)
    if isinstance(rotation, RandomHadamard):
        wanted = rotation.signs[:, None] * hadamard_matrix(n) / math.sqrt(n)
        torch.testing.assert_close(matrix, wanted, rtol=1e-14, atol=0)
    else:
        assert isinstance(rotation, RandomOrthogonal)
        assert hadamard_part(n) is None


def test_the_same_seed_gives_the_same_rotation() -> None:
    x = random_weight(2, 36, 0)
    assert torch.equal(*(random_rotation(36, generator(7)).apply(x) for _ in range(2)))
    assert not torch.equal(
        random_rotation(36, generator(7)).apply(x), random_rotation(36, generator(8)).apply(x)
    )


def test_incoherence_is_one_to_the_root_of_the_number() -> None:
    assert incoherence(torch.ones(4, 4)) == 1
    assert incoherence(torch.eye(4)[:1]) == 2
    assert incoherence(torch.zeros(2, 2)) == 1


@settings(max_examples=10)
@given(SEEDS)
def test_a_rotation_spreads_outliers(seed: int) -> None:
    """QuIP: mu falls to about sqrt(2 log n) whatever the matrix was."""
    weight = random_weight(64, 576, seed)
    weight[:, 5] *= 50
    weight[3, 100] = 300
    rotated = random_rotation(576, generator(seed)).apply(weight)
    limit = 1.6 * math.sqrt(2 * math.log(weight.numel()))
    assert incoherence(weight) > 20
    assert (
        incoherence(rotated)
        < limit * rotated.norm(dim=1).max() / rotated.norm(dim=1).square().mean().sqrt()
    )


def test_a_rotated_weight_loses_less_at_four_bits() -> None:
    weight = random_weight(64, 576, 0)
    weight[:, ::97] *= 30
    rotation = random_rotation(576, generator(0))
    errors = []
    for matrix in (weight, rotation.apply(weight)):
        rounded = round_to_nearest(matrix, IntegerScheme(4)).dequantize()
        errors.append(float((rounded - matrix).square().sum()))
    assert errors[1] < errors[0] / 5


class InMemory:
    """A Checkpoint of random fp32 numbers, norms and biases included."""

    def __init__(self, config: ModelConfig) -> None:
        self.path = Path("random")
        self.config = config
        shapes = parameter_shapes(config) | optional_shapes(config)
        noise = generator(11)
        self._tensors = {
            name: torch.randn(shape, generator=noise) * 0.2 + ("norm" in name)
            for name, shape in shapes.items()
        }

    def names(self) -> list[str]:
        return list(self._tensors)

    def tensor(self, name: str, dtype: torch.dtype, out: Any = None) -> torch.Tensor:
        tensor = self._tensors[name].to(dtype, copy=True)
        return tensor if out is None else out.copy_(tensor)

    def quantized(self, name: str) -> None:
        return None

    def activation_format(self, name: str) -> None:
        return None


CONFIG = ModelConfig(
    architecture="llama",
    vocab_size=50,
    hidden_size=24,
    intermediate_size=40,
    num_hidden_layers=2,
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=4,
    max_position_embeddings=64,
    rms_norm_eps=1e-5,
    rope_theta=1e4,
)
FAMILIES = {
    "tied": replace(CONFIG, tie_word_embeddings=True),
    "untied": CONFIG,
    "biased": replace(CONFIG, attention_bias=True, mlp_bias=True),
    "no Hadamard": replace(CONFIG, hidden_size=18, num_attention_heads=6, head_dim=6),
}


def logits_of(checkpoint: Any) -> torch.Tensor:
    """By transformers' Llama, in fp64."""
    transformers = pytest.importorskip("transformers")
    config = checkpoint.config
    model = transformers.LlamaForCausalLM(
        transformers.LlamaConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            intermediate_size=config.intermediate_size,
            num_hidden_layers=config.num_hidden_layers,
            num_attention_heads=config.num_attention_heads,
            num_key_value_heads=config.num_key_value_heads,
            head_dim=config.head_dim,
            rms_norm_eps=config.rms_norm_eps,
            tie_word_embeddings=config.tie_word_embeddings,
            attention_bias=config.attention_bias,
            mlp_bias=config.mlp_bias,
        )
    ).double()
    state = {name: checkpoint.tensor(name, torch.float64) for name in checkpoint.names()}
    model.load_state_dict(state, strict=not config.tie_word_embeddings)
    with torch.no_grad():
        return model(torch.arange(12)[None]).logits


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_rotated_model_gives_the_same_logits(name: str) -> None:
    base = InMemory(FAMILIES[name])
    rotated = RotatedCheckpoint(base, seed=3)
    assert not rotated.config.tie_word_embeddings
    wanted, got = logits_of(base), logits_of(rotated)
    # transformers computes norms and RoPE in fp32, whatever the model's type.
    torch.testing.assert_close(got, wanted, rtol=1e-4, atol=1e-4 * float(wanted.abs().max()))
    assert not torch.allclose(
        rotated.tensor("model.layers.0.self_attn.q_proj.weight", torch.float32),
        base.tensor("model.layers.0.self_attn.q_proj.weight", torch.float32),
        atol=0.1,
    )


def block(checkpoint: Any, x: torch.Tensor) -> torch.Tensor:
    """Layer 0 in fp64, all but RoPE and softmax, which see the same q and k: from the residual
    stream to the residual stream."""
    config = checkpoint.config

    def linear(name: str, x: torch.Tensor) -> torch.Tensor:
        out = x @ checkpoint.tensor(f"model.layers.0.{name}.weight", torch.float64).T
        if f"model.layers.0.{name}.bias" in checkpoint.names():
            out = out + checkpoint.tensor(f"model.layers.0.{name}.bias", torch.float64)
        return out

    def norm(name: str, x: torch.Tensor) -> torch.Tensor:
        size = (x.square().mean(-1, keepdim=True) + config.rms_norm_eps).sqrt()
        return x / size * checkpoint.tensor(f"model.layers.0.{name}.weight", torch.float64)

    normed = norm("input_layernorm", x)
    q, k = linear("self_attn.q_proj", normed), linear("self_attn.k_proj", normed)
    v = linear("self_attn.v_proj", normed)
    groups = config.num_attention_heads // config.num_key_value_heads

    def heads(x: torch.Tensor) -> torch.Tensor:
        return x.view(len(x), -1, config.head_dim).transpose(0, 1)

    k, v = (heads(part).repeat_interleave(groups, 0) for part in (k, v))
    attended = (heads(q) @ k.transpose(1, 2)).tril().softmax(-1) @ v
    x = x + linear("self_attn.o_proj", attended.transpose(0, 1).flatten(1))
    normed = norm("post_attention_layernorm", x)
    gate = torch.nn.functional.silu(linear("mlp.gate_proj", normed))
    return x + linear("mlp.down_proj", gate * linear("mlp.up_proj", normed))


@pytest.mark.parametrize("name", sorted(FAMILIES))
def test_a_rotated_layer_gives_the_same_stream_to_1e_12(name: str) -> None:
    base = InMemory(FAMILIES[name])
    rotated = RotatedCheckpoint(base, seed=5)
    embeddings = [
        each.tensor("model.embed_tokens.weight", torch.float64)[:9] for each in (base, rotated)
    ]
    streams = [block(each, x) for each, x in zip((base, rotated), embeddings, strict=True)]
    back = random_rotation(base.config.hidden_size, generator(5)).apply(streams[0])
    torch.testing.assert_close(streams[1], back, rtol=0, atol=1e-12 * float(back.abs().max()))
    ends = [
        x
        / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        * each.tensor("model.norm.weight", torch.float64)
        @ each.tensor("lm_head.weight", torch.float64).T
        if "lm_head.weight" in each.names()
        else x
        / (x.square().mean(-1, keepdim=True) + 1e-5).sqrt()
        * each.tensor("model.norm.weight", torch.float64)
        @ each.tensor("model.embed_tokens.weight", torch.float64).T
        for each, x in zip((base, rotated), streams, strict=True)
    ]
    torch.testing.assert_close(ends[1], ends[0], rtol=0, atol=1e-12 * float(ends[0].abs().max()))


def test_heads_are_rotated_each_for_itself() -> None:
    rotation = random_rotation(4, generator(0))
    x = random_weight(3, 12, 0)
    got = by_heads(x, rotation)
    for head in range(3):
        part = slice(4 * head, 4 * head + 4)
        torch.testing.assert_close(got[:, part], rotation.apply(x[:, part]))


def test_what_makes_no_sense_is_refused() -> None:
    with pytest.raises(UsageError, match="no Hadamard matrix of 92 is known here"):
        hadamard_matrix(92)
    with pytest.raises(UsageError, match="at least 1 channel, not 0"):
        random_rotation(0, generator(0))
