"""Small steps run as one recorded call. Whose tokens they are and where their keys lie is data, and
how many there are is a number given with the call: one recording serves any requests."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from infra_lab.attention.backend import AttentionMetadata, LayerKVCache
from infra_lab.attention.native_backend import NativeAttentionBackend
from infra_lab.layers.rotary import Rotation
from infra_lab.models.decoder import DecoderForCausalLM
from infra_lab.native.memory import Workspace
from infra_lab.native.ops import PagedAttentionStep
from infra_lab.native.recording import Recording

# Tokens of the largest step that is replayed: of more the arithmetic hides what Python costs.
MOST_TOKENS = 64
WORKSPACE_BYTES = 64 << 20  # of addresses; memory comes as it is written
# What is recorded is not run: any step will do.
ANY_STEP = AttentionMetadata(
    query_start_loc=np.array([0, 1]),
    seq_lens=np.array([1]),
    block_tables=np.array([[0]]),
    slot_mapping=np.array([0]),
)


@dataclass
class _Recorded:
    """The layers' calls, and the tensors of MOST_TOKENS rows that they read and leave."""

    recording: Recording
    plan: PagedAttentionStep
    x: torch.Tensor
    tables: tuple[torch.Tensor, torch.Tensor]
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
        self._recorded: _Recorded | None = None
        self._is_possible = True

    def can_serve(self, num_tokens: int) -> bool:
        """Not where a layer computes with torch too: a replay would leave that out."""
        if num_tokens > MOST_TOKENS or not self._is_possible:
            return False
        if self._recorded is None:
            self._recorded = self._record()
            self._is_possible = self._recorded.recording.foreign is None
        return self._is_possible

    def forward(
        self, token_ids: torch.Tensor, positions: torch.Tensor, plan: PagedAttentionStep
    ) -> torch.Tensor:
        """token_ids, positions: int64 [num_tokens] -> residual stream [num_tokens, hidden].

        Only after `can_serve` has said so.
        """
        recorded = self._recorded
        assert recorded is not None
        num_tokens = len(token_ids)
        tables = self._model.rotary.tables(positions)
        given = (self._model.embed(token_ids), *tables)
        for place, values in zip((recorded.x, *recorded.tables), given, strict=True):
            place[:num_tokens].copy_(values)
        recorded.plan.become(plan)
        recorded.recording.replay(num_tokens)
        residual, delta = recorded.outputs
        return residual[:num_tokens] + delta[:num_tokens]

    def _record(self) -> _Recorded:
        x = torch.zeros(MOST_TOKENS, self._model.config.hidden_size)
        rotation = Rotation(self._model.rotary, torch.zeros(MOST_TOKENS, dtype=torch.int64))
        tables = rotation.tables  # made here, where no recording sees it
        plan = self._backend.plan(ANY_STEP)
        recording = Recording(MOST_TOKENS, Workspace(WORKSPACE_BYTES))
        with recording:
            outputs = self._model.run_layers(x, rotation, self._backend, self._caches, plan)
        return _Recorded(recording, plan, x, tables, outputs)
