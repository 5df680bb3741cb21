"""The quantized layers of a Hugging Face folder: which there are, and whether they are whole.

Every tensor that the folder's format asks for is looked for when the folder is opened, so that a
missing or misshapen one is named before anything is read.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from infra_lab.errors import ModelLoadError
from infra_lab.formats.checkpoint_format import CheckpointFormat, checkpoint_format
from infra_lab.formats.layer_format import LayerFormat
from infra_lab.formats.weight_format import FLOATS, StoredTensor
from infra_lab.models.config import ModelConfig
from infra_lab.models.hf_config import Settings
from infra_lab.models.safetensors_file import TensorEntry
from infra_lab.models.shapes import Shape, parameter_shapes

_EMBEDDING = "model.embed_tokens.weight"


def folder_format(path: Path) -> CheckpointFormat | None:
    """What config.json says of quantization; None if it says nothing.

    Raises ModelLoadError when it asks for what is not supported.
    """
    config = Settings.read(path / "config.json")
    values = config.values.get("quantization_config")
    if values is None:
        return None
    if not isinstance(values, dict):
        raise ModelLoadError(f"{config.path}: 'quantization_config' must be an object")
    try:
        return checkpoint_format(values)
    except ModelLoadError as error:
        raise ModelLoadError(f"{config.path}: {error}") from error


def quantized_layers(
    found: CheckpointFormat,
    config: ModelConfig,
    entries: Mapping[str, TensorEntry],
    path: Path,
) -> dict[str, LayerFormat]:
    """The format of every matrix that is stored quantized, by its parameter's name.

    What the format is meant for may still be stored as it was trained, and is then left out.
    Raises ModelLoadError naming a tensor that is missing, of the wrong shape or of another type.
    """
    layers = {}
    for name, shape in parameter_shapes(config).items():
        module = name.removesuffix(".weight")
        if len(shape) != 2 or name == _EMBEDDING or is_plain(entries.get(name)):
            continue
        layer = found.of(module)
        if layer is None:
            continue
        for suffix, wanted in layer.tensors(*shape).items():
            _require(f"{module}.{suffix}", wanted, entries, layer, path)
        layers[name] = layer
    return layers


def stored_names(
    name: str, layer: LayerFormat, shape: Shape, entries: Mapping[str, TensorEntry]
) -> dict[str, str]:
    """The names in the file of all that a quantized layer has, by what follows the module's."""
    module = name.removesuffix(".weight")
    out_features, in_features = shape
    names = {suffix: f"{module}.{suffix}" for suffix in layer.tensors(out_features, in_features)}
    return {suffix: stored for suffix, stored in names.items() if stored in entries}


def is_plain(entry: TensorEntry | None) -> bool:
    return entry is not None and entry.dtype in FLOATS


def _require(
    name: str,
    wanted: StoredTensor,
    entries: Mapping[str, TensorEntry],
    layer: LayerFormat,
    path: Path,
) -> None:
    entry = entries.get(name)
    if entry is None:
        if wanted.required:
            raise ModelLoadError(f"{path}: tensor {name!r} is missing, which {layer.label} needs")
        return
    if entry.dtype not in wanted.dtypes:
        raise ModelLoadError(
            f"{path}: tensor {name!r} is of type {entry.dtype}, but {layer.label} keeps "
            f"{' or '.join(wanted.dtypes)}"
        )
    if not any(_fits(entry.shape, shape) for shape in wanted.shapes):
        raise ModelLoadError(
            f"{path}: tensor {name!r} has shape {list(entry.shape)}, but {layer.label} and the "
            f"config ask for {list(wanted.shapes[0])}"
        )


def _fits(shape: Shape, wanted: tuple[int | None, ...]) -> bool:
    return len(shape) == len(wanted) and all(
        size is None or size == found for found, size in zip(shape, wanted, strict=True)
    )
