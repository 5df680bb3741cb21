"""Carries out a step: lays out the batch, runs the model, samples.

The runner decides nothing. Which tokens, which blocks and who samples all stand in the
SchedulerOutput; what it keeps itself is each request's sampling state.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from itertools import compress
from typing import Any

import numpy as np
import torch

from infra_lab.attention.backend import AttentionBackend
from infra_lab.models.decoder import DecoderForCausalLM
from infra_lab.sampling.grammar import GrammarCompiler
from infra_lab.sampling.rejection_sampler import sample_and_verify
from infra_lab.sampling.request_state import SamplingState
from infra_lab.sampling.sampler import token_logprobs
from infra_lab.step import ModelOutput, NewRequest, SchedulerOutput, StepTimings, TokenLogprobs
from infra_lab.worker.decoder_runner import DecoderRunner
from infra_lab.worker.embedder import Embedder
from infra_lab.worker.host_kv_cache import host_kv_cache, written_blocks
from infra_lab.worker.input_batch import InputBatch, build_input_batch
from infra_lab.worker.kv_cache import copy_blocks
from infra_lab.worker.lora_adapters import LoRAAdapters

# Rows of logits held at once for prompt log-probabilities: a row is vocab_size floats.
PROMPT_LOGPROB_ROWS = 64


class ModelRunner:
    """Owns the model with its cache and the sampling states of live requests.

    Args:
        grammars: compiles what structured outputs ask for; None where there is no tokenizer.
    """

    def __init__(
        self,
        model: DecoderForCausalLM,
        backend: AttentionBackend[Any],
        num_blocks: int,
        block_size: int,
        pretouch_kv_cache: bool = False,
        grammars: GrammarCompiler | None = None,
        max_lora_rank: int = 64,
        num_host_blocks: int = 0,
        kv_cache_dtype: str = "auto",
        sparse_kv: bool = False,
    ) -> None:
        self.model = model
        self.backend = backend
        self.block_size = block_size
        self.timings = StepTimings()
        self._decoder = DecoderRunner(
            model, backend, num_blocks, block_size, pretouch_kv_cache, kv_cache_dtype, sparse_kv
        )
        self.caches = self._decoder.caches
        self.host_cache = host_kv_cache(self.caches, num_host_blocks) if num_host_blocks else None
        self.adapters = LoRAAdapters(model, max_lora_rank)
        self._adapter_ids: dict[str, str] = {}
        self._embedder = Embedder(model)
        self._grammars = grammars
        self._states: dict[str, SamplingState] = {}

    @torch.inference_mode()
    def execute(self, scheduler_output: SchedulerOutput) -> ModelOutput:
        """Computes every scheduled token and samples where the scheduler says so."""
        for request_id in scheduler_output.finished_request_ids:
            self._states.pop(request_id, None)
            self._adapter_ids.pop(request_id, None)
        for request in scheduler_output.new_requests:
            self._states[request.request_id] = self._new_state(request)
            if request.lora is not None:
                self._adapter_ids[request.request_id] = request.lora
        self._copy_blocks(scheduler_output)
        if not scheduler_output.scheduled:
            return ModelOutput()
        started = time.perf_counter()
        batch = build_input_batch(scheduler_output, self.block_size)
        plan = self.backend.plan(batch.metadata)
        if self.host_cache is not None:
            self.host_cache.before_write(written_blocks(scheduler_output, self.block_size))
            if scheduler_output.swap_ins:
                self.host_cache.before_read()
        prepared = time.perf_counter()
        # A recording holds the base model's products alone.
        has_adapters = self._begin_adapters(scheduler_output, batch.wanted_rows)
        hidden = self._decoder.forward(batch, plan, may_replay=not has_adapters)
        self.adapters.end_step()
        prompt_logprobs = self._prompt_logprobs(batch, hidden)
        output = ModelOutput(prompt_logprobs=prompt_logprobs)
        batch = self._able_to_sample(batch, output)
        logits = None
        if batch.sampling_ids:
            logits = self._decoder.sampled_logits(batch, hidden)
        computed = time.perf_counter()
        if logits is not None:
            self._sample(logits, batch, output)
        finished = time.perf_counter()
        self.timings = StepTimings(
            1e3 * (prepared - started), 1e3 * (computed - prepared), 1e3 * (finished - computed)
        )
        return output

    def embed(self, token_ids: Sequence[int], pooling: str) -> list[float]:
        """A text's vector, see Embedder; between two steps, of which it leaves no trace."""
        return self._embedder.embed(token_ids, pooling)

    def _begin_adapters(self, scheduler_output: SchedulerOutput, wanted: np.ndarray) -> bool:
        """Tells the layers whose rows need an adapter; returns whether any do."""
        scheduled = scheduler_output.scheduled
        return self.adapters.begin_step(
            [self._adapter_ids.get(item.request_id) for item in scheduled],
            [len(item.token_ids) for item in scheduled],
            wanted,
        )

    def _new_state(self, request: NewRequest) -> SamplingState:
        params = request.sampling_params
        compiled = None if self._grammars is None else self._grammars.compile_for(params)
        if compiled is None:
            return SamplingState(request)
        return SamplingState(request, compiled.start(params.stop_token_ids, params.min_tokens))

    def _copy_blocks(self, scheduler_output: SchedulerOutput) -> None:
        """In the order that SchedulerOutput promises; copies to and from the host may go on."""
        host, within = self.host_cache, scheduler_output.block_copies
        if host is not None:
            host.swap_out(scheduler_output.swap_outs)
            host.before_write(copy.target for copy in within)
        copy_blocks(self.caches, within)
        if host is not None:
            host.swap_in(scheduler_output.swap_ins)

    def _able_to_sample(self, batch: InputBatch, output: ModelOutput) -> InputBatch:
        """Leaves out, with the reason, the requests whose document cannot be continued."""
        for request_id in batch.sampling_ids:
            grammar = self._states[request_id].grammar
            if grammar is not None and (error := grammar.error) is not None:
                output.errors[request_id] = error
        able = [name not in output.errors for name in batch.sampling_ids]
        if all(able):
            return batch
        num_rows = [1 + len(draft) for draft in batch.drafts]
        return replace(
            batch,
            sampling_ids=[*compress(batch.sampling_ids, able)],
            drafts=[*compress(batch.drafts, able)],
            sample_rows=batch.sample_rows[np.repeat(able, num_rows)],
        )

    def _sample(self, logits: torch.Tensor, batch: InputBatch, output: ModelOutput) -> None:
        """logits: one row for each of the batch's `sample_rows`."""
        states = [self._states[request_id] for request_id in batch.sampling_ids]
        sampled = sample_and_verify(logits, states, batch.drafts)
        self._report_logprobs(logits, batch, sampled, output)
        for request_id, state, token_ids in zip(batch.sampling_ids, states, sampled, strict=True):
            for token_id in token_ids:
                state.append(token_id)
            output.sampled_token_ids[request_id] = token_ids

    def _report_logprobs(
        self,
        logits: torch.Tensor,
        batch: InputBatch,
        sampled: list[list[int]],
        output: ModelOutput,
    ) -> None:
        """Of each sampled token, from the row that it was sampled from."""
        rows: list[int] = []
        chosen: list[int] = []
        num_top: list[int] = []
        owners: list[str] = []
        first = 0
        for name, draft, token_ids in zip(batch.sampling_ids, batch.drafts, sampled, strict=True):
            wanted = self._states[name].num_logprobs
            if wanted is not None:
                rows += range(first, first + len(token_ids))
                chosen += token_ids
                num_top += [wanted] * len(token_ids)
                owners += [name] * len(token_ids)
            first += 1 + len(draft)
        if not rows:
            return
        for owner, entry in zip(owners, token_logprobs(logits[rows], chosen, num_top), strict=True):
            output.logprobs.setdefault(owner, []).append(entry)

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
                logits = self._decoder.logits(hidden, range(start, start + len(piece)))
                entries += token_logprobs(logits, piece, [num_top] * len(piece))
            result[request_id] = entries
        return result
