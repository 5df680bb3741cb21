"""Reads a model's shape out of a Hugging Face folder's config.json. Torch-free.

Numbers that the file leaves out have the family's default; settings that would change what
the model computes are honoured or refused, never passed over.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra_lab.errors import ModelLoadError
from infra_lab.models.config import ModelConfig, RopeScaling
from infra_lab.models.shapes import require_consistent


@dataclass(frozen=True, slots=True)
class _Family:
    """What a model family does when its config.json does not say. None for KV heads is as
    many as query heads; 0 for head_dim is hidden_size / heads."""

    max_position_embeddings: int
    num_key_value_heads: int | None = None
    head_dim: int = 0
    sliding_window: int | None = None
    attention_bias: bool | None = False  # None: config.json decides


_FAMILIES = {
    "llama": _Family(max_position_embeddings=2048, attention_bias=None),
    "mistral": _Family(max_position_embeddings=131072, num_key_value_heads=8, sliding_window=4096),
    "qwen2": _Family(max_position_embeddings=32768, num_key_value_heads=32, attention_bias=True),
    "qwen3": _Family(
        max_position_embeddings=32768, num_key_value_heads=32, head_dim=128, attention_bias=None
    ),
}
SUPPORTED_MODEL_TYPES = tuple(_FAMILIES)

# formats.checkpoint_format reads their settings; it needs torch.
QUANTIZATION_METHODS = ("gptq", "awq", "compressed-tensors", "bitsandbytes", "fp8")

_DTYPES = ("float32", "bfloat16", "float16")


def hf_config(folder: Path) -> ModelConfig:
    """Reads config.json and, where there is one, generation_config.json.

    Raises ModelLoadError when a file is damaged, the architecture or a setting unsupported, or
    a number missing.
    """
    config = Settings.read(folder / "config.json")
    family = _family(config)
    _refuse_unsupported(config)
    heads = config.integer("num_attention_heads")
    hidden_size = config.integer("hidden_size")
    bias = family.attention_bias
    model_type = str(config.values["model_type"])
    result = ModelConfig(
        architecture=model_type,
        vocab_size=config.integer("vocab_size"),
        hidden_size=hidden_size,
        intermediate_size=config.integer("intermediate_size"),
        num_hidden_layers=config.integer("num_hidden_layers"),
        num_attention_heads=heads,
        num_key_value_heads=config.integer(
            "num_key_value_heads", family.num_key_value_heads or heads
        ),
        head_dim=config.integer("head_dim", family.head_dim or max(1, hidden_size // heads)),
        max_position_embeddings=config.integer(
            "max_position_embeddings", family.max_position_embeddings
        ),
        rms_norm_eps=config.number("rms_norm_eps", 1e-6),
        rope_theta=_rope(config).number("rope_theta", config.number("rope_theta", 10000.0)),
        rope_scaling=_rope_scaling(_rope(config)),
        tie_word_embeddings=config.flag("tie_word_embeddings"),
        attention_bias=config.flag("attention_bias") if bias is None else bias,
        mlp_bias=model_type == "llama" and config.flag("mlp_bias"),
        qk_norm=model_type == "qwen3",
        sliding_window=_sliding_window(config, family),
        bos_token_id=next(iter(config.token_ids("bos_token_id")), None),
        eos_token_ids=_eos_token_ids(folder, config),
        dtype=_dtype(config),
    )
    require_consistent(result, config.path)
    return result


class Settings:
    """One JSON object with readers that name the file and the key when a value is amiss."""

    def __init__(self, path: Path, values: Mapping[str, Any]) -> None:
        self.path = path
        self.values = values

    @classmethod
    def read(cls, path: Path) -> Settings:
        try:
            values = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError as error:
            raise ModelLoadError(f"{path}: there is no such file") from error
        except (OSError, ValueError) as error:
            raise ModelLoadError(f"{path}: cannot be read as JSON: {error}") from error
        if not isinstance(values, dict):
            raise ModelLoadError(f"{path}: a JSON object was expected")
        return cls(path, values)

    def integer(self, key: str, default: int | None = None) -> int:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self._error(key, "a positive integer")
        return value

    def number(self, key: str, default: float | None = None) -> float:
        value = self._get(key, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
            raise self._error(key, "a positive number")
        return float(value)

    def flag(self, key: str) -> bool:
        value = self._get(key, False)
        if not isinstance(value, bool):
            raise self._error(key, "true or false")
        return value

    def token_ids(self, key: str) -> list[int]:
        """One id, several, or none."""
        value = self.values.get(key)
        ids = [] if value is None else value if isinstance(value, list) else [value]
        if not all(isinstance(item, int) and not isinstance(item, bool) for item in ids):
            raise self._error(key, "a token id or a list of them")
        return ids

    def _get(self, key: str, default: Any) -> Any:
        value = self.values.get(key)
        if value is None:
            value = default
        if value is None:
            raise ModelLoadError(f"{self.path}: {key!r} is missing")
        return value

    def _error(self, key: str, wanted: str) -> ModelLoadError:
        return ModelLoadError(
            f"{self.path}: {key!r} is {self.values.get(key)!r}; {wanted} was expected"
        )


def _family(config: Settings) -> _Family:
    model_type = config.values.get("model_type")
    family = _FAMILIES.get(model_type) if isinstance(model_type, str) else None
    if family is None:
        raise ModelLoadError(
            f"{config.path}: model type {model_type!r} is not supported; supported are "
            f"{', '.join(SUPPORTED_MODEL_TYPES)}"
        )
    return family


def _refuse_unsupported(config: Settings) -> None:
    quantization = config.values.get("quantization_config")
    if quantization is not None:
        method = quantization.get("quant_method") if isinstance(quantization, dict) else None
        # bitsandbytes' first files say load_in_4bit and nothing else.
        if method not in (None, *QUANTIZATION_METHODS):
            raise ModelLoadError(
                f"{config.path}: checkpoints quantized with {method} are not supported; supported "
                f"are {', '.join(QUANTIZATION_METHODS)}, or use the unquantized model or a GGUF "
                "file"
            )
    activation = config.values.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise ModelLoadError(
            f"{config.path}: activation {activation!r} is not supported; only silu is"
        )
    for values in (config.values, _rope(config).values):
        rotated = values.get("partial_rotary_factor")
        if rotated not in (None, 1):
            raise ModelLoadError(
                f"{config.path}: partial_rotary_factor {rotated!r} is not supported; only 1 is"
            )


def _rope(config: Settings) -> Settings:
    """The rope settings, whether in `rope_parameters` (transformers 5) or `rope_scaling`."""
    values = config.values.get("rope_parameters") or config.values.get("rope_scaling") or {}
    if not isinstance(values, dict) or any(isinstance(value, dict) for value in values.values()):
        raise ModelLoadError(
            f"{config.path}: rope settings of their own for some layers are not supported: "
            f"{values!r}"
        )
    return Settings(config.path, values)


def _rope_scaling(rope: Settings) -> RopeScaling:
    kind = rope.values.get("rope_type") or rope.values.get("type") or "default"
    if kind == "default":
        return RopeScaling()
    if kind == "linear":
        return RopeScaling("linear", rope.number("factor"))
    if kind == "llama3":
        return RopeScaling(
            "llama3",
            rope.number("factor"),
            rope.number("low_freq_factor"),
            rope.number("high_freq_factor"),
            rope.integer("original_max_position_embeddings"),
        )
    raise ModelLoadError(
        f"{rope.path}: rope scaling {kind!r} is not supported; default, linear and llama3 are"
    )


def _sliding_window(config: Settings, family: _Family) -> int | None:
    """None where all layers see everything; a mix of windowed and full layers is refused."""
    if config.values.get("model_type") in ("qwen2", "qwen3"):
        return _qwen_sliding_window(config)
    if family.sliding_window is None:
        return None
    if "sliding_window" in config.values and config.values["sliding_window"] is None:
        return None
    return config.integer("sliding_window", family.sliding_window)


def _qwen_sliding_window(config: Settings) -> int | None:
    if not config.flag("use_sliding_window"):
        return None
    num_layers = config.integer("num_hidden_layers")
    layer_types = config.values.get("layer_types")
    if layer_types is None:
        # Hugging Face's rule: layers from max_window_layers on have the window.
        first = config.values.get("max_window_layers", 28)
        layer_types = [
            "full_attention" if layer < first else "sliding_attention"
            for layer in range(num_layers)
        ]
    if set(layer_types) == {"full_attention"}:
        return None
    if set(layer_types) == {"sliding_attention"}:
        return config.integer("sliding_window", 4096)
    raise ModelLoadError(
        f"{config.path}: use_sliding_window with a window in some layers only is not supported"
    )


def _eos_token_ids(folder: Path, config: Settings) -> tuple[int, ...]:
    """The ids of config.json, then those that generation_config.json adds."""
    ids = list(config.token_ids("eos_token_id"))
    generation = folder / "generation_config.json"
    if generation.exists():
        ids += Settings.read(generation).token_ids("eos_token_id")
    return tuple(dict.fromkeys(ids))


def _dtype(config: Settings) -> str:
    """`dtype` since transformers 5, `torch_dtype` before; float32 where neither is given."""
    dtype = config.values.get("dtype") or config.values.get("torch_dtype") or "float32"
    name = str(dtype).removeprefix("torch.")
    if name not in _DTYPES:
        raise ModelLoadError(
            f"{config.path}: dtype {dtype!r} is not supported; {', '.join(_DTYPES)} are"
        )
    return name
