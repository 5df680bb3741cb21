"""Which class builds which architecture."""

from __future__ import annotations

from infra_lab.errors import ModelLoadError
from infra_lab.models.decoder import DecoderForCausalLM
from infra_lab.models.llama import LlamaForCausalLM
from infra_lab.models.mistral import MistralForCausalLM
from infra_lab.models.qwen2 import Qwen2ForCausalLM
from infra_lab.models.qwen3 import Qwen3ForCausalLM

MODEL_CLASSES: dict[str, type[DecoderForCausalLM]] = {
    "llama": LlamaForCausalLM,
    "mistral": MistralForCausalLM,
    "qwen2": Qwen2ForCausalLM,
    "qwen3": Qwen3ForCausalLM,
}


def model_class(architecture: str) -> type[DecoderForCausalLM]:
    """Raises ModelLoadError naming the architecture when no class implements it."""
    try:
        return MODEL_CLASSES[architecture]
    except KeyError:
        known = ", ".join(sorted(MODEL_CLASSES))
        raise ModelLoadError(
            f"architecture {architecture!r} is not supported; supported are {known}"
        ) from None
