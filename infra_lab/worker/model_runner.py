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
from infra_lab.sampling.grammar import GrammarCompiler
from infra_lab.sampling.request_state import SamplingState
from infra_lab.sampling.sampler import sample, token_logprobs
from infra_lab.step import ModelOutput, NewRequest, SchedulerOutput, StepTimings, TokenLogprobs
from infra_lab.worker.host_kv_cache import host_kv_cache, written_blocks
from infra_lab.worker.input_batch import InputBatch, build_input_batch
from infra_lab.worker.kv_cache import allocate_kv_cache, copy_blocks
from infra_lab.worker.lora_adapters import LoRAAdapters
from infra_lab.worker.replayed_layers import ReplayedLayers

# Rows of logits held at once for prompt log-probabilities: a row is vocab_size floats.
PROMPT_LOGPROB_ROWS = 64


class ModelRunner:
    """Owns the weights, the cache tensors and the sampling states of live requests.

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
        self.host_cache = host_kv_cache(self.caches, num_host_blocks) if num_host_blocks else None
        self.timings = StepTimings()
        self.adapters = LoRAAdapters(model, max_lora_rank)
        self._adapter_ids: dict[str, str] = {}
        self._grammars = grammars
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
        wanted = batch.wanted_rows
        all_wanted = len(wanted) == len(batch.token_ids)
        token_ids, positions = self._to_device(batch.token_ids), self._to_device(batch.positions)
        # A recording holds the base model's products alone.
        has_adapters = self._begin_adapters(scheduler_output, wanted)
        may_replay = all_wanted and not has_adapters
        if may_replay and self._replayed and self._replayed.can_serve(len(token_ids)):
            hidden = self._replayed.forward(token_ids, positions, plan)
        else:
            rows = None if all_wanted else self._to_device(wanted)
            hidden = self.model.forward(token_ids, positions, self.backend, self.caches, plan, rows)
        prompt_logprobs = self._prompt_logprobs(batch, hidden)
        output = ModelOutput(prompt_logprobs=prompt_logprobs)
        sampling_ids, sample_rows = self._able_to_sample(batch, output)
        logits = None
        if sampling_ids:
            logits = self._logits(hidden, np.searchsorted(wanted, sample_rows))
        computed = time.perf_counter()
        if logits is not None:
            self._sample(logits, sampling_ids, output)
        finished = time.perf_counter()
        self.timings = StepTimings(
            1e3 * (prepared - started), 1e3 * (computed - prepared), 1e3 * (finished - computed)
        )
        return output

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

    def _logits(self, hidden: torch.Tensor, rows: object) -> torch.Tensor:
        """Logits of the named rows only: the head is a fifth of a small model's work."""
        index = self._to_device(rows)
        return self.model.logits(hidden.index_select(0, index))

    def _able_to_sample(
        self, batch: InputBatch, output: ModelOutput
    ) -> tuple[list[str], np.ndarray]:
        """Leaves out, with the reason, the requests whose document cannot be continued."""
        for request_id in batch.sampling_ids:
            grammar = self._states[request_id].grammar
            if grammar is not None and (error := grammar.error) is not None:
                output.errors[request_id] = error
        able = [name not in output.errors for name in batch.sampling_ids]
        if all(able):
            return batch.sampling_ids, batch.sample_rows
        names = [name for name in batch.sampling_ids if name not in output.errors]
        return names, batch.sample_rows[able]

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
