"""The models that are known by name, each with the shape of its published config.

Every count of parameters that follows from them is checked against the published one and against
transformers' own modules in tests/calculators/test_models.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

from infra_lab.calculators.checks import look_up
from infra_lab.calculators.models import Experts, LatentAttention, Model


def _llama(
    name: str,
    title: str,
    layers: int,
    hidden: int,
    intermediate: int,
    heads: tuple[int, int],
    vocab: int,
    context: int,
    source: str,
) -> Model:
    """Llama's shape: gated MLP, RMSNorm, no biases; heads are (query, KV)."""
    return Model(
        name=name,
        title=title,
        vocab_size=vocab,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_layers=layers,
        num_query_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=hidden // heads[0],
        max_context=context,
        source=source,
    )


def _qwen2(
    name: str, title: str, layers: int, hidden: int, intermediate: int, heads: tuple[int, int]
) -> Model:
    """Qwen1.5 and Qwen2: Llama's shape with biases on q, k and v."""
    return Model(
        name=name,
        title=title,
        vocab_size=152064,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_layers=layers,
        num_query_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=hidden // heads[0],
        max_context=32768,
        qkv_bias=True,
        source="config.json of the Hugging Face repository",
    )


def _qwen3(
    name: str,
    title: str,
    layers: int,
    hidden: int,
    intermediate: int,
    heads: tuple[int, int],
    tied: bool = False,
    experts: Experts | None = None,
) -> Model:
    """Qwen3: head_dim is 128 whatever the hidden size, and queries and keys are normalized."""
    return Model(
        name=name,
        title=title,
        vocab_size=151936,
        hidden_size=hidden,
        intermediate_size=intermediate,
        num_layers=layers,
        num_query_heads=heads[0],
        num_kv_heads=heads[1],
        head_dim=128,
        max_context=40960,
        tied_embeddings=tied,
        qk_norm=True,
        experts=experts,
        source="Qwen3 technical report (arXiv 2505.09388), table 1; config.json",
    )


_LLAMA2 = "Llama 2 (arXiv 2307.09288); config.json of the Hugging Face repository"
_LLAMA3 = "The Llama 3 Herd of Models (arXiv 2407.21783), table 3; config.json"
_DEEPSEEK_LATENT = LatentAttention(
    query_rank=1536, kv_rank=512, nope_dim=128, rope_dim=64, value_dim=128
)

_MODELS = (
    Model(
        name="smollm2-135m",
        title="SmolLM2-135M",
        vocab_size=49152,
        hidden_size=576,
        intermediate_size=1536,
        num_layers=30,
        num_query_heads=9,
        num_kv_heads=3,
        head_dim=64,
        max_context=8192,
        tied_embeddings=True,
        source="the metadata of the GGUF file that infra-lab runs by default",
    ),
    _llama("llama-2-7b", "Llama-2-7B", 32, 4096, 11008, (32, 32), 32000, 4096, _LLAMA2),
    _llama("llama-2-13b", "Llama-2-13B", 40, 5120, 13824, (40, 40), 32000, 4096, _LLAMA2),
    _llama("llama-2-70b", "Llama-2-70B", 80, 8192, 28672, (64, 8), 32000, 4096, _LLAMA2),
    _llama("llama-3-8b", "Llama-3-8B", 32, 4096, 14336, (32, 8), 128256, 8192, _LLAMA3),
    _llama("llama-3-70b", "Llama-3-70B", 80, 8192, 28672, (64, 8), 128256, 8192, _LLAMA3),
    _llama(
        "llama-3.1-405b", "Llama-3.1-405B", 126, 16384, 53248, (128, 8), 128256, 131072, _LLAMA3
    ),
    _llama(
        "mistral-7b",
        "Mistral-7B-v0.1",
        32,
        4096,
        14336,
        (32, 8),
        32000,
        32768,
        "Mistral 7B (arXiv 2310.06825), table 1; the defaults of transformers' MistralConfig",
    ),
    Model(
        name="mixtral-8x7b",
        title="Mixtral-8x7B",
        vocab_size=32000,
        hidden_size=4096,
        intermediate_size=14336,
        num_layers=32,
        num_query_heads=32,
        num_kv_heads=8,
        head_dim=128,
        max_context=32768,
        experts=Experts(num_experts=8, num_active=2, intermediate_size=14336),
        source="Mixtral of Experts (arXiv 2401.04088), table 1; transformers' MixtralConfig",
    ),
    _qwen2("qwen1.5-72b", "Qwen1.5-72B", 80, 8192, 24576, (64, 64)),
    _qwen2("qwen2-72b", "Qwen2-72B", 80, 8192, 29568, (64, 8)),
    _qwen2("qwen2.5-7b", "Qwen2.5-7B", 28, 3584, 18944, (28, 4)),
    _qwen2("qwen2.5-72b", "Qwen2.5-72B", 80, 8192, 29568, (64, 8)),
    _qwen3("qwen3-0.6b", "Qwen3-0.6B", 28, 1024, 3072, (16, 8), tied=True),
    _qwen3("qwen3-8b", "Qwen3-8B", 36, 4096, 12288, (32, 8)),
    _qwen3("qwen3-32b", "Qwen3-32B", 64, 5120, 25600, (64, 8)),
    _qwen3(
        "qwen3-30b-a3b",
        "Qwen3-30B-A3B",
        48,
        2048,
        6144,
        (32, 4),
        experts=Experts(num_experts=128, num_active=8, intermediate_size=768),
    ),
    _qwen3(
        "qwen3-235b-a22b",
        "Qwen3-235B-A22B",
        94,
        4096,
        12288,
        (64, 4),
        experts=Experts(num_experts=128, num_active=8, intermediate_size=1536),
    ),
    Model(
        name="deepseek-v2",
        title="DeepSeek-V2",
        vocab_size=102400,
        hidden_size=5120,
        intermediate_size=12288,
        num_layers=60,
        num_query_heads=128,
        num_kv_heads=128,
        head_dim=128,
        max_context=131072,
        latent=_DEEPSEEK_LATENT,
        experts=Experts(
            num_experts=160, num_active=6, intermediate_size=1536, num_shared=2, num_dense_layers=1
        ),
        source="DeepSeek-V2 (arXiv 2405.04434), section 3.1.2",
    ),
    Model(
        name="deepseek-v3",
        title="DeepSeek-V3",
        vocab_size=129280,
        hidden_size=7168,
        intermediate_size=18432,
        num_layers=61,
        num_query_heads=128,
        num_kv_heads=128,
        head_dim=128,
        max_context=131072,
        latent=_DEEPSEEK_LATENT,
        experts=Experts(
            num_experts=256, num_active=8, intermediate_size=2048, num_shared=1, num_dense_layers=3
        ),
        source="DeepSeek-V3 (arXiv 2412.19437), section 4.2, without its MTP module; "
        "the defaults of transformers' DeepseekV3Config",
    ),
    Model(
        name="opt-13b",
        title="OPT-13B",
        vocab_size=50272,
        hidden_size=5120,
        intermediate_size=20480,
        num_layers=40,
        num_query_heads=40,
        num_kv_heads=40,
        head_dim=128,
        max_context=2048,
        tied_embeddings=True,
        gated_mlp=False,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        norm_bias=True,
        learned_positions=2050,
        source="OPT (arXiv 2205.01068), table 1; its position table begins at 2",
    ),
    Model(
        name="gpt-3",
        title="GPT-3 175B",
        vocab_size=50257,
        hidden_size=12288,
        intermediate_size=49152,
        num_layers=96,
        num_query_heads=96,
        num_kv_heads=96,
        head_dim=128,
        max_context=2048,
        tied_embeddings=True,
        gated_mlp=False,
        qkv_bias=True,
        output_bias=True,
        mlp_bias=True,
        norm_bias=True,
        learned_positions=2048,
        source="GPT-3 (arXiv 2005.14165), table 2.1, with GPT-2's biases and tied embeddings",
    ),
)
MODELS: Mapping[str, Model] = MappingProxyType({one.name: one for one in _MODELS})
_ALIASES = {
    "llama-70b": "llama-2-70b",
    "llama-7b": "llama-2-7b",
    "llama-13b": "llama-2-13b",
    "qwen-72b": "qwen1.5-72b",
    "gpt-3-175b": "gpt-3",
    "gpt3": "gpt-3",
    "mistral": "mistral-7b",
    "mixtral": "mixtral-8x7b",
}


def model(name: str) -> Model:
    """A model of the table by name; raises UsageError with near names for an unknown one."""
    wanted = name.strip().lower().replace("_", "-")
    return look_up("model", _ALIASES.get(wanted, wanted), MODELS)
