"""From a model and settings to a quantized model: layer after layer, kept as they get done.

Answers "what happens between a checkpoint and its 4-bit version?". What comes out is a checkpoint
in memory, which the engine runs and the writer writes.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from infra_lab.errors import UsageError
from infra_lab.formats.quantized_weight import QuantizedWeight
from infra_lab.models.checkpoint import Checkpoint
from infra_lab.quantization.layer_methods import LAYER_METHODS
from infra_lab.quantization.layer_result import LayerResult
from infra_lab.quantization.layer_stream import LayerStream
from infra_lab.quantization.layer_view import LayerView
from infra_lab.quantization.overlay import OverlayCheckpoint
from infra_lab.quantization.partial_folder import PartialFolder
from infra_lab.quantization.rotated_checkpoint import RotatedCheckpoint
from infra_lab.quantization.settings import QuantizationSettings
from infra_lab.quantization.targets import Target, activation_format

Progress = Callable[[int, int, str], None]


def quantize_model(
    source: Checkpoint,
    settings: QuantizationSettings,
    sequences: torch.Tensor | None = None,
    weight_format: Target | None = None,
    partial: PartialFolder | None = None,
    progress: Progress | None = None,
) -> OverlayCheckpoint:
    """The same model with all linear layers of its decoder quantized.

    Args:
        sequences: int64 [num_sequences, sequence_length], for a method that is calibrated.
        weight_format: how the weights will be stored; what that rounds is rounded here, so that
            what is measured is what is written. None leaves them as the method made them.
        partial: finished layers are kept there, and those that are there already are not made
            again. Results are the same to the last bit.
        progress: told how many layers are done, of how many, and what is going on.

    Raises ModelLoadError for weights that are NaN or infinite, UsageError for what does not fit.
    """
    source = _base(source, settings)
    num_layers = source.config.num_hidden_layers
    activation = activation_format(settings)
    missing = [n for n in range(num_layers) if partial is None or not partial.has(n)]
    stream = None
    if settings.is_calibrated and missing:
        if sequences is None:
            raise UsageError(f"{settings.method} is calibrated: give it sequences")
        stream = LayerStream(source, sequences)
    in_memory = LayerResult()
    for layer in range(num_layers):
        if progress is not None:
            progress(layer, num_layers, f"layer {layer}")
        if layer in missing:
            view = LayerView(source, layer, stream, activation)
            done = _stored(LAYER_METHODS[settings.method](view, settings), weight_format)
            if partial is None:
                in_memory.weights.update(done.weights)
                in_memory.dense.update(done.dense)
            else:
                partial.save(layer, done)
        elif stream is not None and partial is not None:
            done = partial.load(layer)
        if stream is not None and layer < missing[-1]:
            stream.advance(OverlayCheckpoint(source, done.weights, done.dense, activation))
    if progress is not None:
        progress(num_layers, num_layers, "layers")
    if partial is None:
        return OverlayCheckpoint(source, in_memory.weights, in_memory.dense, activation)
    weights, dense = partial.weights(num_layers), partial.dense(num_layers)
    return OverlayCheckpoint(source, weights, dense, activation)


def _base(source: Checkpoint, settings: QuantizationSettings) -> Checkpoint:
    """The model whose layers are quantized: the source, or its like with rotated weights."""
    if settings.method in ("rotation", "quip"):
        return RotatedCheckpoint(source, settings.seed)
    return source


def _stored(layer: LayerResult, weight_format: Target | None) -> LayerResult:
    if weight_format is None:
        return layer
    stored: dict[str, QuantizedWeight] = {}
    for name, weight in layer.weights.items():
        try:
            stored[name] = weight_format.as_stored(weight)
        except UsageError as error:
            raise UsageError(f"{name}: {error}") from None
    return LayerResult(stored, layer.dense)
