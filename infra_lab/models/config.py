"""The shape of a decoder-only transformer, whatever file it came from. Torch-free."""

from __future__ import annotations

from dataclasses import dataclass, field

from infra_lab.layers.rope_scaling import RopeScaling

__all__ = ["ModelConfig", "RopeScaling"]


@dataclass(frozen=True, slots=True)
class ModelConfig:
    """Architecture numbers under Hugging Face's names.

    `dtype` is the checkpoint's own element type ("float32", "bfloat16", "float16").
    `eos_token_ids` joins what config.json, generation_config.json or the GGUF file say.
    """

    architecture: str  # a key of models.registry: "llama", "mistral", "qwen2", "qwen3"
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    num_hidden_layers: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    max_position_embeddings: int
    rms_norm_eps: float
    rope_theta: float
    rope_scaling: RopeScaling = field(default_factory=RopeScaling)
    tie_word_embeddings: bool = False
    attention_bias: bool = False  # biases on q, k and v (Qwen2), and on o where the file has it
    mlp_bias: bool = False
    qk_norm: bool = False  # RMSNorm over head_dim on q and k before rotation (Qwen3)
    sliding_window: int | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    dtype: str = "float32"

    def kv_bytes_per_token(self, element_bytes: int) -> int:
        """Bytes of KV cache that one token takes: K and V, every layer and KV head."""
        return 2 * self.num_hidden_layers * self.num_key_value_heads * self.head_dim * element_bytes
