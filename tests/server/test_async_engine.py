"""One thread and many coroutines: every stream is whole, every end is one, nothing stays held."""

from __future__ import annotations

import asyncio
import gc
import random
import threading
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import TypeVar

import pytest

from infra_lab.engine.engine_core import EngineCore
from infra_lab.engine.event_log import EventLog, RequestFinished
from infra_lab.engine.llm import LLM
from infra_lab.errors import InvalidRequestError
from infra_lab.outputs import RequestOutput
from infra_lab.sampling_params import SamplingParams
from infra_lab.server.async_engine import MAX_FAULTS_IN_A_ROW, AsyncEngine
from infra_lab.server.request_stream import EngineError, EngineUnavailableError, RequestStream
from tests.server.tiny_model import load_tiny

Result = TypeVar("Result")
PROMPT = [10, 20, 30]


@pytest.fixture(scope="module")
def llm(tiny_folder: Path) -> LLM:
    return load_tiny(tiny_folder, num_blocks=48, event_log=EventLog(capacity=100_000))


@pytest.fixture
def core(llm: LLM) -> Iterator[EngineCore]:
    """The engine, which must be at rest again behind every test."""
    yield llm.engine
    stats = llm.engine.scheduler.stats()
    assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)
    assert not llm.engine.has_unfinished_requests
    llm.engine.scheduler.check_integrity()


def run(core: EngineCore, use: Callable[[AsyncEngine], Awaitable[Result]]) -> Result:
    """Runs a coroutine over an engine, and closes the engine behind it."""

    async def main() -> Result:
        engine = AsyncEngine(core)
        try:
            return await use(engine)
        finally:
            await engine.close()
            assert engine.num_open_requests == 0

    return asyncio.run(main())


def greedy(max_tokens: int = 8, **more: object) -> SamplingParams:
    return SamplingParams(temperature=0.0, max_tokens=max_tokens, ignore_eos=True, **more)  # type: ignore[arg-type]


async def read(stream: RequestStream) -> list[RequestOutput]:
    return [output async for output in stream]


def test_streams_give_what_the_engine_gives_alone(llm: LLM, core: EngineCore) -> None:
    prompts = [[10 + index, 20, 30] for index in range(20)]
    alone = [out.outputs[0].token_ids for out in llm.generate(prompts, greedy())]

    async def use(engine: AsyncEngine) -> list[list[RequestOutput]]:
        streams = [await engine.add(prompt, greedy()) for prompt in prompts]
        return await asyncio.gather(*(read(stream) for stream in streams))

    for outputs, expected in zip(run(core, use), alone, strict=True):
        pieces = [token for out in outputs for token in out.outputs[0].new_token_ids]
        assert pieces == outputs[-1].outputs[0].token_ids == expected
        assert "".join(out.outputs[0].new_text for out in outputs) == outputs[-1].outputs[0].text
        assert [out.finished for out in outputs] == [False] * (len(outputs) - 1) + [True]


def test_a_slow_reader_gets_larger_pieces_and_stalls_nobody(llm: LLM, core: EngineCore) -> None:
    async def use(engine: AsyncEngine) -> list[RequestOutput]:
        slow = await engine.add(PROMPT, greedy(64))
        quick = await (await engine.add(PROMPT, greedy(64))).last()
        while engine.num_open_requests:
            await asyncio.sleep(0.01)  # the slow one has not read a word yet
        outputs = await read(slow)
        assert outputs[-1].outputs[0].token_ids == quick.outputs[0].token_ids
        return outputs

    (only,) = run(core, use)
    assert only.outputs[0].new_token_ids == only.outputs[0].token_ids
    assert only.outputs[0].new_text == only.outputs[0].text
    assert len(only.outputs[0].token_ids) == 64


def test_outputs_that_meet_are_one_also_for_several_samples(core: EngineCore) -> None:
    async def use(engine: AsyncEngine) -> list[RequestOutput]:
        params = SamplingParams(n=3, seed=1, max_tokens=20, ignore_eos=True)
        stream = await engine.add(PROMPT, params)
        while engine.num_open_requests:
            await asyncio.sleep(0.01)
        return await read(stream)

    (only,) = run(core, use)
    assert [sample.index for sample in only.outputs] == [0, 1, 2]
    assert all(sample.new_token_ids == sample.token_ids for sample in only.outputs)
    assert [len(sample.token_ids) for sample in only.outputs] == [20] * 3


def test_a_refused_request_harms_no_other(core: EngineCore) -> None:
    async def use(engine: AsyncEngine) -> None:
        good = await engine.add(PROMPT, greedy(400))
        with pytest.raises(InvalidRequestError, match="give another id"):
            await engine.add(PROMPT, request_id=good.request_id)
        for prompt in ([], [100_000], [1] * 10_000):
            with pytest.raises(InvalidRequestError):
                await engine.add(prompt)
        assert (await good.last()).outputs[0].finish_reason == "length"
        assert engine.num_open_requests == 0

    run(core, use)


def test_leaving_a_stream_aborts_its_request(llm: LLM, core: EngineCore) -> None:
    async def use(engine: AsyncEngine) -> None:
        async with await engine.add(PROMPT, greedy(400)) as stream:
            async for _ in stream:
                break
        assert await read(stream) == []
        assert await engine.drain(5.0)

    run(core, use)
    assert _last_reasons(llm, 1) == ["abort"]


def test_an_add_that_is_cancelled_before_its_answer_leaves_no_request(core: EngineCore) -> None:
    async def use(engine: AsyncEngine) -> None:
        gate = threading.Event()
        blocked = engine.call(gate.wait)
        adding = asyncio.create_task(engine.add(PROMPT, greedy(400)))
        refused = asyncio.create_task(engine.add([], greedy()))
        await asyncio.sleep(0.01)
        adding.cancel()
        refused.cancel()
        gate.set()
        await blocked
        assert await engine.drain(5.0)
        assert engine.num_open_requests == 0

    run(core, use)


def test_draining_lets_the_running_end_and_refuses_the_new(core: EngineCore) -> None:
    async def use(engine: AsyncEngine) -> None:
        stream = await engine.add(PROMPT, greedy(32))
        draining = asyncio.create_task(engine.drain())
        await asyncio.sleep(0)
        with pytest.raises(EngineUnavailableError, match="shutting down"):
            await engine.add(PROMPT)
        assert (await stream.last()).outputs[0].finish_reason == "length"
        assert await draining

    run(core, use)


def test_draining_against_a_clock_ends_the_rest_with_their_readers_told(core: EngineCore) -> None:
    async def use(engine: AsyncEngine) -> None:
        stream = await engine.add(PROMPT, greedy(500))
        assert not await engine.drain(0.01)
        assert (await stream.last()).outputs[0].finish_reason == "abort"

    run(core, use)


def test_closing_ends_open_requests_and_forbids_more(core: EngineCore) -> None:
    before = set(threading.enumerate())  # other tests may keep a server

    async def use(engine: AsyncEngine) -> None:
        stream = await engine.add(PROMPT, greedy(500))
        await engine.close()
        assert (await stream.last()).outputs[0].finish_reason == "abort"
        with pytest.raises(EngineUnavailableError):
            await engine.add(PROMPT)
        with pytest.raises(EngineUnavailableError):
            await engine.call(lambda: None)
        assert {one for one in threading.enumerate() if one.name == "engine"} <= before

    run(core, use)


def test_a_failed_step_ends_its_requests_and_later_ones_are_served(
    core: EngineCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    execute = core.executor.execute
    failures = iter([True])

    def sometimes(*given: object) -> object:
        if next(failures, False):
            raise RuntimeError("out of luck")
        return execute(*given)  # type: ignore[arg-type]

    monkeypatch.setattr(core.executor, "execute", sometimes)

    async def use(engine: AsyncEngine) -> None:
        failed = await (await engine.add(PROMPT, greedy())).last()
        assert failed.outputs[0].finish_reason == "error"
        assert "out of luck" in (failed.error or "")
        served = await (await engine.add(PROMPT, greedy())).last()
        assert served.outputs[0].finish_reason == "length"

    run(core, use)


def test_a_fault_of_the_accounts_ends_all_that_run_and_later_ones_are_served(
    core: EngineCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(engine: AsyncEngine) -> None:
        streams = [await engine.add(PROMPT, greedy(300)) for _ in range(3)]
        with monkeypatch.context() as patch:
            patch.setattr(core.scheduler, "schedule", _broken)
            ends = [await stream.last() for stream in streams]
        assert [end.outputs[0].finish_reason for end in ends] == ["error"] * 3
        assert all("a fault of the accounts" in (end.error or "") for end in ends)
        assert (await (await engine.add(PROMPT, greedy())).last()).error is None
        assert engine.fault is None

    run(core, use)


def test_an_observer_that_fails_ends_neither_the_engine_nor_a_request(
    core: EngineCore, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken:
        def observe(self, outputs: Sequence[RequestOutput], now_s: float) -> None:
            raise KeyError("what it looked for")

    async def main() -> list[RequestOutput]:
        engine = AsyncEngine(core, Broken())
        try:
            return [await (await engine.add(PROMPT, greedy())).last() for _ in range(2)]
        finally:
            await engine.close()

    ends = asyncio.run(main())
    assert [end.outputs[0].finish_reason for end in ends] == ["length"] * 2
    assert "the observer of the engine's outputs failed" in caplog.text


def test_an_engine_that_only_fails_is_given_up_and_says_so(
    core: EngineCore, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def use(engine: AsyncEngine) -> None:
        with monkeypatch.context() as patch:
            patch.setattr(core.scheduler, "schedule", _broken)
            for _ in range(MAX_FAULTS_IN_A_ROW):
                assert (await (await engine.add(PROMPT, greedy())).last()).error
            with pytest.raises(EngineUnavailableError, match="a fault of the accounts"):
                await engine.add(PROMPT, greedy())
            assert engine.fault is not None
            assert await engine.call(lambda: 7) == 7
            with pytest.raises(EngineError, match="ZeroDivisionError"):
                await engine.call(lambda: 1 / 0)

    run(core, use)


def test_thousands_that_come_and_go_leave_nothing_behind(llm: LLM, core: EngineCore) -> None:
    """Of 2000 requests a third is left at a random moment, before or after its acceptance."""
    chance = random.Random(7)
    earlier = _live_streams()  # a connection that another test left open keeps its last one
    num_before = sum(isinstance(one, RequestFinished) for one in llm.engine.event_log.recent)
    accepted: list[str] = []

    async def client(engine: AsyncEngine, patience_s: float | None) -> str:
        prompt = [chance.randrange(2, 250) for _ in range(chance.randrange(1, 30))]
        params = SamplingParams(max_tokens=chance.randrange(1, 12), seed=3, n=chance.choice([1, 2]))
        try:
            async with asyncio.timeout(patience_s), await engine.add(prompt, params) as stream:
                accepted.append(stream.request_id)
                return (await stream.last()).outputs[0].finish_reason or "none"
        except TimeoutError:
            return "left"

    async def use(engine: AsyncEngine) -> Counter[str]:
        ends: Counter[str] = Counter()
        for _ in range(20):
            patiences = [chance.choice([None, None, 0.02 * chance.random()]) for _ in range(100)]
            ends.update(await asyncio.gather(*(client(engine, one) for one in patiences)))
        assert await engine.drain(10.0)
        stats = engine.stats
        assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)
        return ends

    ends = run(core, use)
    assert sum(ends.values()) == 2000
    assert ends["error"] == ends["none"] == 0
    assert ends["left"] > 100
    told = [one for one in llm.engine.event_log.recent if isinstance(one, RequestFinished)]
    names = [one.request_id for one in told[num_before:]]
    assert len(names) == len(set(names))  # one end each
    assert set(accepted) <= set(names)
    assert [one for one in _live_streams() if one not in earlier] == []


def test_a_loop_that_hangs_does_not_hold_the_engine(core: EngineCore) -> None:
    async def use(engine: AsyncEngine) -> None:
        stream = await engine.add(PROMPT, greedy(40))
        end = time.monotonic() + 10
        while core.has_unfinished_requests and time.monotonic() < end:
            time.sleep(0.001)
        assert not core.has_unfinished_requests
        outputs = await read(stream)
        assert len(outputs) <= 2  # the engine may be about to hand out the last
        assert sum(len(one.outputs[0].new_token_ids) for one in outputs) == 40

    run(core, use)


def _broken() -> None:
    raise RuntimeError("a fault of the accounts")


def _live_streams() -> list[RequestStream]:
    gc.collect()
    return [one for one in gc.get_objects() if type(one) is RequestStream]


def _last_reasons(llm: LLM, count: int) -> list[str]:
    ended = [one for one in llm.engine.event_log.recent if isinstance(one, RequestFinished)]
    return [one.reason for one in ended[-count:]]
