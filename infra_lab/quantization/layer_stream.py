"""The calibration sequences on their way through a model, one decoder layer at a time.

Answers "how does one quantize a 70B model on a machine that cannot hold it?": only one layer's
weights are ever there, and the residual stream of the calibration text between two layers. A layer
sees what the quantized layers before it give, not what the original ones would.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from infra_lab.attention.whole_sequence_backend import (
    NO_CACHE,
    WholeSequenceBackend,
    whole_sequences,
)
from infra_lab.layers.linear import Linear
from infra_lab.layers.rotary import RotaryEmbedding, inverse_frequencies
from infra_lab.models.checkpoint import Checkpoint
from infra_lab.models.decoder import DecoderLayer, attention_shape
from infra_lab.models.registry import model_class
from infra_lab.models.weights import Weights
from infra_lab.quantization.modules import GROUPS, LinearGroup, layer_prefix

# Told a group and its input [num_tokens, in_features]; may give another layer in its place.
Visit = Callable[[LinearGroup, torch.Tensor], Linear | None]


class LayerStream:
    """Holds the residual stream before one layer.

    Attributes:
        layer: the number of the layer that comes next.
        hidden: fp32 [num_sequences * length, hidden_size], what goes into it.
    """

    def __init__(self, checkpoint: Checkpoint, sequences: torch.Tensor) -> None:
        """sequences: int64 [num_sequences, length] token ids."""
        config = checkpoint.config
        num_sequences, length = sequences.shape
        self.layer = 0
        self._attention_class = model_class(config.architecture).attention_class
        self._backend = WholeSequenceBackend(attention_shape(config))
        self._plan = self._backend.plan(whole_sequences([length] * num_sequences))
        frequencies = inverse_frequencies(config.head_dim, config.rope_theta, config.rope_scaling)
        device = torch.device("cpu")
        rotary = RotaryEmbedding(frequencies, length, torch.float32, device)
        self._rotation = rotary.at(torch.arange(length).repeat(num_sequences))
        embeddings = checkpoint.tensor("model.embed_tokens.weight", torch.float32)
        self.hidden = embeddings.index_select(0, sequences.reshape(-1))

    def visit(self, checkpoint: Checkpoint, visit: Visit) -> None:
        """Shows `visit` the input of every group of the next layer, as `checkpoint` has it, in the
        order in which they are computed; the stream stays where it is."""
        layer = self._build(checkpoint)
        for group in GROUPS:
            part = getattr(layer, group.part)
            setattr(part, group.layer, _Visited(getattr(part, group.layer), group, visit))
        self._run(layer)

    def advance(self, checkpoint: Checkpoint) -> None:
        """Goes through the next layer, as `checkpoint` has it."""
        stream, delta = self._run(self._build(checkpoint))
        self.hidden = stream.add_(delta)
        self.layer += 1

    def _build(self, checkpoint: Checkpoint) -> DecoderLayer:
        weights = Weights(checkpoint, torch.float32, torch.device("cpu"))
        below = weights.below(layer_prefix(self.layer).removesuffix("."))
        return DecoderLayer(checkpoint.config, below, self._attention_class)

    def _run(self, layer: DecoderLayer) -> tuple[torch.Tensor, torch.Tensor]:
        stream = self.hidden.clone()  # a layer adds to it in place
        return layer(stream, None, self._rotation, self._backend, NO_CACHE, self._plan)


class _Visited:
    """A Linear whose input is shown before it is used."""

    def __init__(self, base: Linear, group: LinearGroup, visit: Visit) -> None:
        self.in_features, self.out_features = base.in_features, base.out_features
        self._base = base
        self._group = group
        self._visit = visit

    def __call__(self, x: torch.Tensor) -> torch.Tensor:
        other = self._visit(self._group, x)
        return self._base(x) if other is None else other(x)

    def rows(self, indices: torch.Tensor) -> torch.Tensor:
        return self._base.rows(indices)
