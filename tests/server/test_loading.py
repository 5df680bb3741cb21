"""What is done before a server's first request, so that no request waits for it."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from infra_lab.bench.system import usable_cores
from infra_lab.server.loading import load_for_serving, on_passing_thread, serving_config
from tests.server.tiny_model import load_tiny

COMPUTE = """
import os, time, torch
from infra_lab.server.loading import on_passing_thread
torch.set_num_threads(2)
tasks = lambda: len(os.listdir("/proc/self/task"))
compute = lambda: float((torch.ones(512, 512) @ torch.ones(512, 512)).sum())
before = tasks()
on_passing_thread(compute)
deadline = time.monotonic() + 10  # they end soon after it, each on its own
while tasks() > before and time.monotonic() < deadline:
    time.sleep(0.01)
print(tasks() - before)
compute()
print(tasks() - before)
"""


@pytest.mark.parametrize(
    ("given", "tokens"),
    [
        ({}, 128),
        ({"max_num_seqs": 8}, 128),
        ({"max_num_seqs": 200}, 200),
        ({"max_num_batched_tokens": 1024}, 1024),
    ],
)
def test_a_step_on_a_cpu_is_short_unless_it_is_to_be_longer(
    given: dict[str, Any], tokens: int
) -> None:
    config = serving_config("cpu", given)
    assert config == {"pretouch_kv_cache": True, **given, "max_num_batched_tokens": tokens}


def test_what_is_loaded_is_left_alone_by_the_collector(tiny_folder: Path) -> None:
    before = gc.get_freeze_count()
    try:
        llm = load_for_serving(lambda: load_tiny(tiny_folder))
        assert llm.model_config.hidden_size
        assert gc.get_freeze_count() - before > 10_000
    finally:
        gc.unfreeze()


def test_a_thread_that_passes_gives_its_result_or_raises_its_error() -> None:
    assert on_passing_thread(lambda: 7) == 7
    with pytest.raises(KeyError, match="why"):
        on_passing_thread(lambda: {}["why"])


def test_an_interrupt_reaches_what_is_done_there_and_waits_for_its_end() -> None:
    """Else a progress line would stay on the screen, and the interpreter end beside a thread."""
    seen: list[str] = []

    def work() -> None:
        try:
            threading.Timer(0.2, os.kill, (os.getpid(), signal.SIGINT)).start()
            deadline = time.monotonic() + 30
            while time.monotonic() < deadline:
                time.sleep(0.01)
            seen.append("never interrupted")
        finally:
            time.sleep(0.1)
            seen.append("cleaned up")

    with pytest.raises(KeyboardInterrupt):
        on_passing_thread(work)
    assert seen == ["cleaned up"]
    assert "loading" not in [thread.name for thread in threading.enumerate()]


@pytest.mark.skipif(
    not sys.platform.startswith("linux") or usable_cores() < 2,
    reason="counts the threads in /proc, of a pool of two",
)
def test_a_thread_that_passes_takes_its_workers_along() -> None:
    """And one that stays keeps them, or nothing would have to pass."""
    result = subprocess.run(
        [sys.executable, "-c", COMPUTE], capture_output=True, text=True, check=True, timeout=120
    )
    after_passing, after_staying = map(int, result.stdout.split())
    assert (after_passing, after_staying) == (0, 1)
