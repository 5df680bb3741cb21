"""Carries out a step: lays out the batch, runs the model, samples.

The runner decides nothing. Which tokens, which blocks and who samples all stand in the
SchedulerOutput; what it keeps itself is each request's sampling state.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import torch

from infra_lab.attention.backend import AttentionBackend
from infra_lab.attention.native_backend import NativeAttentionBackend
from infra_lab.models.decoder import DecoderForCausalLM
from infra_lab.sampling.request_state import SamplingState
from infra_lab.sampling.sampler import sample, token_logprobs
from infra_lab.step import ModelOutput, SchedulerOutput, StepTimings, TokenLogprobs
from infra_lab.worker.input_batch import InputBatch, build_input_batch
from infra_lab.worker.kv_cache import allocate_kv_cache, copy_blocks
from infra_lab.worker.replayed_layers import ReplayedLayers

# Rows of logits held at once for prompt log-probabilities: a row is vocab_size floats.
PROMPT_LOGPROB_ROWS = 64


class ModelRunner:
    """Owns the weights, the cache tensors and the sampling states of live requests."""

    def __init__(
        self,
        model: DecoderForCausalLM,
        backend: AttentionBackend[Any],
        num_blocks: int,
        block_size: int,
        pretouch_kv_cache: bool = False,
        kv_cache_dtype: str = "auto",
        sparse_kv: bool = False,
    ) -> None:
        self.model = model
        self.backend = backend
        self.block_size = block_size
        self.caches = allocate_kv_cache(
            model.config,
            num_blocks,
            block_size,
            model.dtype,
            model.device,
            pretouch_kv_cache,
            kv_cache_dtype,
            sparse_kv,
        )
        self.timings = StepTimings()
        self._states: dict[str, SamplingState] = {}
        self._replayed = (
            ReplayedLayers(model, backend, self.caches)
            if isinstance(backend, NativeAttentionBackend)
            else None
        )

    @torch.inference_mode()
    def execute(self, scheduler_output: SchedulerOutput) -> ModelOutput:
        """Computes every scheduled token and samples where the scheduler says so."""
        for request_id in scheduler_output.finished_request_ids:
            self._states.pop(request_id, None)
        for request in scheduler_output.new_requests:
            self._states[request.request_id] = SamplingState(request)
        copy_blocks(self.caches, scheduler_output.block_copies)
        if not scheduler_output.scheduled:
            return ModelOutput()
        started = time.perf_counter()
        batch = build_input_batch(scheduler_output, self.block_size)
        plan = self.backend.plan(batch.metadata)
        prepared = time.perf_counter()
        wanted = batch.wanted_rows
        all_wanted = len(wanted) == len(batch.token_ids)
        token_ids, positions = self._to_device(batch.token_ids), self._to_device(batch.positions)
        if all_wanted and self._replayed and self._replayed.can_serve(len(token_ids)):
            hidden = self._replayed.forward(token_ids, positions, plan)
        else:
            rows = None if all_wanted else self._to_device(wanted)
            hidden = self.model.forward(token_ids, positions, self.backend, self.caches, plan, rows)
        prompt_logprobs = self._prompt_logprobs(batch, hidden)
        logits = None
        if batch.sampling_ids:
            logits = self._logits(hidden, np.searchsorted(wanted, batch.sample_rows))
        computed = time.perf_counter()
        output = ModelOutput(prompt_logprobs=prompt_logprobs)
        if logits is not None:
            self._sample(logits, batch.sampling_ids, output)
        finished = time.perf_counter()
        self.timings = StepTimings(
            1e3 * (prepared - started), 1e3 * (computed - prepared), 1e3 * (finished - computed)
        )
        return output

    def _logits(self, hidden: torch.Tensor, rows: object) -> torch.Tensor:
        """Logits of the named rows only: the head is a fifth of a small model's work."""
        index = self._to_device(rows)
        return self.model.logits(hidden.index_select(0, index))

    def _sample(self, logits: torch.Tensor, request_ids: list[str], output: ModelOutput) -> None:
        states = [self._states[request_id] for request_id in request_ids]
        token_ids = sample(logits, states)
        wanted = [i for i, state in enumerate(states) if state.num_logprobs is not None]
        if wanted:
            reported = token_logprobs(
                logits[wanted],
                [token_ids[i] for i in wanted],
                [states[i].num_logprobs or 0 for i in wanted],
            )
            for i, entry in zip(wanted, reported, strict=True):
                output.logprobs[request_ids[i]] = [entry]
        for request_id, state, token_id in zip(request_ids, states, token_ids, strict=True):
            state.append(token_id)
            output.sampled_token_ids[request_id] = [token_id]

    def _prompt_logprobs(
        self, batch: InputBatch, hidden: torch.Tensor
    ) -> dict[str, list[TokenLogprobs]]:
        result = {}
        for request_id, rows in batch.prompt_logprob_rows.items():
            state = self._states[request_id]
            first = int(batch.positions[rows.start])
            successors = list(state.prompt_token_ids[first + 1 : first + 1 + len(rows)])
            if not successors:
                continue
            num_top = state.params.prompt_logprobs or 0
            entries: list[TokenLogprobs] = []
            for begin in range(0, len(successors), PROMPT_LOGPROB_ROWS):
                piece = successors[begin : begin + PROMPT_LOGPROB_ROWS]
                start = int(np.searchsorted(batch.wanted_rows, rows.start)) + begin
                logits = self._logits(hidden, range(start, start + len(piece)))
                entries += token_logprobs(logits, piece, [num_top] * len(piece))
            result[request_id] = entries
        return result

    def _to_device(self, values: object) -> torch.Tensor:
        return torch.as_tensor(values, dtype=torch.int64).to(self.model.device)
