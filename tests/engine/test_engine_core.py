"""EngineCore with a real scheduler, cache and text path, and a fake worker whose next token is
a pure function of all tokens before it: what the engine does, without weights."""

from __future__ import annotations

import pytest

from infra_lab.cache.kv_cache_manager import KVCacheManager
from infra_lab.config import EngineConfig
from infra_lab.engine.engine_core import EngineCore
from infra_lab.engine.event_log import (
    EventLog,
    RequestArrived,
    RequestFinished,
    StepEvent,
)
from infra_lab.engine.input_processor import InputProcessor
from infra_lab.engine.output_processor import OutputProcessor
from infra_lab.engine.scheduler import Scheduler
from infra_lab.errors import InvalidRequestError
from infra_lab.outputs import RequestOutput
from infra_lab.sampling_params import SamplingParams
from infra_lab.step import ModelOutput, SchedulerOutput, StepTimings

VOCAB, EOS = 50, 49


class FakeWorker:
    """Next token: the sum of all tokens so far, modulo the vocabulary without EOS."""

    def __init__(self) -> None:
        self.timings = StepTimings(1.0, 2.0, 3.0)
        self.tokens: dict[str, list[int]] = {}
        self.fails = False

    def execute(self, scheduler_output: SchedulerOutput) -> ModelOutput:
        if self.fails:
            raise RuntimeError("out of luck")
        output = ModelOutput()
        for new in scheduler_output.new_requests:
            self.tokens[new.request_id] = list(new.prompt_token_ids)
        for item in scheduler_output.scheduled:
            tokens = self.tokens[item.request_id]
            assert tokens[item.num_computed_tokens :][: len(item.token_ids)] == item.token_ids
            if item.samples:
                tokens.append(sum(tokens) % (VOCAB - 1))
                output.sampled_token_ids[item.request_id] = [tokens[-1]]
        return output


def make_engine(
    num_blocks: int = 64, event_log: EventLog | None = None, **config: object
) -> EngineCore:
    settings = EngineConfig(block_size=4, max_num_seqs=8, **config)  # type: ignore[arg-type]
    kv_cache = KVCacheManager(num_blocks + 1, 4)
    return EngineCore(
        config=settings,
        scheduler=Scheduler(settings, kv_cache, max_model_len=100),
        executor=FakeWorker(),
        input_processor=InputProcessor(None, VOCAB, 100),
        output_processor=OutputProcessor(None),
        eos_token_ids=[EOS],
        event_log=event_log,
    )


def drain(engine: EngineCore) -> dict[str, RequestOutput]:
    finished = {}
    while engine.has_unfinished_requests:
        for output in engine.step():
            if output.finished:
                finished[output.request_id] = output
        engine.scheduler.check_integrity()
    return finished


def expected_tokens(prompt: list[int], count: int) -> list[int]:
    tokens = list(prompt)
    for _ in range(count):
        tokens.append(sum(tokens) % (VOCAB - 1))
    return tokens[len(prompt) :]


def test_requests_finish_with_their_own_tokens_and_times() -> None:
    engine = make_engine()
    prompts = {"a": [1, 2, 3], "b": [4] * 9, "c": [5]}
    for name, prompt in prompts.items():
        engine.add_request(name, prompt, SamplingParams(max_tokens=6))
    outputs = drain(engine)
    for name, prompt in prompts.items():
        (sample,) = outputs[name].outputs
        assert sample.token_ids == expected_tokens(prompt, 6)
        assert sample.finish_reason == "length"
        metrics = outputs[name].metrics
        assert metrics.num_output_tokens == 6
        assert metrics.queue_time_s is not None
        assert metrics.queue_time_s >= 0
        assert metrics.ttft_s is not None
        assert metrics.ttft_s >= metrics.queue_time_s
        assert metrics.tpot_s is not None


def test_the_pieces_of_a_stream_make_the_whole() -> None:
    engine = make_engine(max_num_batched_tokens=8)
    engine.add_request("a", [1, 2, 3] * 5, SamplingParams(max_tokens=7))
    pieces: list[int] = []
    last = None
    while engine.has_unfinished_requests:
        for last in engine.step():
            pieces += last.outputs[0].new_token_ids
    assert last is not None
    assert pieces == last.outputs[0].token_ids
    assert len(pieces) == 7


@pytest.mark.parametrize(
    ("prompt", "params", "message"),
    [
        ([], None, "empty"),
        ([VOCAB], None, "outside the vocabulary"),
        ([1] * 100, None, "context"),
        ("text", None, "tokenizer"),
        ([1], SamplingParams(logit_bias={VOCAB: 1.0}), "logit_bias"),
        ([1], SamplingParams(stop="x"), "stop"),
    ],
)
def test_a_bad_request_is_refused_alone(
    prompt: list[int] | str, params: SamplingParams | None, message: str
) -> None:
    engine = make_engine()
    engine.add_request("good", [1, 2], SamplingParams(max_tokens=3))
    with pytest.raises(InvalidRequestError, match=message):
        engine.add_request("bad", prompt, params)
    with pytest.raises(InvalidRequestError, match=message):
        engine.validate(prompt, params)
    outputs = drain(engine)
    assert list(outputs) == ["good"]
    assert outputs["good"].outputs[0].token_ids == expected_tokens([1, 2], 3)


def test_a_prompt_larger_than_the_pool_is_refused_and_the_one_behind_it_runs() -> None:
    engine = make_engine(num_blocks=8)
    with pytest.raises(InvalidRequestError, match="9 KV blocks"):
        engine.add_request("large", [1] * 36)
    engine.add_request("small", [1] * 5, SamplingParams(max_tokens=2))
    assert drain(engine)["small"].outputs[0].finish_reason == "length"


def test_an_id_in_use_is_refused_and_free_again_afterwards() -> None:
    engine = make_engine()
    engine.add_request("a", [1], SamplingParams(max_tokens=2))
    with pytest.raises(InvalidRequestError, match="'a'"):
        engine.add_request("a", [2])
    drain(engine)
    engine.add_request("a", [3], SamplingParams(max_tokens=2))
    assert drain(engine)["a"].outputs[0].token_ids == expected_tokens([3], 2)


def test_an_abort_ends_one_request_and_gives_its_blocks_back() -> None:
    engine = make_engine()
    for name in ("a", "b"):
        engine.add_request(name, [1, 2], SamplingParams(max_tokens=9))
    engine.step()
    assert engine.abort("a")
    assert not engine.abort("a")
    assert not engine.abort("never seen")
    outputs = drain(engine)
    assert outputs["a"].outputs[0].finish_reason == "abort"
    assert outputs["b"].outputs[0].token_ids == expected_tokens([1, 2], 9)
    assert engine.scheduler.kv_cache.usage.used == 0


def test_an_aborted_request_is_handed_out_even_if_no_other_runs() -> None:
    engine = make_engine()
    engine.add_request("a", [1], SamplingParams(max_tokens=9))
    engine.abort("a")
    assert drain(engine)["a"].outputs[0].finish_reason == "abort"


def test_n_samples_come_as_one_output() -> None:
    engine = make_engine()
    engine.add_request("a", [1, 2], SamplingParams(n=3, seed=1, max_tokens=4))
    output = drain(engine)["a"]
    assert [sample.index for sample in output.outputs] == [0, 1, 2]
    assert all(sample.token_ids == expected_tokens([1, 2], 4) for sample in output.outputs)


def test_an_abort_ends_every_sample_of_a_request() -> None:
    engine = make_engine()
    engine.add_request("a", [1, 2], SamplingParams(n=3, max_tokens=40))
    engine.step()
    engine.abort("a")
    assert [s.finish_reason for s in drain(engine)["a"].outputs] == ["abort"] * 3
    assert engine.scheduler.kv_cache.usage.used == 0


def test_nothing_is_emitted_twice_after_a_preemption() -> None:
    engine = make_engine(num_blocks=9)
    prompts = {name: [index + 1] * 7 for index, name in enumerate("abc")}
    for name, prompt in prompts.items():
        engine.add_request(name, prompt, SamplingParams(max_tokens=16))
    pieces: dict[str, list[int]] = {name: [] for name in prompts}
    num_preemptions = 0
    while engine.has_unfinished_requests:
        for output in engine.step():
            pieces[output.request_id] += output.outputs[0].new_token_ids
            num_preemptions += output.finished * output.metrics.num_preemptions
    assert num_preemptions > 0
    assert pieces == {name: expected_tokens(prompt, 16) for name, prompt in prompts.items()}


def test_a_failed_step_ends_its_requests_and_the_engine_goes_on() -> None:
    engine = make_engine()
    worker = engine.executor
    assert isinstance(worker, FakeWorker)
    engine.add_request("a", [1, 2], SamplingParams(max_tokens=9))
    engine.step()
    worker.fails = True
    failed = drain(engine)["a"]
    assert failed.outputs[0].finish_reason == "error"
    assert failed.error is not None
    assert "out of luck" in failed.error
    worker.fails = False
    engine.add_request("b", [1, 2], SamplingParams(max_tokens=3))
    assert drain(engine)["b"].outputs[0].token_ids == expected_tokens([1, 2], 3)
    assert engine.scheduler.kv_cache.usage.used == 0


def test_the_event_log_accounts_for_every_token_and_block() -> None:
    log = EventLog()
    engine = make_engine(num_blocks=12, event_log=log, max_num_batched_tokens=8)
    engine.add_request("a", [1] * 10, SamplingParams(max_tokens=5))
    engine.add_request("b", [2] * 3, SamplingParams(max_tokens=5))
    drain(engine)
    steps = [event for event in log.recent if isinstance(event, StepEvent)]
    assert [step.step for step in steps] == list(range(len(steps)))
    assert sum(step.num_sampled_tokens for step in steps) == 10
    # Every prompt token once, every output token but the last of each once.
    assert sum(step.num_scheduled_tokens for step in steps) == 13 + 8
    assert all(step.num_scheduled_tokens <= 8 for step in steps)
    assert all(s.blocks_used + s.blocks_cached + s.blocks_free == 12 for s in steps)
    assert steps[0].batch[0].is_prompt_chunk
    assert steps[0].batch[0].num_tokens == 8
    assert not any(entry.is_prompt_chunk for entry in steps[-1].batch)
    assert (steps[0].prepare_ms, steps[0].model_ms, steps[0].sample_ms) == (1.0, 2.0, 3.0)
    arrived = [event.request_id for event in log.recent if isinstance(event, RequestArrived)]
    ended = {e.request_id: e for e in log.recent if isinstance(e, RequestFinished)}
    assert arrived == ["a", "b"]
    assert set(ended) == {"a", "b"}
    assert ended["a"].num_output_tokens == 5
    assert ended["a"].reason == "length"


def test_a_priority_reaches_every_sample_and_an_unwanted_one_is_refused_like_any_request() -> None:
    engine = make_engine(scheduling_policy="priority")
    engine.add_request("a", [1], SamplingParams(n=2, max_tokens=2), priority=-3)
    engine.step()
    assert [request.priority for request in engine.scheduler.running] == [-3, -3]
    drain(engine)
    plain = make_engine()
    for refuses in (plain.validate, lambda *given, **more: plain.add_request("b", *given, **more)):
        with pytest.raises(InvalidRequestError, match="set scheduling_policy to 'priority'"):
            refuses([1], None, priority=1)  # type: ignore[operator]
    assert not plain.has_unfinished_requests
