"""Each layer against float64 arithmetic or transformers' own."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb

from infra_lab.layers.activation import silu_and_mul
from infra_lab.layers.embedding import Embedding, TiedEmbedding
from infra_lab.layers.linear import DenseLinear, PackedLinear, make_linear
from infra_lab.layers.norm import RMSNorm
from infra_lab.layers.rope_scaling import RopeScaling
from infra_lab.layers.rotary import RotaryEmbedding, inverse_frequencies, rotate_
from infra_lab.native import library

CPU = torch.device("cpu")


def rotate(x: torch.Tensor, cos: torch.Tensor, signed_sin: torch.Tensor) -> torch.Tensor:
    rotated = x.clone()
    rotate_(rotated, cos, signed_sin)
    return rotated


sizes = st.integers(1, 9)


@given(rows=sizes, inner=sizes, width=sizes, seed=sizes)
def test_a_linear_layer_is_the_product_of_its_definition(
    rows: int, inner: int, width: int, seed: int
) -> None:
    torch.manual_seed(seed)
    weight, bias, x = torch.randn(width, inner), torch.randn(width), torch.randn(rows, inner)
    torch.testing.assert_close(make_linear(weight, bias)(x), F.linear(x, weight, bias))
    torch.testing.assert_close(make_linear(weight)(x), F.linear(x, weight))
    half = make_linear(weight.bfloat16())
    assert isinstance(half, DenseLinear)
    torch.testing.assert_close(
        half(x.bfloat16()), x.bfloat16() @ weight.bfloat16().T, atol=0.05, rtol=0.05
    )


native = pytest.mark.skipif(not library.is_available(), reason="no compiled kernels here")


@native
@settings(max_examples=150)
@given(
    rows=st.integers(1, 60) | st.integers(500, 1100),
    inner=st.integers(1, 90) | st.sampled_from([320, 321, 700, 1536]),
    width=st.integers(1, 100),
)
def test_a_packed_product_is_no_further_from_float64_than_torch(
    rows: int, inner: int, width: int
) -> None:
    torch.manual_seed(0)
    weight, bias, x = torch.randn(width, inner), torch.randn(width), torch.randn(rows, inner)
    exact = x.double() @ weight.double().T + bias.double()
    error = (PackedLinear(weight, bias)(x).double() - exact).abs().max()
    assert error <= 2 * (F.linear(x, weight, bias).double() - exact).abs().max() + 1e-5 * inner**0.5


@native
@settings(max_examples=30)
@given(rows=st.integers(2, 600), inner=st.sampled_from([7, 321, 576]), seed=st.integers(0, 9))
def test_a_row_of_a_batch_is_bit_for_bit_what_it_is_alone(rows: int, inner: int, seed: int) -> None:
    torch.manual_seed(seed)
    layer, x = PackedLinear(torch.randn(70, inner)), torch.randn(rows, inner)
    together = layer(x)
    for index in {0, rows // 2, rows - 1}:
        assert torch.equal(layer(x[index : index + 1])[0], together[index])


@given(ids=st.lists(st.integers(0, 40), min_size=1, max_size=8))
def test_a_tied_embedding_looks_up_the_rows_of_the_checkpoint(ids: list[int]) -> None:
    table = torch.arange(41 * 3, dtype=torch.float32).view(41, 3)
    token_ids = torch.tensor(ids)
    for head in (make_linear(table), DenseLinear(table.T.contiguous())):
        assert torch.equal(TiedEmbedding(head)(token_ids), table[token_ids])
    assert torch.equal(Embedding(table)(token_ids), table[token_ids])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_rms_norm_is_no_further_from_float64_than_the_formula_in_the_same_dtype(
    dtype: torch.dtype,
) -> None:
    torch.manual_seed(0)
    x, weight = (torch.randn(7, 64) * 3).to(dtype), torch.randn(64).to(dtype)
    wide = x.double()
    exact = wide / (wide.square().mean(-1, keepdim=True) + 1e-5).sqrt() * weight.double()
    same_dtype = x * torch.rsqrt(x.square().mean(-1, keepdim=True) + 1e-5) * weight
    error = (RMSNorm(weight, 1e-5)(x).double() - exact).abs().max()
    assert error <= 2 * (same_dtype.double() - exact).abs().max() + 1e-6


@pytest.mark.parametrize("width", [1024, 2048])
def test_layers_as_wide_as_a_multiple_of_a_page_fit_together(width: int) -> None:
    """Such a product's rows are padded apart; what follows it must not mind."""
    torch.manual_seed(0)
    weight, x = torch.randn(width, 64) / 8, torch.randn(5, 64)
    y, exact = make_linear(weight)(x), x @ weight.T
    torch.testing.assert_close(y, exact)
    norm, residual = RMSNorm(torch.randn(width), 1e-5), torch.randn(5, width)
    summed = residual + exact
    torch.testing.assert_close(norm.after_adding(residual, y), norm(summed))
    torch.testing.assert_close(residual, summed)
    gate, up = exact.chunk(2, dim=-1)
    torch.testing.assert_close(silu_and_mul(y), F.silu(gate) * up)


def test_silu_and_mul_is_swiglu() -> None:
    gate, up = torch.randn(5, 8), torch.randn(5, 8)
    out = silu_and_mul(torch.cat((gate, up), dim=-1))
    torch.testing.assert_close(out, gate * torch.sigmoid(gate) * up)


LLAMA3 = {
    "rope_type": "llama3",
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}
SCALINGS = [
    ({"rope_type": "default"}, RopeScaling()),
    ({"rope_type": "linear", "factor": 4.0}, RopeScaling("linear", 4.0)),
    (LLAMA3, RopeScaling("llama3", 8.0, 1.0, 4.0, 64)),
]


@pytest.mark.parametrize(("parameters", "scaling"), SCALINGS)
@settings(max_examples=10)
@given(head_dim=st.sampled_from([2, 16, 64]), theta=st.sampled_from([1e4, 5e5]))
def test_rotation_equals_transformers(
    parameters: dict[str, object], scaling: RopeScaling, head_dim: int, theta: float
) -> None:
    config = LlamaConfig(
        hidden_size=2 * head_dim,
        num_attention_heads=2,
        head_dim=head_dim,
        max_position_embeddings=512,
        rope_parameters={**parameters, "rope_theta": theta},
    )
    torch.manual_seed(0)
    positions = torch.tensor([0, 1, 7, 100, 511])
    x = torch.randn(len(positions), 2, head_dim)
    cos, sin = LlamaRotaryEmbedding(config)(x, positions[None])
    expected, _ = apply_rotary_pos_emb(x[None], x[None], cos, sin, unsqueeze_dim=2)
    frequencies = inverse_frequencies(head_dim, theta, scaling)
    rotary = RotaryEmbedding(frequencies, 512, torch.float32, CPU)
    torch.testing.assert_close(rotate(x, *rotary.tables(positions)), expected[0], atol=2e-4, rtol=0)


@settings(max_examples=30)
@given(shift=st.integers(0, 400), distance=st.integers(0, 100))
def test_a_score_depends_only_on_the_distance(shift: int, distance: int) -> None:
    torch.manual_seed(0)
    rotary = RotaryEmbedding(inverse_frequencies(16, 1e4, RopeScaling()), 512, torch.float32, CPU)
    q, k = torch.randn(1, 1, 16), torch.randn(1, 1, 16)

    def score(first: int) -> torch.Tensor:
        rotated_k = rotate(k, *rotary.tables(torch.tensor([first])))
        rotated_q = rotate(q, *rotary.tables(torch.tensor([first + distance])))
        return (rotated_q * rotated_k).sum()

    torch.testing.assert_close(score(shift), score(0), atol=1e-3, rtol=1e-3)
