"""`infra-lab bench serve` against a server that runs, and against one that it starts itself."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import pytest

from infra_lab.bench import serving_peers
from infra_lab.bench.child import ChildFailedError
from infra_lab.bench.engine import MeasurementError
from infra_lab.bench.peers import OURS
from infra_lab.bench.server_process import serving
from infra_lab.bench.serving_peers import (
    ServerContender,
    ServerSetup,
    compare_servers,
    comparison_report,
    own_server,
    vllm_server,
)
from infra_lab.bench.serving_plan import ServingPlan
from infra_lab.bench.serving_report import run_figures
from infra_lab.bench.serving_tables import comparison_table
from tests.bench.scripted_endpoint import answer, scripted
from tests.server.running import MODEL, RunningServer, running
from tests.server.tiny_model import load_tiny

Run = Callable[..., Any]
SETUP = ServerSetup("float32", 3, 1024, 64, threads=1, kv_cache_mb=2)
SHORT = ["--prompt-len", "8:40", "--output-len", "4:12"]


def bench(run_command: Run, url: str, *arguments: str) -> dict[str, Any]:
    result = run_command("bench", "serve", "--base-url", f"{url}/v1", *arguments, "--json")
    assert result.status == 0, result.err
    report: dict[str, Any] = json.loads(result.out)
    return report


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_every_request_is_served_with_the_tokens_that_were_asked_for(
    tiny_server: RunningServer, run_command: Run, api: str
) -> None:
    report = bench(
        run_command, tiny_server.url, "--api", api, "--rate", "60", "--rate", "inf",
        "--num-requests", "12", "--prompt-len", "200", "--output-len", "16",
        "--slo", "ttft=60000,tpot=60000",
    )  # fmt: skip
    assert report["model"] == MODEL
    assert len(report["runs"]) == 2
    for run in report["runs"]:
        assert (run["completed"], run["failed"]) == (12, {})
        assert run["output_tokens"] == 12 * 16
        # Bytes are the tokens of this model, so a word makes many and differs from the next.
        assert run["prompt_tokens"] / 12 == pytest.approx(200, rel=0.1)
        assert run["slo_attainment"] == 1.0
        assert run["goodput_per_s"] == pytest.approx(run["requests_per_s"])
        for name in ("ttft_ms", "tpot_ms", "e2e_ms"):
            assert 0 < run[name]["median"] <= run[name]["p90"] <= run[name]["p99"]
    assert report["runs"][0]["duration_s"] >= 11 / 60


@pytest.mark.parametrize("api", ["completions", "chat"])
def test_no_request_finds_in_the_cache_what_another_left(
    tiny_folder: Path, run_command: Run, api: str
) -> None:
    """Neither of its run, nor of another rate, nor of the probes: two texts may begin with one
    word, but not with the 32 characters that fill a block here."""
    with running(load_tiny(tiny_folder, block_size=32, num_blocks=400)) as server:
        report = bench(
            run_command, server.url, "--api", api, "--rate", "60", "--rate", "inf",
            "--num-requests", "12", "--prompt-len", "200", "--output-len", "4",
        )  # fmt: skip
        found = server.at_rest()
    assert found.prefix_cache_queries > sum(run["prompt_tokens"] for run in report["runs"])
    assert found.prefix_cache_hits == 0


def test_the_table_and_the_figure_are_made_and_progress_goes_to_stderr(
    tiny_server: RunningServer, run_command: Run, tmp_path: Path
) -> None:
    figure = tmp_path / "new folder" / "serving.svg"
    result = run_command(
        "bench", "serve", "--base-url", f"{tiny_server.url}/v1", "--rate", "100", *SHORT,
        "--num-requests", "8", "--max-concurrency", "2", "--figure", str(figure),
    )  # fmt: skip
    assert result.status == 0
    assert "Serving: tiny" in result.out
    assert "8 of 8" in result.out
    assert "100/s: 8 of 8 requests" in result.err
    assert figure.read_text().startswith("<?xml")


def test_prompts_come_from_a_file(
    tiny_server: RunningServer, run_command: Run, tmp_path: Path
) -> None:
    chat = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
    file = tmp_path / "prompts.jsonl"
    file.write_text(json.dumps(chat) + "\n" + json.dumps({"prompt": "hello", "max_tokens": 5}))
    report = bench(
        run_command, tiny_server.url, "--api", "chat", "--prompts", str(file), "--num-requests", "5"
    )
    assert report["runs"][0]["output_tokens"] == 3 + 5 + 3 + 5 + 3
    assert report["prompt_len"] is None


def test_failed_requests_are_counted_and_named(tiny_folder: Path, run_command: Run) -> None:
    """Of twelve at once, four find a place: two that run and two that wait."""
    llm = load_tiny(tiny_folder, max_num_seqs=2)
    with running(llm, max_queue=2) as server:
        result = run_command(
            "bench", "serve", "--base-url", f"{server.url}/v1", "--num-requests", "12",
            "--prompt-len", "8", "--output-len", "200", "--json",
        )  # fmt: skip
        server.at_rest()
    assert result.status == 0
    (run,) = json.loads(result.out)["runs"]
    (reason,) = run["failed"]
    assert reason.startswith("HTTP 429: the server has")
    assert run["completed"] + run["failed"][reason] == 12
    assert run["completed"] >= 4
    assert f"{run['failed'][reason]} failed: HTTP 429" in result.err
    assert run["output_tokens"] == 200 * run["completed"]


@pytest.mark.parametrize("num_rates", [1, 2])
def test_a_run_in_which_nothing_was_served_is_an_error_behind_its_report(
    tiny_server: RunningServer, run_command: Run, tmp_path: Path, num_rates: int
) -> None:
    figure = tmp_path / "serving.svg"
    result = run_command(
        "bench", "serve", "--base-url", f"{tiny_server.url}/v1", "--num-requests", "2",
        "--prompt-len", "5000", "--output-len", "4", *["--rate", "99"] * num_rates,
        "--figure", str(figure),
    )  # fmt: skip
    assert result.status == 1
    assert not figure.exists()
    assert "0 of 2" in result.out
    assert "HTTP 400: the " in result.err
    assert "no request was served" in result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--base-url", "http://127.0.0.1:1/v1"], "no server answers at http://127.0.0.1:1/v1"),
        (["--base-url", "localhost:80"], "is no address"),
        (["--base-url", "http://127.0.0.1:1", "--dtype", "float32"], "--dtype is for our own"),
        (["--model", "smollm3"], "smollm"),
        (["--rate", "0"], "the rate must be above 0"),
        (["--burstiness", "0"], "the burstiness must be above 0"),
        (["--api", "rest"], "--api must be completions or chat"),
        (["--slo", "speed=9"], "--slo takes milliseconds"),
        (["--output-len", "9:3"], "from 9 to 3"),
        (["--prompts", "/nonexistent"], "cannot be read"),
        (["--figure", "x.png"], "must end in .svg"),
        (["--timeout", "0"], "--timeout must be above 0"),
        (["--num-requests", "0"], "at least 1"),
        (["--prompt-len", ""], "MIN:MAX or one number"),
        (["--base-url", "http://127.0.0.1: 1/v1"], "is no address"),
        (["--base-url", "http://127.0.0.1:1/v1", "--api-key", "a\nb"], "the API key is empty, or"),
        (["--base-url", "http://127.0.0.1:1/v1", "--api-key", ""], "the API key is empty, or"),
        (["--api-key", "secret"], "--api-key is for --base-url"),
        (["--burstiness", "0.5"], "--burstiness is for arrivals with gaps"),
        (["--burstiness", "1", "--rate", "inf"], "--burstiness is for arrivals with gaps"),
        (["--prompts", "FILE", "--prompt-len", "9"], "--prompt-len is for what is drawn"),
        (["--prompts", "FILE", "--output-len", "sharegpt"], "--output-len is for what is drawn"),
        (["--prompts", "FILE", "--seed", "1"], "--seed is for what is drawn"),
    ],
)
def test_what_makes_no_sense_is_said_in_one_line(
    run_command: Run, arguments: list[str], message: str
) -> None:
    result = run_command("bench", "serve", *arguments)
    assert result.status in (1, 2)
    assert message in result.err
    assert len(result.err.splitlines()) == 1
    assert result.out == ""


def test_the_key_is_the_one_given_or_the_environments_and_our_own_server_needs_none(
    tiny_folder: Path, run_command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "right")
    with running(load_tiny(tiny_folder), api_keys=("right",)) as server:
        assert bench(run_command, server.url, *SHORT, "--num-requests", "2")["runs"]
        result = run_command(
            "bench", "serve", "--base-url", f"{server.url}/v1", "--api-key", "wrong", *SHORT
        )
    assert result.status == 1
    assert "HTTP 401: no valid API key" in result.err


def test_a_server_that_does_not_start_says_why() -> None:
    program = "import sys; print('the disk is full'); sys.exit(3)"
    with (
        pytest.raises(ChildFailedError, match=r"(?s)ended with status 3:.*the disk is full"),
        serving([sys.executable, "-c", program]),
    ):
        pytest.fail("it is not there")


def test_a_server_that_is_never_ready_is_given_up() -> None:
    program = "import time; time.sleep(60)"
    with (
        pytest.raises(ChildFailedError, match=r"not ready within 0.5 s"),
        serving([sys.executable, "-c", program], timeout_s=0.5),
    ):
        pytest.fail("it is not there")


def test_the_command_starts_a_server_of_its_own_and_ends_it(
    tiny_folder: Path, run_command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    """That server asks for no key, whatever others on this machine are started with."""
    monkeypatch.setenv("INFRA_LAB_API_KEY", "secret")
    before = set(psutil.Process().children(recursive=True))
    result = run_command(
        "bench", "serve", "--model", str(tiny_folder), "--num-requests", "4", *SHORT,
        "--max-num-seqs", "2", "--json",
    )  # fmt: skip
    assert result.status == 0, result.err
    report = json.loads(result.out)
    assert report["base_url"] is None
    assert report["runs"][0]["completed"] == 4
    left = set(psutil.Process().children(recursive=True)) - before
    assert [one for one in left if one.is_running()] == []


def test_servers_are_compared_in_turn_on_the_same_requests(
    tiny_server: RunningServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two names for one server: what differs is the order alone."""
    started: list[str] = []

    @contextmanager
    def there(
        command: tuple[str, ...], timeout_s: float, environment: dict[str, str]
    ) -> Iterator[str]:
        started.append(command[0])
        yield f"{tiny_server.url}/v1"

    monkeypatch.setattr(serving_peers, "serving", there)
    contenders = [ServerContender(name, (name,), MODEL) for name in (OURS, "vllm")]
    plan = ServingPlan(
        num_requests=6, prompt_len="20:40", output_len="8:16", max_concurrency=3, seed=7
    )
    said: list[str] = []
    found = compare_servers(contenders, plan, 2, said.append)
    assert started == [OURS, "vllm"] * 2
    for turn in range(2):
        ours, theirs = found[OURS][turn], found["vllm"][turn]
        assert ours["completed"] == theirs["completed"] == 6
        for name in ("prompt_tokens", "output_tokens"):
            assert ours[name] == theirs[name]
    assert found[OURS][0]["prompt_tokens"] != found[OURS][1]["prompt_tokens"]
    report = comparison_report(plan, found, MODEL, SETUP)
    assert report["model"] == MODEL
    assert {name: report[name] for name in asdict(SETUP)} == asdict(SETUP)
    speeds = [[run["output_tokens_per_s"] for run in found[name]] for name in (OURS, "vllm")]
    ratios = [mine / its for mine, its in zip(*speeds, strict=True)]
    servers = report["servers"]
    assert servers[OURS]["output_tokens_per_s"] == pytest.approx(sum(speeds[0]) / 2)
    over = servers["vllm"]["ours_over_it"]
    assert over["output_tokens_per_s"] == pytest.approx(sum(ratios) / 2)
    assert any(line.startswith("round 2 of 2: vllm: ") for line in said)
    table = comparison_table(report)
    assert list(table.columns[0].cells) == [OURS, "vllm", "ours over vllm"]
    assert len(table.columns) == 6


@contextmanager
def always(url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Whatever server is started, there is one at `url`."""

    @contextmanager
    def there(*given: object) -> Iterator[str]:
        yield url

    with monkeypatch.context() as patch:
        patch.setattr(serving_peers, "serving", there)
        yield


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prompt_len": "5000"}, "vllm served 0 of 4 requests.* 4 failed: HTTP 400"),
        ({"output_len": "1"}, "vllm gave nothing from which itl_ms.median could be had"),
    ],
)
def test_a_round_that_cannot_be_compared_is_named_and_ends_the_comparison(
    tiny_server: RunningServer,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, str],
    message: str,
) -> None:
    lengths = {"prompt_len": "8", "output_len": "8"} | changes
    plan = ServingPlan(num_requests=4, max_concurrency=2, **lengths)
    with (
        always(f"{tiny_server.url}/v1", monkeypatch),
        pytest.raises(MeasurementError, match=message),
    ):
        compare_servers([ServerContender("vllm", ("vllm",), MODEL)], plan, 1)


def test_answers_without_tokens_are_named_and_end_the_comparison() -> None:
    async def run() -> dict[str, Any]:
        scripts = [answer(prompt_tokens=16), answer(prompt_tokens=144), answer(num_tokens=0)]
        async with scripted(*scripts) as server:
            plan = ServingPlan(num_requests=2, max_concurrency=1)
            (found,) = await plan.run(server.url, "m")
            return run_figures(found, plan.arrivals[0], None)

    figures = asyncio.run(run())
    assert figures["failed"] == {}
    with pytest.raises(MeasurementError, match="vllm gave nothing from which"):
        serving_peers._require_measured("vllm", figures)


def test_both_servers_are_set_up_alike() -> None:
    ours, theirs = own_server(Path("folder"), SETUP), vllm_server("python", Path("folder"), SETUP)
    for command in (ours.command, theirs.command):
        options = dict(pairwise(command))
        assert options["--dtype"] == "float32"
        assert options["--max-num-seqs"] == "3"
        assert options["--max-model-len"] == "1024"
        assert options["--max-num-batched-tokens"] == "64"
    assert dict(pairwise(ours.command))["--kv-cache-mb"] == "2"
    assert dict(pairwise(theirs.command))["--kv-cache-memory-bytes"] == "2000000"
    assert ours.environment == {"OMP_NUM_THREADS": "1"}
    assert theirs.command[2:4] == ("folder", "1")


@pytest.mark.parametrize(
    ("python", "message"),
    [("/nonexistent/python", "cannot be run: No such file"), (sys.executable, "has no vllm;")],
)
def test_a_python_without_vllm_is_refused_before_our_server_has_run(
    tiny_folder: Path, run_command: Run, python: str, message: str
) -> None:
    result = run_command(
        "bench", "serve-peers", "--python", python, "--model", str(tiny_folder),
        "--max-model-len", "512",
    )  # fmt: skip
    assert result.status == 2
    assert f"--python {python}: {message}" in result.err
    assert len(result.err.splitlines()) == 1


def test_our_server_takes_its_part_as_it_is_set_up(tiny_folder: Path) -> None:
    plan = ServingPlan(num_requests=4, prompt_len="8", output_len="8", max_concurrency=2)
    found = compare_servers([own_server(tiny_folder, SETUP)], plan, 1)
    (figures,) = found[OURS]
    assert (figures["completed"], figures["output_tokens"]) == (4, 32)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--output-len", "2:9"], "--output-len must be at least 3, not 2"),
        (["--output-len", "1"], "--output-len must be at least 3, not 1"),
        (["--max-concurrency", "65", "--max-num-batched-tokens", "64"], "must be at least --max-"),
        (["--max-model-len", "2000"], "--max-model-len 2000 is more than the model's context"),
        (["--threads", "9999"], "--threads must be at most"),
        (["--dtype", "auto"], "name one"),
    ],
)
def test_a_comparison_that_makes_no_sense_is_refused_before_it_begins(
    tiny_folder: Path, run_command: Run, arguments: list[str], message: str
) -> None:
    result = run_command(
        "bench", "serve-peers", "--python", "none", "--model", str(tiny_folder),
        "--max-model-len", "512", *arguments,
    )  # fmt: skip
    assert result.status == 2
    assert message in result.err
    assert len(result.err.splitlines()) == 1
