"""Drives an endpoint on a schedule: open-loop arrivals, or as many at a time as are allowed.

Answers "why must a load generator not wait for answers?": one that does slows down with the server
and hides its queue (coordinated omission). Each request is sent when its time has come, whatever
became of the others; how late the client itself was is part of the result. Torch-free.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from infra_lab.bench.openai_endpoint import Endpoint, EndpointError, Exchange
from infra_lab.bench.serving_requests import ServingRequest, WordCost, plain_words, random_text

PROBE_WORDS = (16, 144)

Notify = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class ServingRun:
    """All requests of one run, in the order in which they were due."""

    exchanges: list[Exchange]

    @property
    def started_s(self) -> float:
        return min(one.due_s for one in self.exchanges)

    @property
    def duration_s(self) -> float:
        """From the first request's turn to the last one's end."""
        return max(one.ended_s for one in self.exchanges) - self.started_s

    @property
    def completed(self) -> list[Exchange]:
        return [one for one in self.exchanges if one.error is None]


async def drive(
    endpoint: Endpoint,
    requests: Sequence[ServingRequest],
    times_s: Sequence[float],
    max_concurrency: int | None = None,
    notify: Notify = lambda done, total: None,
) -> ServingRun:
    """Sends each request at its time, counted from now.

    Args:
        max_concurrency: most requests under way; one whose time has come waits for a place, and is
            due from the moment at which that became free.
        notify: told how many of how many have ended.
    """
    started_s = time.perf_counter()
    places: asyncio.Queue[float] = asyncio.Queue()  # the moment since which each is free
    for _ in range(max_concurrency or 0):
        places.put_nowait(started_s)
    num_done = 0

    async def one(request: ServingRequest, due_s: float) -> Exchange:
        nonlocal num_done
        try:
            return await endpoint.ask(request, due_s)
        finally:
            places.put_nowait(time.perf_counter())
            num_done += 1
            notify(num_done, len(requests))

    tasks: list[asyncio.Task[Exchange]] = []
    try:
        for request, at_s in zip(requests, times_s, strict=True):
            due_s = started_s + at_s
            if (seconds := due_s - time.perf_counter()) > 0:
                await asyncio.sleep(seconds)
            if max_concurrency is not None:
                due_s = max(due_s, await places.get())
            tasks.append(asyncio.create_task(one(request, due_s)))
        return ServingRun([await task for task in tasks])
    finally:
        for task in tasks:
            task.cancel()


async def measure_words(endpoint: Endpoint) -> WordCost:
    """How many tokens the endpoint counts for a word, and for what it puts around a prompt; warms
    it up, too. Raises EndpointError if it does not answer."""
    words, draw = plain_words(), random.Random(0)
    found = []
    for count in PROBE_WORDS:
        request = ServingRequest(random_text(words, count, draw), max_tokens=8)
        exchange = await endpoint.ask(request, time.perf_counter())
        if exchange.error is not None:
            raise EndpointError(f"{endpoint.base_url}: {exchange.error}")
        found.append((count, exchange.prompt_tokens))
    return WordCost.of_two(*found)
