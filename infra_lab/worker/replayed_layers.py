"""Small steps run as one recorded call. A step's shape is its number of tokens: whose they are and
where their keys lie is data, so one recording serves any requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch

from infra_lab.attention.backend import LayerKVCache
from infra_lab.attention.native_backend import NativeAttentionBackend
from infra_lab.layers.rotary import Rotation
from infra_lab.models.decoder import DecoderForCausalLM
from infra_lab.native.ops import PagedAttentionStep
from infra_lab.native.recording import Recording

# Tokens of the largest step that is recorded. Every recording keeps its activations for itself,
# and from a dozen tokens the weights' arithmetic hides what Python costs.
MOST_TOKENS = 8


@dataclass
class _Recorded:
    recording: Recording
    plan: PagedAttentionStep
    x: torch.Tensor
    rotation: Rotation
    outputs: tuple[torch.Tensor, torch.Tensor]


class ReplayedLayers:
    """`DecoderForCausalLM.forward` for steps of a few tokens that are all wanted."""

    def __init__(
        self,
        model: DecoderForCausalLM,
        backend: NativeAttentionBackend,
        caches: Sequence[LayerKVCache],
    ) -> None:
        self._model = model
        self._backend = backend
        self._caches = caches
        self._recorded: dict[int, _Recorded] = {}
        self._is_possible = True

    def can_serve(self, num_tokens: int) -> bool:
        """Not where a layer computes with torch too: a replay would leave that out."""
        return self._is_possible and num_tokens <= MOST_TOKENS

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, plan: PagedAttentionStep
    ) -> torch.Tensor:
        """token_ids, positions: int64 [num_tokens] -> residual stream [num_tokens, hidden]."""
        x, rotation = self._model.embed(token_ids), self._model.rotary.at(positions)
        tables = rotation.tables  # made here, where no recording can see it
        recorded = self._recorded.get(len(token_ids))
        if recorded is None:
            recorded = self._record(x, rotation, plan)
        else:
            recorded.x.copy_(x)
            for place, value in zip(recorded.rotation.tables, tables, strict=True):
                place.copy_(value)
            recorded.plan.become(plan)
            recorded.recording.replay()
        residual, delta = recorded.outputs
        return residual + delta

    def _record(self, x: torch.Tensor, rotation: Rotation, plan: PagedAttentionStep) -> _Recorded:
        with Recording() as recording:
            outputs = self._model.run_layers(x, rotation, self._backend, self._caches, plan)
        recorded = _Recorded(recording, plan, x, rotation, outputs)
        if recording.foreign is None:
            self._recorded[len(x)] = recorded
        else:
            self._is_possible = False
        return recorded
