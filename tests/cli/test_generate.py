"""`generate`, `chat` and `demo` as their user runs them, on the real model."""

from __future__ import annotations

import io
import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra_lab.engine.event_log import EngineStarted, RequestFinished, StepEvent, read_events

QUESTION = "What is the capital of France?"
Run = Callable[..., Any]

pytestmark = pytest.mark.usefixtures("smollm2_path")


@pytest.mark.model
def test_generate_answers_paris(run_command: Run) -> None:
    result = run_command("generate", "--prompt", QUESTION, "--temperature", "0")
    assert result.status == 0
    assert result.out == "The capital of France is Paris.\n"
    assert result.err == ""


@pytest.mark.model
def test_generate_takes_a_prompt_without_an_option(run_command: Run) -> None:
    result = run_command("generate", QUESTION, "--temperature", "0")
    assert (result.status, result.out) == (0, "The capital of France is Paris.\n")


@pytest.mark.model
@pytest.mark.parametrize(
    "options",
    [("--kv-cache-dtype", "int8_per_token_head"), ("--kv-budget", "24")],
)
def test_generate_answers_the_same_from_a_smaller_cache(
    run_command: Run, options: tuple[str, str]
) -> None:
    result = run_command("generate", QUESTION, "--temperature", "0", *options)
    assert (result.status, result.out) == (0, "The capital of France is Paris.\n")


@pytest.mark.model
def test_generate_refuses_a_budget_of_nothing_and_a_cache_it_does_not_know(
    run_command: Run,
) -> None:
    result = run_command("generate", QUESTION, "--kv-budget", "0")
    assert (result.status, result.out) == (2, "")
    assert "--kv-budget must be at least 1, not 0" in result.err
    result = run_command("generate", QUESTION, "--kv-cache-dtype", "int4")
    assert (result.status, result.out) == (2, "")
    assert "kv_cache_dtype must be one of auto, int8_per_token_head" in result.err


@pytest.mark.model
def test_generate_prints_one_json_object(run_command: Run) -> None:
    arguments = ("--max-tokens", "4", "--seed", "1", "-n", "2", "--json")
    result = run_command("generate", "--prompt", QUESTION, *arguments)
    report = json.loads(result.out)
    assert [len(sample["token_ids"]) for sample in report["outputs"]] == [4, 4]
    assert report["prompt"] == QUESTION
    assert report["ttft_s"] > 0


@pytest.mark.model
def test_generate_searches_with_beams(run_command: Run) -> None:
    arguments = ("--beam-width", "3", "-n", "2", "--max-tokens", "12", "--json")
    report = json.loads(run_command("generate", "--prompt", QUESTION, *arguments).out)
    scores = [sample["score"] for sample in report["outputs"]]
    assert scores == sorted(scores, reverse=True)
    assert report["outputs"][0]["text"] == "The capital of France is Paris."
    assert report["peak_kv_blocks"] < report["peak_kv_blocks_unshared"]


@pytest.mark.model
def test_generate_reads_a_piped_prompt_and_continues_raw_text(
    run_command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("The capital of France is\n"))
    result = run_command("generate", "--raw", "--temperature", "0", "--stop", ".")
    assert result.out == " Paris\n"


@pytest.mark.model
def test_generate_writes_the_events_of_every_step(run_command: Run, tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    run_command("generate", "--prompt", QUESTION, "--max-tokens", "3", "--events", str(path))
    events = read_events(path)
    assert isinstance(events[0], EngineStarted)
    assert sum(e.num_sampled_tokens for e in events if isinstance(e, StepEvent)) == 3
    assert isinstance(events[-1], RequestFinished)


@pytest.mark.model
def test_generate_answers_in_the_form_asked_for(run_command: Run, tmp_path: Path) -> None:
    schema = tmp_path / "schema.json"
    schema.write_text('{"type": "array", "items": {"type": "integer"}, "maxItems": 2}')
    result = run_command("generate", "Two numbers?", "--json-schema", str(schema))
    assert len(json.loads(result.out)) <= 2
    result = run_command("generate", "Is it?", "--choice", "yes", "--choice", "no")
    assert result.out in ("yes\n", "no\n")
    result = run_command("generate", "When?", "--regex", "[12][0-9]{3}")
    assert re.fullmatch("[12][0-9]{3}\n", result.out)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--prompt", ""), "empty"),
        (("--prompt", "x", "--regex", "("), "missing )"),
        (("--prompt", "x", "--regex", "a", "--choice", "b"), "exactly one of"),
        (("--prompt", "x", "--json-schema", "/nonexistent.json"), "cannot be read"),
        (("--prompt", "x", "--temperature", "-1"), "temperature"),
        (("--prompt", "x", "--max-tokens", "0"), "max-tokens"),
        (("--prompt", "x", "--top-p", "2"), "top_p"),
        (("--prompt", "x", "--model", "smollm3"), "smollm"),
        (("--prompt", "x", "--dtype", "int3"), "dtype"),
        (("--prompt", "x", "--events", "/nonexistent/e.jsonl"), "event log"),
        (("--prompt", "word " * 9000, "--raw"), "context"),
        (("--prompt", "x", "--beam-width", "2", "--seed", "1"), "takes no --seed"),
        (("--prompt", "x", "--beam-width", "2", "-n", "3"), "raise beam_width"),
        (("--prompt", "x", "--best-of", "2", "-n", "3"), "raise best_of or lower n"),
    ],
)
@pytest.mark.model
def test_generate_says_what_is_wrong_in_one_line(
    run_command: Run, arguments: tuple[str, ...], message: str
) -> None:
    result = run_command("generate", *arguments)
    assert result.status in (1, 2)
    assert message in result.err
    assert "Traceback" not in result.err
    assert result.out == ""


@pytest.mark.model
def test_chat_keeps_the_conversation_in_the_prefix_cache(
    run_command: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    path = tmp_path / "events.jsonl"
    lines = f"{QUESTION}\nAnd of Italy?\n/clear\n{QUESTION}\n/quit\nnever asked\n"
    monkeypatch.setattr("sys.stdin", io.StringIO(lines))
    result = run_command("chat", "--temperature", "0", "--max-tokens", "12", "--events", str(path))
    assert result.status == 0
    answers = result.out.strip().split("\n")
    assert answers[0] == answers[-1] == "The capital of France is Paris."
    turns = [event for event in read_events(path) if isinstance(event, RequestFinished)]
    assert len(turns) == 3
    first, second, again = turns
    assert first.num_cached_tokens == 0
    # The second turn finds every full block of the first one's prompt.
    assert second.num_cached_tokens >= first.num_prompt_tokens // 16 * 16
    assert again.num_cached_tokens == first.num_prompt_tokens // 16 * 16


@pytest.mark.model
def test_a_piped_chat_ends_at_a_line_that_is_no_text(
    run_command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("half \udcff pair\nnever asked\n"))
    result = run_command("chat")
    assert (result.status, result.out) == (2, "")
    assert "messages[0]['content'] has half a surrogate pair" in result.err


@pytest.mark.model
def test_the_piped_demo_shows_steps_answers_and_a_summary(run_command: Run) -> None:
    result = run_command("demo", "--max-tokens", "3")
    assert result.status == 0
    assert "step    0: " in result.out
    assert result.out.count("\n> ") == 8
    assert "24 tokens in " in result.out
    table = result.out.partition("how each request fared")[2]
    assert all(line == line.rstrip() for line in table.splitlines())
    assert "\x1b[" not in result.out


@pytest.mark.model
def test_generate_answers_the_same_with_drafts_and_says_how_they_fared(run_command: Run) -> None:
    repeat = "Repeat: a b c d e f g h a b c d"
    arguments = ("generate", repeat, "--temperature", "0", "--max-tokens", "16", "--json")
    plain = json.loads(run_command(*arguments).out)
    drafting = ("--speculative", "ngram", "--num-speculative-tokens", "3")
    drafted = json.loads(run_command(*arguments, *drafting).out)
    assert drafted["outputs"] == plain["outputs"]
    assert drafted["num_draft_tokens"] >= drafted["num_accepted_tokens"] > 0
    assert plain["num_draft_tokens"] == 0


@pytest.mark.model
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--draft-layers", "4"), "--draft-layers needs --speculative"),
        (("--speculative", "eagle"), "must be one of ngram, draft_model, not 'eagle'"),
        (("--speculative", "draft_model"), "needs either draft_model"),
        (("--speculative", "draft_model", "--draft-layers", "30"), "first 30 of 30 layers"),
        (("--speculative", "ngram", "--num-speculative-tokens", "0"), "from 1 to 32, not 0"),
        (("--speculative", "ngram", "--num-speculative-tokens", "33"), "from 1 to 32, not 33"),
        (("--speculative", "draft_model", "--draft-model", "no/such"), "no/such"),
    ],
)
def test_generate_refuses_drafts_that_make_no_sense_with_the_reason(
    run_command: Run, arguments: tuple[str, ...], said: str
) -> None:
    result = run_command("generate", "hi", *arguments)
    assert result.status != 0
    assert said in " ".join(result.err.split())
    assert "Traceback" not in result.err
