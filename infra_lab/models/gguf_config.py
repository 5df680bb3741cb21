"""Reads a model's shape out of GGUF metadata. Torch-free.

llama.cpp names things its own way, leaves some of them to be seen from which tensors exist
(biases, QK norm, tied embeddings), and stores Llama 3's rope scaling as a tensor of factors.
"""

from __future__ import annotations

import math

import numpy as np
from gguf.constants import GGMLQuantizationType

from infra_lab.errors import ModelLoadError
from infra_lab.models.config import ModelConfig, RopeScaling
from infra_lab.models.gguf_header import GGUFHeader
from infra_lab.models.shapes import require_consistent

SUPPORTED_ARCHITECTURES = ("llama", "qwen2", "qwen3")  # a Mistral file calls itself llama
ROPE_FACTORS = "rope_freqs.weight"

_DTYPES = {
    GGMLQuantizationType.F32: "float32",
    GGMLQuantizationType.F16: "float16",
    GGMLQuantizationType.BF16: "bfloat16",
}


def gguf_config(header: GGUFHeader) -> ModelConfig:
    """Raises ModelLoadError when the architecture, or something the file asks of it, is not
    supported, or a number is missing."""
    architecture = header.architecture
    if architecture not in SUPPORTED_ARCHITECTURES:
        raise ModelLoadError(
            f"{header.path}: GGUF architecture {architecture!r} is not supported; supported are "
            f"{', '.join(SUPPORTED_ARCHITECTURES)}"
        )
    heads = header.scalar(f"{architecture}.attention.head_count", int)
    hidden_size = header.scalar(f"{architecture}.embedding_length", int)
    head_dim = _head_dim(header, architecture, hidden_size, heads)
    rope_theta = _decimal(header.scalar(f"{architecture}.rope.freq_base", float, 10000.0))
    _refuse_experts(header, architecture)
    config = ModelConfig(
        architecture=architecture,
        vocab_size=_vocab_size(header),
        hidden_size=hidden_size,
        intermediate_size=header.scalar(f"{architecture}.feed_forward_length", int),
        num_hidden_layers=header.scalar(f"{architecture}.block_count", int),
        num_attention_heads=heads,
        num_key_value_heads=header.scalar(f"{architecture}.attention.head_count_kv", int, heads),
        head_dim=head_dim,
        max_position_embeddings=header.scalar(f"{architecture}.context_length", int),
        rms_norm_eps=_decimal(
            header.scalar(f"{architecture}.attention.layer_norm_rms_epsilon", float)
        ),
        rope_theta=rope_theta,
        rope_scaling=_rope_scaling(header, architecture, head_dim, rope_theta),
        tie_word_embeddings="output.weight" not in header.tensors,
        attention_bias="blk.0.attn_q.bias" in header.tensors,
        mlp_bias="blk.0.ffn_up.bias" in header.tensors,
        qk_norm="blk.0.attn_q_norm.weight" in header.tensors,
        sliding_window=header.scalar(f"{architecture}.attention.sliding_window", int, 0) or None,
        bos_token_id=(
            header.scalar("tokenizer.ggml.bos_token_id", int)
            if "tokenizer.ggml.bos_token_id" in header.metadata
            else None
        ),
        eos_token_ids=_eos_token_ids(header),
        dtype=_dtype(header),
    )
    require_consistent(config, header.path)
    return config


def _decimal(value: float) -> float:
    """The shortest decimal that rounds to the same float32: 1e-05, not 9.99999974e-06."""
    return float(str(np.float32(value)))


def _head_dim(header: GGUFHeader, architecture: str, hidden_size: int, heads: int) -> int:
    if heads < 1:
        raise ModelLoadError(f"{header.path}: the GGUF metadata gives {heads} attention heads")
    rotary = header.scalar(f"{architecture}.rope.dimension_count", int, 0)
    head_dim = header.scalar(f"{architecture}.attention.key_length", int, 0) or (
        hidden_size // heads
    )
    values = header.scalar(f"{architecture}.attention.value_length", int, head_dim)
    if rotary not in (0, head_dim) or values != head_dim:
        raise ModelLoadError(
            f"{header.path}: keys of {head_dim}, values of {values} and {rotary} rotated "
            "dimensions a head; only one size for all three is supported"
        )
    return head_dim


def _refuse_experts(header: GGUFHeader, architecture: str) -> None:
    experts = header.scalar(f"{architecture}.expert_count", int, 0)
    if experts:
        raise ModelLoadError(
            f"{header.path}: a mixture of {experts} experts is not supported; only dense models are"
        )


def _vocab_size(header: GGUFHeader) -> int:
    embedding = header.tensors.get("token_embd.weight")
    if embedding is None or len(embedding.shape) != 2:
        raise ModelLoadError(f"{header.path}: tensor 'token_embd.weight' is missing or no matrix")
    return embedding.shape[0]


def _eos_token_ids(header: GGUFHeader) -> tuple[int, ...]:
    """End of sequence, of turn and of message: generation stops at any of them."""
    keys = [f"tokenizer.ggml.{kind}_token_id" for kind in ("eos", "eot", "eom")]
    ids = [header.scalar(key, int) for key in keys if key in header.metadata]
    return tuple(dict.fromkeys(ids))


def _dtype(header: GGUFHeader) -> str:
    """The type of the first layer's matrices. A quantized file has none of its own: bfloat16,
    whose rounding is below the quantization error and whose range cannot overflow."""
    matrix = header.tensors.get("blk.0.attn_q.weight")
    return "bfloat16" if matrix is None else _DTYPES.get(matrix.quantization, "bfloat16")


def _rope_scaling(
    header: GGUFHeader, architecture: str, head_dim: int, rope_theta: float
) -> RopeScaling:
    kind = header.scalar(f"{architecture}.rope.scaling.type", str, "none")
    if ROPE_FACTORS in header.tensors:
        original = header.scalar(f"{architecture}.rope.scaling.original_context_length", int, 8192)
        return _llama3_scaling(header, head_dim, rope_theta, original)
    if kind == "none":
        return RopeScaling()
    if kind == "linear":
        factor = header.scalar(f"{architecture}.rope.scaling.factor", float)
        return RopeScaling("linear", _decimal(factor))
    raise ModelLoadError(
        f"{header.path}: rope scaling {kind!r} is not supported; none, linear and llama3 are"
    )


def _llama3_scaling(
    header: GGUFHeader, head_dim: int, rope_theta: float, original_context: int
) -> RopeScaling:
    """Recovers the parameters behind the stored factors: the largest one is `factor`, and the
    blend must then be the one Llama 3.1, 3.2 and 3.3 all use (from 1 to 4 rotations)."""
    info = header.tensors[ROPE_FACTORS]
    if info.quantization is not GGMLQuantizationType.F32 or info.shape != (head_dim // 2,):
        raise ModelLoadError(
            f"{header.path}: tensor {ROPE_FACTORS!r} is {info.quantization.name} of shape "
            f"{list(info.shape)}; F32 of shape [{head_dim // 2}] was expected"
        )
    stored = np.fromfile(header.path, np.float32, head_dim // 2, offset=info.offset_bytes)
    if np.all(stored == 1):
        return RopeScaling()
    scaling = RopeScaling("llama3", _decimal(float(stored.max())), 1.0, 4.0, original_context)
    if not np.allclose(stored, llama3_factors(scaling, head_dim, rope_theta), rtol=1e-4):
        raise ModelLoadError(
            f"{header.path}: tensor {ROPE_FACTORS!r} holds rope factors of no scaling known here "
            "(they are not Llama 3's)"
        )
    return scaling


def llama3_factors(scaling: RopeScaling, head_dim: int, rope_theta: float) -> list[float]:
    """What each of the head_dim / 2 rotary frequencies is divided by under llama3 scaling:
    1 where it turns often within the original context, `factor` where it hardly turns, and a
    blend between."""
    factors = []
    for pair in range(head_dim // 2):
        wavelength = 2 * math.pi * rope_theta ** (2 * pair / head_dim)
        rotations = scaling.original_max_position_embeddings / wavelength
        blend = (rotations - scaling.low_freq_factor) / (
            scaling.high_freq_factor - scaling.low_freq_factor
        )
        blend = min(max(blend, 0.0), 1.0)
        factors.append(1 / ((1 - blend) / scaling.factor + blend))
    return factors
