"""A PEFT folder's adapter_config.json: which low-rank products to add, and how large. Torch-free.

What would change the result is honoured or refused, options that did not exist when this was
written among them: an adapter is never run as something that it is not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from infra_lab.errors import ModelLoadError
from infra_lab.models.hf_config import Settings

CONFIG_FILE = "adapter_config.json"
TARGET_MODULES = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")

# Read below, or without a part in what the adapter computes once it is trained.
_KNOWN = {"peft_type", "r", "lora_alpha", "use_rslora", "target_modules", "bias"}
_KNOWN |= {"init_lora_weights", "auto_mapping", "base_model_name_or_path", "revision"}
_KNOWN |= {"inference_mode", "peft_version", "task_type", "lora_dropout", "megatron_core"}
_KNOWN |= {"layers_to_transform", "layers_pattern", "exclude_modules", "qalora_group_size"}
# Starts of training that leave the base model's weights as they are.
_NEUTRAL_STARTS = (True, False, "gaussian", "eva", "orthogonal")


@dataclass(frozen=True, slots=True)
class PeftConfig:
    """rank: columns of A and rows of B. scaling: what B A x is multiplied with."""

    rank: int
    scaling: float


def read_peft_config(folder: Path, max_rank: int) -> PeftConfig:
    """Raises ModelLoadError, naming the option, for what is damaged, unsupported or of a rank
    above `max_rank`."""
    settings = Settings.read(folder / CONFIG_FILE)
    values = settings.values
    if values.get("peft_type") != "LORA":
        raise _unsupported(settings, "peft_type", "only LORA is supported")
    if values.get("bias", "none") != "none":
        raise _unsupported(settings, "bias", "trained biases are not supported")
    if values.get("init_lora_weights", True) not in _NEUTRAL_STARTS:
        raise _unsupported(
            settings,
            "init_lora_weights",
            "it changed the base model's weights before training; convert the adapter with "
            "peft's path_initial_model_for_weight_conversion",
        )
    for name, value in values.items():
        if name not in _KNOWN and value not in (None, False, 0, [], {}):
            raise _unsupported(settings, name, "this option is not supported")
    _check_targets(settings)
    rank = settings.integer("r")
    if rank > max_rank:
        raise ModelLoadError(
            f"{settings.path}: r is {rank}, above the limit of {max_rank}: raise max_lora_rank"
        )
    alpha = settings.number("lora_alpha")
    is_stabilised = settings.flag("use_rslora")
    return PeftConfig(rank, alpha / (math.sqrt(rank) if is_stabilised else rank))


def _check_targets(settings: Settings) -> None:
    """A pattern is not looked into: the tensors say what it matched."""
    targets: Any = settings.values.get("target_modules")
    if isinstance(targets, str):
        return
    if not isinstance(targets, list) or not targets:
        raise _unsupported(settings, "target_modules", "a list of modules was expected")
    for target in targets:
        if not isinstance(target, str) or target.rpartition(".")[2] not in TARGET_MODULES:
            raise _unsupported(
                settings,
                "target_modules",
                f"{target!r} is not supported; {', '.join(TARGET_MODULES)} are",
            )


def _unsupported(settings: Settings, name: str, reason: str) -> ModelLoadError:
    return ModelLoadError(f"{settings.path}: {name} is {settings.values.get(name)!r:.60}: {reason}")
