"""A model without weights that drives the scheduler and notices every wrong byte of KV cache.

The next token is a fixed function of all tokens so far, and of the request's seed. What it
"writes" at a slot is the digest of the whole prefix up to that position, as a real key or value
depends on all earlier tokens; before sampling it "reads" the request's every slot back, so a block
that is shared wrongly, freed too early or not computed is found at once.
"""

from __future__ import annotations

from collections.abc import Sequence

from infra_lab.cache.kv_cache_manager import KVCacheManager
from infra_lab.cache.swap_space import SwapSpace
from infra_lab.config import EngineConfig
from infra_lab.engine.request import Request
from infra_lab.engine.scheduler import Scheduler
from infra_lab.engine.swap_cost import SwapCost
from infra_lab.engine.updates import RequestUpdate
from infra_lab.sampling_params import SamplingParams
from infra_lab.step import (
    BlockCopy,
    ModelOutput,
    NewRequest,
    ScheduledRequest,
    SchedulerOutput,
    TokenLogprobs,
)

VOCABULARY = 11
EOS = 7


def digests(token_ids: Sequence[int]) -> list[int]:
    """The digest of every prefix of `token_ids`, by the prefix's last position."""
    result, digest = [], 17
    for token_id in token_ids:
        digest = (digest * 1_000_003 + token_id + 1) % (2**61 - 1)
        result.append(digest)
    return result


def next_token(token_ids: Sequence[int], seed: int = 0) -> int:
    return digests([*token_ids, *[seed] * (seed > 0)])[-1] % 7919 % VOCABULARY


def prompt_logprob(token_ids: Sequence[int]) -> TokenLogprobs:
    """A stand-in for log-probabilities that tells which position it was computed for."""
    return TokenLogprobs(token_ids[-1], -float(digests(token_ids)[-1] % 997), 1, [])


def generate_alone(
    prompt: Sequence[int],
    params: SamplingParams,
    eos_token_ids: frozenset[int],
    max_model_len: int,
    kv_capacity_tokens: int,
    seed: int = 0,
) -> tuple[list[int], str]:
    """What a request must yield whatever shares its batch: output ids and finish reason."""
    tokens = list(prompt)
    while True:
        tokens.append(next_token(tokens, seed))
        output = tokens[len(prompt) :]
        if len(output) >= params.min_tokens:
            if tokens[-1] in eos_token_ids and not params.ignore_eos:
                return output, "stop"
            if tokens[-1] in params.stop_token_ids:
                return output, "stop"
        if len(output) == params.max_tokens or len(tokens) >= max_model_len:
            return output, "length"
        if len(tokens) > kv_capacity_tokens:
            return output, "length"


class FakeModel:
    """Plays the worker. `tokens_per_step` ids are sampled at a time (speculation does so)."""

    def __init__(self, block_size: int, tokens_per_step: int = 1) -> None:
        self.block_size = block_size
        self.tokens_per_step = tokens_per_step
        self.known: dict[str, NewRequest] = {}
        self.tokens: dict[str, list[int]] = {}
        self.kv: dict[int, int] = {}
        self.host_kv: dict[int, int] = {}

    def execute(self, step: SchedulerOutput) -> ModelOutput:
        for request_id in step.finished_request_ids:
            self.forget(request_id)
        for new in step.new_requests:
            self.know(new)
        self._copy(step.swap_outs, self.kv, self.host_kv)
        self._copy(step.block_copies, self.kv, self.kv)
        self._copy(step.swap_ins, self.host_kv, self.kv)
        for item in step.scheduled:
            self._write(item)
        output = ModelOutput()
        for item in step.scheduled:
            self._read(item)
            self._sample(item, output)
        return output

    def know(self, new: NewRequest) -> None:
        assert new.request_id not in self.known, "a request was introduced twice"
        self.known[new.request_id] = new
        self.tokens[new.request_id] = list(new.prompt_token_ids)

    def forget(self, request_id: str) -> None:
        del self.known[request_id], self.tokens[request_id]

    def spoil(self, kv: dict[int, int], block_id: int) -> None:
        """Leave a block with whatever it may be."""
        for offset in range(self.block_size):
            kv[block_id * self.block_size + offset] = -1

    def _copy(
        self, copies: Sequence[BlockCopy], sources: dict[int, int], goal: dict[int, int]
    ) -> None:
        """All are read before any is written; what was never written stays unknown."""
        targets = [copy.target for copy in copies]
        assert len(set(targets)) == len(targets)
        read = []
        for copy in copies:
            for offset in range(self.block_size):
                content = sources.get(copy.source * self.block_size + offset)
                read.append((copy.target * self.block_size + offset, content))
        for slot, content in read:
            goal.pop(slot, None)
            if content is not None:
                goal[slot] = content

    def _slot(self, item: ScheduledRequest, position: int) -> int:
        block_id = item.block_ids[position // self.block_size]
        assert block_id != 0, "the null block holds no content"
        return block_id * self.block_size + position % self.block_size

    def _write(self, item: ScheduledRequest) -> None:
        tokens = self.tokens[item.request_id]
        end = item.num_computed_tokens + len(item.token_ids)
        assert item.token_ids, "nothing was scheduled"
        assert list(item.token_ids) == tokens[item.num_computed_tokens : end]
        assert item.samples == (end == len(tokens))
        values = digests(tokens)
        for position in range(item.num_computed_tokens, end):
            self.kv[self._slot(item, position)] = values[position]

    def _read(self, item: ScheduledRequest) -> None:
        end = item.num_computed_tokens + len(item.token_ids)
        values = digests(self.tokens[item.request_id][:end])
        for position in range(end):
            assert self.kv[self._slot(item, position)] == values[position], (
                f"{item.request_id} reads foreign content at position {position}"
            )

    def _sample(self, item: ScheduledRequest, output: ModelOutput) -> None:
        tokens = self.tokens[item.request_id]
        if item.prompt_logprobs_from is not None:
            num_prompt = len(self.known[item.request_id].prompt_token_ids)
            end = min(item.num_computed_tokens + len(item.token_ids), num_prompt - 1)
            output.prompt_logprobs[item.request_id] = [
                prompt_logprob(tokens[: p + 2]) for p in range(item.prompt_logprobs_from, end)
            ]
        if not item.samples:
            return
        for request_id in (item.request_id, *item.forks):
            assert self.tokens[request_id][: len(tokens)] == tokens, "a fork has other tokens"
        for request_id in (*item.forks, item.request_id):
            own, seed = self.tokens[request_id], self.known[request_id].seed
            for _ in range(self.tokens_per_step):
                own.append(next_token(own, seed))
            output.sampled_token_ids[request_id] = own[-self.tokens_per_step :]


class ScriptedModel:
    """Samples the ids it is told, by request id, and nothing else."""

    def __init__(self, script: dict[str, list[list[int]]]) -> None:
        self._script = script

    def execute(self, step: SchedulerOutput) -> ModelOutput:
        return ModelOutput(
            {i.request_id: self._script[i.request_id].pop(0) for i in step.scheduled if i.samples}
        )


def make_scheduler(
    num_blocks: int = 100,
    block_size: int = 16,
    max_model_len: int = 4096,
    swap_blocks: int = 0,
    swap_cost: SwapCost | None = None,
    **config: object,
) -> Scheduler:
    """A scheduler over `num_blocks` usable blocks, and `swap_blocks` in its swap space, if any;
    other settings are EngineConfig's."""
    engine_config = EngineConfig(block_size=block_size, num_blocks=num_blocks, **config)  # type: ignore[arg-type]
    kv_cache = KVCacheManager(num_blocks + 1, block_size, engine_config.enable_prefix_caching)
    swap_space = SwapSpace(swap_blocks + 1, kv_cache) if swap_blocks else None
    return Scheduler(
        engine_config, kv_cache, max_model_len, swap_space=swap_space, swap_cost=swap_cost
    )


def make_request(
    request_id: str,
    prompt: int | Sequence[int],
    *,
    max_tokens: int | None = 16,
    eos: frozenset[int] = frozenset(),
    cache_salt: str | None = None,
    priority: int = 0,
    **params: object,
) -> Request:
    """A request; a prompt given as a number is that many tokens, different for every id."""
    if isinstance(prompt, int):
        first = sum(ord(c) * 1000**i for i, c in enumerate(request_id))
        prompt = range(first, first + prompt)
    sampling = SamplingParams(max_tokens=max_tokens, temperature=0.0, **params)  # type: ignore[arg-type]
    return Request(
        request_id,
        list(prompt),
        sampling,
        eos_token_ids=eos,
        cache_salt=cache_salt,
        priority=priority,
    )


def run_step(scheduler: Scheduler, model: FakeModel | ScriptedModel) -> list[RequestUpdate]:
    step = scheduler.schedule()
    updates = scheduler.update_from_output(step, model.execute(step))
    scheduler.check_integrity()
    return updates


def run_to_end(
    scheduler: Scheduler, model: FakeModel | ScriptedModel, max_steps: int = 500
) -> list[RequestUpdate]:
    """All updates until nothing is left; fails rather than spins."""
    updates = []
    for _ in range(max_steps):
        if not scheduler.has_unfinished_requests:
            return updates
        updates += run_step(scheduler, model)
    raise AssertionError(f"{max_steps} steps did not finish the requests")
