"""One vector for a text, out of a decoder's final hidden states.

Answers "can a generative model embed text?". It can be read out: the mean of all tokens' states, or
the last token's, the only one that has seen the whole text. Whether the vector is any good is a
matter of training: Qwen3-Embedding was trained for the last one, a plain chat model for neither.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F

from infra_lab.attention.whole_sequence_backend import (
    NO_CACHE,
    WholeSequenceBackend,
    whole_sequences,
)
from infra_lab.models.decoder import DecoderForCausalLM


class Embedder:
    """Computes each text in one pass of its own: no block of the KV cache is touched."""

    def __init__(self, model: DecoderForCausalLM) -> None:
        self._model = model
        self._backend = WholeSequenceBackend(model.attention_shape)
        self._caches = [NO_CACHE] * len(model.layers)

    @torch.inference_mode()
    def embed(self, token_ids: Sequence[int], pooling: str) -> list[float]:
        """token_ids: [n], n >= 1 -> fp32 [hidden], of Euclidean length 1.

        pooling: "mean" of the states behind the final norm, or the "last" token's.
        """
        model, count = self._model, len(token_ids)
        ids = torch.tensor(token_ids, dtype=torch.int64, device=model.device)
        positions = torch.arange(count, device=model.device)
        plan = self._backend.plan(whole_sequences([count]))
        wanted = positions[-1:] if pooling == "last" else None
        hidden = model.forward(ids, positions, self._backend, self._caches, plan, wanted)
        vector = model.norm(hidden).float().mean(0)
        normalized: list[float] = F.normalize(vector, dim=0).tolist()
        return normalized
