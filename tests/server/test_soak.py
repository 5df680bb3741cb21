"""A server that is used as servers are, for a while: memory stays flat and nothing stays held."""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import psutil
import pytest

from infra_lab.bench.server_process import serving

NUM_CLIENTS = 6
NUM_SAMPLES = 60  # of memory
# As many as are soon all met: the tokenizers library keeps 10,000 words for each thread, and words
# made up without end would go on filling that for half an hour (some 23 MB a thread, then no more).
PROMPTS = [
    "".join(random.Random(seed).choices("abcdefgh 0123456789", k=1 + seed % 120))
    for seed in range(400)
]
SCHEMA = {"type": "object", "properties": {"a": {"type": "boolean"}}, "required": ["a"]}


@dataclass
class Soak:
    """What clients met: how answers ended, statuses of what was refused, and faults."""

    url: str
    model: str
    ends: Counter[str] = field(default_factory=Counter)
    statuses: Counter[int] = field(default_factory=Counter)
    rss_mb: list[float] = field(default_factory=list)

    async def run(self, server: psutil.Process, seconds: float) -> None:
        end = time.monotonic() + seconds
        async with httpx.AsyncClient(base_url=self.url, timeout=60, verify=False) as http:
            clients = [self._client(http, random.Random(i), end) for i in range(NUM_CLIENTS)]
            await asyncio.gather(*clients, self._weigh(server, seconds))

    async def _weigh(self, server: psutil.Process, seconds: float) -> None:
        for _ in range(NUM_SAMPLES):
            await asyncio.sleep(seconds / NUM_SAMPLES)
            self.rss_mb.append(server.memory_info().rss / 2**20)

    async def _client(self, http: httpx.AsyncClient, chance: random.Random, end: float) -> None:
        """Thinks for a moment between two requests, each of a kind of its own."""
        kinds = [self._complete, self._complete, self._chat, self._leave, self._err, self._look]
        while time.monotonic() < end:
            await chance.choice(kinds)(http, chance)
            await asyncio.sleep(chance.uniform(0.0, 0.4))

    def _prompt(self, chance: random.Random) -> str:
        return chance.choice(PROMPTS)

    async def _complete(self, http: httpx.AsyncClient, chance: random.Random) -> None:
        body = {
            "prompt": self._prompt(chance), "max_tokens": chance.randrange(1, 40), "seed": 1,
            "n": chance.choice([1, 1, 2]), "stop": chance.choice([None, ["a", "zz"]]),
            "logprobs": chance.choice([None, 2]), "echo": chance.random() < 0.2,
        }  # fmt: skip
        await self._post(http, "completions", body, num_choices=body["n"])

    async def _chat(self, http: httpx.AsyncClient, chance: random.Random) -> None:
        form: dict[str, Any] = {}
        if chance.random() < 0.3:
            schema = {"name": "a", "schema": SCHEMA}
            form["response_format"] = {"type": "json_schema", "json_schema": schema}
        message = {"role": "user", "content": self._prompt(chance)}
        body = {"messages": [message], "max_tokens": 30, "stream": chance.random() < 0.7, **form}
        await self._post(http, "chat/completions", body)

    async def _post(
        self, http: httpx.AsyncClient, path: str, body: dict[str, Any], num_choices: int = 1
    ) -> None:
        response = await http.post(f"/{path}", json={"model": self.model, **body})
        assert response.status_code == 200, response.text
        reasons = []
        if body.get("stream"):
            *events, done = response.text.strip().split("\n\n")
            assert done == "data: [DONE]"
            for one in events:
                choices = json.loads(one.removeprefix("data: "))["choices"]
                reasons += [
                    choice["finish_reason"] for choice in choices if choice["finish_reason"]
                ]
        else:
            reasons = [choice["finish_reason"] for choice in response.json()["choices"]]
        assert len(reasons) == num_choices
        self.ends.update(reasons)

    async def _leave(self, http: httpx.AsyncClient, chance: random.Random) -> None:
        """In the middle of a long answer."""
        body = {"model": self.model, "prompt": self._prompt(chance), "max_tokens": 800}
        body |= {"stream": True, "ignore_eos": True}
        async with http.stream("POST", "/completions", json=body) as response:
            assert response.status_code == 200
            patience = chance.randrange(1, 5)
            async for _ in response.aiter_lines():
                patience -= 1
                if not patience:
                    break
        self.ends["left"] += 1

    async def _err(self, http: httpx.AsyncClient, chance: random.Random) -> None:
        bodies: list[Any] = [
            {"model": "nix", "prompt": "a"},
            {"model": self.model, "prompt": "a", "temperature": -1},
            {"model": self.model, "prompt": "a" * 100_000},
            {"model": self.model, "prompt": "a", f"odd_{chance.randrange(1000)}": 1},
            [1, 2],
        ]
        response = await http.post("/completions", json=chance.choice(bodies))
        assert response.status_code in (400, 404), response.text
        self.statuses[response.status_code] += 1

    async def _look(self, http: httpx.AsyncClient, chance: random.Random) -> None:
        texts = [self._prompt(chance) for _ in range(3)]
        body = {"model": self.model, "input": texts}
        assert (await http.post("/embeddings", json=body)).status_code == 200
        base = self.url.removesuffix("/v1")
        for path in ("/metrics", "/v1/cache/blocks", "/health", f"/made/up/{chance.random()}"):
            self.statuses[(await http.get(base + path)).status_code] += 1


def soak(folder: Path, seconds: float) -> Soak:
    """Runs a server and its clients; afterwards nothing may run, wait or be held."""
    command = [sys.executable, "-m", "infra_lab", "serve", "--model", str(folder)]
    command += ["--pooling", "mean", "--kv-cache-mb", "2", "--speculative", "ngram"]
    before = set(psutil.Process().children())
    with serving([*command, "--log-level", "error"]) as url:
        (server,) = set(psutil.Process().children()) - before
        found = Soak(url, str(folder))
        asyncio.run(found.run(server, seconds))
        deadline = time.monotonic() + 10
        with httpx.Client(verify=False, timeout=20) as http:
            while True:
                state = http.get(f"{url}/cache").json()
                held = (*state["requests"].values(), state["blocks"]["used"])
                if held == (0, 0, 0):
                    break
                assert time.monotonic() < deadline, f"running, waiting, blocks used: {held}"
                time.sleep(0.05)
    assert set(found.ends) <= {"stop", "length", "left"}
    assert found.ends["left"] > 0
    assert found.ends["length"] > 0
    assert set(found.statuses) == {200, 400, 404}
    return found


def growth_mb(rss_mb: list[float]) -> float:
    """From the second quarter of the time, when all that is kept has been met, to the last."""
    quarter = len(rss_mb) // 4
    return median(rss_mb[-quarter:]) - median(rss_mb[quarter : 2 * quarter])


def test_for_some_seconds_nothing_stays_held_and_memory_hardly_grows(tiny_folder: Path) -> None:
    found = soak(tiny_folder, seconds=15.0)
    assert sum(found.ends.values()) > 30
    assert growth_mb(found.rss_mb) < 8


@pytest.mark.slow
def test_for_twenty_minutes_memory_is_flat(tiny_folder: Path) -> None:
    """Were each of sixteen thousand answers to leave a kilobyte behind, half of them would show as
    eight megabytes; 0.7 were seen."""
    found = soak(tiny_folder, seconds=1200.0)
    print(f"RSS in MB: {[round(one, 1) for one in found.rss_mb]}; ends: {found.ends}")
    assert sum(found.ends.values()) > 5_000
    assert growth_mb(found.rss_mb) < 4
