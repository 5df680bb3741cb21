"""Quantized weights as a Hugging Face folder that transformers, vLLM and infra-lab read.

A shard at a time, into a temporary sibling that gets its name when it is whole: an interruption
leaves no half folder. Answers "what has to be in a quantized checkpoint besides the weights?".
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import torch

from infra_lab.errors import UsageError
from infra_lab.formats.gptq import GPTQFormat
from infra_lab.formats.layouts import quantization_values
from infra_lab.formats.quantized_weight import ActivationFormat, QuantizedWeight
from infra_lab.formats.weight_format import WeightFormat
from infra_lab.models.checkpoint import Checkpoint
from infra_lab.models.hf_config import Settings
from infra_lab.models.hf_export import hugging_face_config, save_tokenizer
from infra_lab.models.shapes import parameter_shapes
from infra_lab.quantization.whole_or_not import new_folder

MAX_SHARD_BYTES = 2 << 30

_EMBEDDING = "model.embed_tokens.weight"
_HEAD = "lm_head.weight"


def write_folder(
    source: Checkpoint,
    out: Path,
    weights: Mapping[str, QuantizedWeight],
    weight_format: WeightFormat,
    *,
    activation: ActivationFormat | None = None,
    dense: Mapping[str, torch.Tensor] | None = None,
    dtype: torch.dtype = torch.float16,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Writes config.json with its quantization_config, the weights and the tokenizer.

    Args:
        source: the model that was quantized; whatever is in neither mapping comes from here.
        out: a folder that is not there yet.
        weights: by parameter name ("model.layers.0.mlp.up_proj.weight"); each is asked for once,
            so a mapping may load or compute them one by one. What is stored of each is
            `weight_format.as_stored(weight)`.
        weight_format: how they are stored, from `formats.layouts.weight_format`.
        activation: what the layers do to their inputs, where the format can say so.
        dense: parameters that changed without being quantized, such as smoothed norms; a head
            of its own for a model that had its embedding as head.
        dtype: of everything that is not quantized.
        max_shard_bytes: a file of weights ends before it exceeds this; one file has the plain name.

    Raises UsageError when `out` is there already, the format cannot hold a weight (which is
    named) or say what the layers do to their inputs, or a number is too large for `dtype`.
    """
    dense = dense or {}
    names = parameter_names(source, weights, dense)
    ignored = _left_out(source, weights, weight_format)
    dtype_name = str(dtype).removeprefix("torch.")
    quantization = quantization_values(weight_format, activation, ignored)
    config = _config(source, dtype_name, untied=_HEAD in dense) | {
        "quantization_config": quantization
    }
    with new_folder(out) as work:
        (work / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
        save_tokenizer(source.path, work)
        shards = _Shards(work, max_shard_bytes)
        for name in names:
            if name in weights:
                for stored, tensor in _stored(name, weights[name], weight_format):
                    shards.add(stored, tensor)
            else:
                shards.add(name, dense_tensor(source, name, dense, dtype))
        shards.finish()


def parameter_names(
    source: Checkpoint, weights: Mapping[str, QuantizedWeight], dense: Mapping[str, torch.Tensor]
) -> list[str]:
    """All parameters of the model to write, in its order. Raises UsageError for one that has no
    place in it, or two values."""
    names = list(dict.fromkeys([*source.names(), *([_HEAD] if _HEAD in dense else [])]))
    for name in [*weights, *dense]:
        if name not in names:
            raise UsageError(f"{name!r} is no parameter of {source.path}")
    for name in weights:
        if name in dense:
            raise UsageError(f"{name!r} is given both quantized and as it is")
    return names


def dense_tensor(
    source: Checkpoint, name: str, dense: Mapping[str, torch.Tensor], dtype: torch.dtype
) -> torch.Tensor:
    """One that is not quantized, as it is stored: contiguous, of this dtype, all finite."""
    exact = dense[name] if name in dense else source.tensor(name, torch.float32)
    tensor = exact.to(dtype).contiguous()
    if not torch.all(torch.isfinite(tensor)):
        if not torch.all(torch.isfinite(exact)):
            raise UsageError(f"{name!r} has numbers in it that are not finite")
        raise UsageError(
            f"{name!r} has {exact.abs().max().item():.4g} in it, which is too large for "
            f"{str(dtype).removeprefix('torch.')}: choose bfloat16 or float32 for what is not "
            "quantized"
        )
    return tensor


def _stored(
    name: str, weight: QuantizedWeight, weight_format: WeightFormat
) -> Iterator[tuple[str, torch.Tensor]]:
    try:
        tensors = weight_format.write(weight)
    except UsageError as error:
        raise UsageError(f"{name!r} cannot be written: {error}") from error
    module = name.removesuffix(".weight")
    for suffix, tensor in tensors.items():
        yield f"{module}.{suffix}", tensor.contiguous()


def _left_out(
    source: Checkpoint, weights: Mapping[str, QuantizedWeight], weight_format: WeightFormat
) -> list[str]:
    """Linear layers that stay as they are; a head that is the embedding is one too."""
    if _EMBEDDING in weights:
        raise UsageError(f"{weight_format.label}: a folder keeps its embedding as it is")
    linear = [name for name, shape in parameter_shapes(source.config).items() if len(shape) == 2]
    left = [name for name in linear if name not in weights and name != _EMBEDDING]
    if isinstance(weight_format, GPTQFormat):
        wrong = [name for name in left if name != _HEAD] + [_HEAD] * (_HEAD in weights)
        if wrong:
            raise UsageError(
                "a GPTQ checkpoint quantizes every linear layer but the head, and here "
                f"{wrong[0]!r} is otherwise"
            )
    modules = [name.removesuffix(".weight") for name in left]
    return list(dict.fromkeys([*modules, *([] if _HEAD in weights else ["lm_head"])]))


def _config(source: Checkpoint, dtype: str, untied: bool) -> dict[str, Any]:
    """The model's config.json, without what said how the source was stored."""
    if source.path.is_dir():
        values = dict(Settings.read(source.path / "config.json").values)
        values.pop("quantization_config", None)
        values.pop("dtype", None)
    else:
        values = hugging_face_config(source.config)
    values["torch_dtype"] = dtype
    if untied:
        values["tie_word_embeddings"] = False
    return values


class _Shards:
    """Safetensors files, each of at most so many bytes, and the index that names them if there
    are several."""

    def __init__(self, folder: Path, max_bytes: int) -> None:
        self._folder = folder
        self._max_bytes = max_bytes
        self._files: list[list[str]] = []
        self._waiting: dict[str, torch.Tensor] = {}
        self._waiting_bytes = 0
        self._total_bytes = 0

    def add(self, name: str, tensor: torch.Tensor) -> None:
        if self._waiting and self._waiting_bytes + tensor.nbytes > self._max_bytes:
            self._flush()
        self._waiting[name] = tensor
        self._waiting_bytes += tensor.nbytes
        self._total_bytes += tensor.nbytes

    def finish(self) -> None:
        self._flush()
        count = len(self._files)
        if count == 1:
            self._part(0).rename(self._folder / "model.safetensors")
            return
        weight_map = {}
        for index, names in enumerate(self._files):
            file = self._folder / f"model-{index + 1:05}-of-{count:05}.safetensors"
            self._part(index).rename(file)
            weight_map.update(dict.fromkeys(names, file.name))
        text = json.dumps(
            {"metadata": {"total_size": self._total_bytes}, "weight_map": weight_map}, indent=2
        )
        (self._folder / "model.safetensors.index.json").write_text(text + "\n", encoding="utf-8")

    def _flush(self) -> None:
        from safetensors.torch import save_file

        save_file(self._waiting, self._part(len(self._files)), metadata={"format": "pt"})
        self._files.append(list(self._waiting))
        self._waiting, self._waiting_bytes = {}, 0

    def _part(self, index: int) -> Path:
        return self._folder / f"part-{index}.safetensors"
