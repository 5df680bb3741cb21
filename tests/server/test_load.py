"""Many clients that come, drop out and stall, and a server that is told to stop among them: every
accepted request ends once, and nothing stays held."""

from __future__ import annotations

import asyncio
import json
import logging
import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import httpx
import pytest

from infra_lab.engine.event_log import EventLog, RequestArrived, RequestFinished
from tests.server.running import MODEL, RunningServer, running, settings
from tests.server.tiny_model import load_tiny

DROPS, STAYS = "drops", "stays"


async def client(
    http: httpx.AsyncClient, chance: random.Random, kind: str, max_tokens: int
) -> list[str]:
    """Streams an answer, or drops out in its middle; the finish reasons that it was told."""
    body = {
        "model": MODEL,
        "prompt": [chance.randrange(2, 250) for _ in range(chance.randrange(1, 40))],
        "max_tokens": max_tokens,
        "n": chance.choice([1, 1, 2]),
        "stream": chance.random() < 0.8,
        "ignore_eos": True,
    }
    reasons: list[str] = []
    async with http.stream("POST", "/v1/completions", json=body) as response:
        assert response.status_code == 200
        if not body["stream"]:
            choices = json.loads(await response.aread())["choices"]
            return [one["finish_reason"] for one in choices]
        patience = chance.randrange(1, 6)
        async for line in response.aiter_lines():
            if not line.startswith("data: {"):
                continue
            choices = json.loads(line.removeprefix("data: ")).get("choices", [])
            reasons += [one["finish_reason"] for one in choices if one["finish_reason"]]
            patience -= 1
            if kind == DROPS and patience == 0:
                return ["dropped"]
    return reasons


async def crowd(url: str, num_clients: int, seed: int) -> Counter[str]:
    chance = random.Random(seed)
    ends: Counter[str] = Counter()
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits, verify=False) as http:
        kinds = [DROPS if index % 2 else STAYS for index in range(num_clients)]
        tasks = [client(http, chance, kind, chance.randrange(2, 30)) for kind in kinds]
        for reasons in await asyncio.gather(*tasks):
            ends.update(reasons)
    return ends


def check_accounts(server: RunningServer, log: EventLog) -> Counter[str]:
    """Every request that arrived ended, once; returns how."""
    stats = server.at_rest()
    assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)
    assert server.service._limits.num_open == 0
    arrived = [one.request_id for one in log.recent if isinstance(one, RequestArrived)]
    ended = [one.request_id for one in log.recent if isinstance(one, RequestFinished)]
    assert sorted(arrived) == sorted(ended)
    assert len(set(ended)) == len(ended)
    return Counter(one.reason for one in log.recent if isinstance(one, RequestFinished))


@pytest.mark.parametrize("num_clients", [100, pytest.param(500, marks=pytest.mark.slow)])
def test_half_of_a_crowd_drops_out_and_the_rest_gets_whole_answers(
    tiny_folder: Path, num_clients: int
) -> None:
    log = EventLog(capacity=100_000)
    llm = load_tiny(tiny_folder, event_log=log, num_blocks=96)
    with running(llm, max_queue=1000) as server:
        ends = asyncio.run(crowd(server.url, num_clients, seed=num_clients))
        reasons = check_accounts(server, log)
        llm.engine.scheduler.check_integrity()
    assert set(ends) <= {"length", "dropped"}
    assert ends["length"] >= num_clients // 2
    assert reasons["error"] == 0
    assert sum(reasons.values()) == num_clients


def test_a_shut_down_under_load_ends_every_answer_and_tells_its_reader(tiny_folder: Path) -> None:
    """Half of the answers are short enough for the time that they are given."""
    log = EventLog(capacity=100_000)
    llm = load_tiny(tiny_folder, event_log=log)
    server = RunningServer(llm, settings(drain_timeout_s=1.0))
    server.start()
    told: list[Any] = [None] * 12

    def read(index: int) -> None:
        body = {"model": MODEL, "prompt": "abc", "stream": True, "ignore_eos": True}
        body["max_tokens"] = 900 if index % 2 else 10
        with httpx.Client(base_url=server.url, timeout=30, verify=False) as http:
            lines = http.post("/v1/completions", json=body).text.strip().split("\n\n")
        assert lines[-1] == "data: [DONE]"
        told[index] = json.loads(lines[-2].removeprefix("data: "))

    readers = [threading.Thread(target=read, args=(index,)) for index in range(len(told))]
    for reader in readers:
        reader.start()
    end = time.monotonic() + 10
    while server.service._limits.num_open + sum(map(bool, told)) < len(told):
        assert time.monotonic() < end
        time.sleep(0.005)
    server.ask_to_stop()
    for reader in readers:
        reader.join(20)
    server.join()
    with pytest.raises(httpx.TransportError):
        server.http.get("/health")
    for index, last in enumerate(told):
        if "error" in last:
            assert index % 2
            assert "shut down" in last["error"]["message"]
        else:
            assert last["choices"][0]["finish_reason"] == "length"
    assert all("choices" in told[index] for index in range(0, len(told), 2))
    stats = llm.engine.scheduler.stats()
    assert (stats.running, stats.waiting, stats.blocks_used) == (0, 0, 0)
    ended = Counter(one.request_id for one in log.recent if isinstance(one, RequestFinished))
    assert len(ended) == len(told)
    assert set(ended.values()) == {1}


def test_the_command_serves_until_it_is_told_to_stop(tiny_folder: Path) -> None:
    program = "from infra_lab.cli.main import main; main()"
    arguments = ["serve", "--model", str(tiny_folder), "--served-model-name", MODEL, "--port", "0"]
    with subprocess.Popen(
        [sys.executable, "-c", program, *arguments],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        screen = []
        for line in process.stdout:
            screen.append(line)
            if line.startswith("serving"):
                break
        url = next(line.split()[1] for line in screen if line.startswith("API"))
        body = {
            "model": MODEL,
            "prompt": "nobody's business",  # no letters that an id could have
            "stream": True,
            "max_tokens": 300,
            "ignore_eos": True,
        }
        with (
            httpx.Client(timeout=60, verify=False) as http,
            http.stream("POST", f"{url}/completions", json=body) as response,
        ):
            lines = response.iter_lines()
            assert next(lines).startswith("data: ")
            process.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert '"finish_reason":"length"' in rest[-2]
        assert rest[-1] == "data: [DONE]"
        assert process.wait(30) == 0
        logged = [json.loads(line) for line in process.stderr if line.startswith("{")]
    (request,) = [line for line in logged if line["event"] == "request"]
    assert request["completion_tokens"] == 300
    assert request["finish_reasons"] == ["length"]
    assert "business" not in json.dumps(logged)
    shown = "".join(screen)
    assert "1,024 tokens" in shown
    assert "no API key" in shown


@pytest.fixture(autouse=True)
def _quiet(caplog: pytest.LogCaptureFixture) -> None:
    """Hundreds of lines of a log would hide the one that tells of a failure."""
    caplog.set_level(logging.ERROR)
