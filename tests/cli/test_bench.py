"""`infra-lab bench`: refusals, one JSON object on stdout, and exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from infra_lab.bench import peers as peers_module
from infra_lab.bench.child import ChildFailedError
from infra_lab.bench.peers import Contender, EngineRun
from infra_lab.bench.runs import BatchRun, StreamRun
from infra_lab.cli.main import main
from infra_lab.errors import ModelNotFoundError
from infra_lab.models.store import resolve

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def bench(capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `infra-lab bench ...` and gives exit status, stdout and stderr."""

    def run(*arguments: str) -> tuple[int, str, str]:
        with pytest.raises(SystemExit) as end:
            main(["bench", *arguments])
        captured = capsys.readouterr()
        return int(end.value.code or 0), captured.out, captured.err

    return run


@pytest.fixture
def tiny_config(tmp_path: Path) -> str:
    """A folder with a config and no weights: enough for what is checked before loading."""
    config = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": 32,
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 64,
        "rms_norm_eps": 1e-5,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    return str(tmp_path)


@pytest.mark.parametrize(
    "command",
    [
        "throughput",
        "latency",
        "perplexity",
        "peers",
        "serve",
        "serve-peers",
        "policies",
        "resume",
        "speculation",
        "beams",
    ],
)
def test_every_help_has_an_example(bench: Run, command: str) -> None:
    status, out, _ = bench(command, "--help")
    assert status == 0
    assert f"Example: infra-lab bench {command}" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["throughput", "--prompt-len", "9:3"], "prompt lengths run from 9 to 3"),
        (["throughput", "--prompt-len", "many"], "--prompt-len must be MIN:MAX"),
        (["throughput", "--output-len", "0:3"], "output lengths must be at least 1, not 0"),
        (["throughput", "--num-requests", "-1"], "number of requests must be at least 1, not -1"),
        (["throughput", "--repeat", "0"], "--repeat must be at least 1, not 0"),
        (["throughput", "--warmup", "-1"], "--warmup must be at least 0, not -1"),
        (["throughput", "--threads", "0"], "--threads must be at least 1, not 0"),
        (["throughput", "--draft-layers", "4"], "--draft-layers needs --speculative"),
        (["latency", "--speculative", "draft_model"], "needs either draft_model"),
        (["latency", "--prompt-len", "0"], "prompt lengths must be at least 1, not 0"),
        (["latency", "--repeat", "0"], "--repeat must be at least 1, not 0"),
        (["policies", "--policy", "lifo"], "no policy 'lifo'"),
        (["throughput", "--swap-space-mb", "0"], "--swap-space-mb must be at least 1, not 0"),
        (["resume", "--repeat", "0"], "--repeat must be at least 1, not 0"),
        (["policies", "--rate", "-1"], "0 or more requests a second"),
        (["policies", "--aging-steps", "-1"], "--aging-steps must be at least 0, not -1"),
        (["policies", "--policy", "static", "--aging-steps", "5"], "none of static ages"),
        (["policies", "--num-blocks", "0"], "--num-blocks must be at least 1, not 0"),
        (["policies", "--num-blocks", "3"], "a prompt of"),
        (["perplexity", "--window", "1"], "--window must be at least 2, not 1"),
        (["perplexity", "--budget", "0"], "--budget must be from 1 to 100 percent, not 0"),
        (["perplexity", "--budget", "101"], "--budget must be from 1 to 100 percent, not 101"),
        (["perplexity", "--kv-cache-dtype", "int4"], "no kv_cache_dtype 'int4'"),
        (["perplexity", "--text", "./no/such.txt"], "no/such.txt cannot be read as text"),
        (["speculation", "--batch", "9"], "--batch must be from 1 to 8, not 9"),
        (["speculation", "--output-tokens", "1"], "--output-tokens must be at least 2, not 1"),
        (["peers"], "name at least one peer"),
        (["peers", "--peer", "sglang"], "no peer 'sglang'"),
        (["peers", "--peer", "vllm"], "give one for each peer"),
        (["peers", "--peer", "transformers", "--dtype", "auto"], "name one"),
        (["peers", "--peer", "transformers", "--streams", "0"], "must be at least 1, not 0"),
    ],
)
def test_arguments_without_sense_end_with_2_and_one_line(
    bench: Run, arguments: list[str], message: str
) -> None:
    status, out, err = bench(*arguments)
    assert (status, out) == (2, "")
    assert err.startswith("error: ")
    assert message in err
    assert err.count("\n") == 1


@pytest.mark.parametrize("command", ["throughput", "latency", "peers"])
def test_requests_longer_than_the_context_are_refused_before_anything_is_loaded(
    bench: Run, tiny_config: str, command: str
) -> None:
    extra = ["--peer", "transformers"] if command == "peers" else []
    lengths = ["--prompt-len", "40", "--output-len", "25"]
    status, _, err = bench(command, "--model", tiny_config, *lengths, *extra)
    assert status == 2
    assert "make 65, but the model's context is 64" in err


def test_a_window_longer_than_the_context_is_refused_before_anything_is_loaded(
    bench: Run, tiny_config: str
) -> None:
    status, _, err = bench("perplexity", "--model", tiny_config, "--window", "64")
    assert status == 2
    assert "--window 64 does not fit the model's context of 64 tokens" in err


def test_a_model_that_is_not_there_is_named(bench: Run) -> None:
    status, _, err = bench("throughput", "--model", "./no/such/folder")
    assert status == 1
    assert "./no/such/folder" in err


def test_a_failed_peer_ends_with_1_after_the_others_were_printed(
    bench: Run, tiny_config: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run(contender: Contender, job_file: Path, timeout_s: float) -> EngineRun:
        if contender.name == "vllm":
            raise ChildFailedError("it ended with status 1:\nModuleNotFoundError: vllm")
        return EngineRun(BatchRun(1.0, 6, 6), (StreamRun(0.1, 1.0, 3),), 10.0)

    monkeypatch.setattr(peers_module, "run_in_child", run)
    lengths = ["--prompt-len", "3", "--output-len", "3", "--num-requests", "2"]
    stream = ["--stream-prompt-len", "3", "--stream-output-len", "3"]
    who = ["--peer", "vllm", "--python", sys.executable, "--peer", "transformers"]
    status, out, err = bench("peers", "--model", tiny_config, *lengths, *stream, *who, "--json")
    assert status == 1
    engines = json.loads(out)["engines"]
    assert engines["transformers"]["ours_over_peer"]["output_tokens_per_s"] == 1.0
    assert "ModuleNotFoundError" in engines["vllm"]["error"]
    assert "error: an engine did not finish.\nvllm: it ended with status 1" in err


def test_policies_are_compared_on_one_trace(bench: Run) -> None:
    some = ["--policy", "static", "--policy", "fcfs", "--num-requests", "30"]
    status, out, err = bench("policies", *some, "--json")
    assert (status, err) == (0, "")
    report = json.loads(out)
    assert list(report["policies"]) == ["static", "fcfs"]
    assert report["trace"]["num_requests"] == 30
    assert report["policies"]["fcfs"]["all"]["latency_p99_s"] > 0
    status, out, _ = bench("policies", *some)
    assert status == 0
    assert "static" in out


@pytest.mark.model
def test_throughput_prints_one_json_object_with_the_promised_keys(bench: Run) -> None:
    _skip_without_model()
    small = ["--num-requests", "2", "--prompt-len", "4", "--output-len", "3", "--warmup", "1"]
    status, out, err = bench("throughput", *small, "--json")
    assert status == 0, err
    report = json.loads(out)
    promised = {"output_tokens_per_s", "total_tokens_per_s", "elapsed_s", "peak_rss_mb"}
    assert promised <= set(report)
    assert (report["prompt_tokens"], report["output_tokens"]) == (8, 6)
    assert report["step_time"]["steps"] >= 3


@pytest.mark.model
def test_resume_reports_both_ways_for_every_length(bench: Run) -> None:
    _skip_without_model()
    status, out, err = bench("resume", "--tokens", "5", "--tokens", "20", "--repeat", "1", "--json")
    assert status == 0, err
    rows = json.loads(out)["resume"]
    assert [row["tokens"] for row in rows] == [5, 20]
    assert all(0 < row["swap_in_ms"] < row["swap_ms"] for row in rows)
    assert all(row["recompute_ms"] > 0 for row in rows)


def test_resume_refuses_what_the_context_does_not_hold(bench: Run, tiny_config: str) -> None:
    status, _, err = bench("resume", "--model", tiny_config, "--tokens", "61")
    assert (status, err.count("\n")) == (2, 1)
    assert "--tokens must be from 1 to 60 for this model, not 61" in err


@pytest.mark.model
def test_throughput_with_drafts_reports_how_they_fared(bench: Run) -> None:
    _skip_without_model()
    small = ["--num-requests", "2", "--prompt-len", "4", "--output-len", "8", "--warmup", "0"]
    drafting = ["--speculative", "draft_model", "--draft-layers", "2"]
    status, out, err = bench("throughput", *small, *drafting, "--json")
    assert status == 0, err
    report = json.loads(out)
    assert report["engine"]["speculative"]["draft_layers"] == 2
    steps = report["step_time"]
    assert 0 <= steps["accepted_tokens"] <= steps["draft_tokens"]
    assert steps["draft_tokens"] > 0
    assert steps["propose_ms"] > 0


@pytest.mark.model
def test_latency_reports_gaps_between_tokens(bench: Run) -> None:
    _skip_without_model()
    status, out, err = bench("latency", "--prompt-len", "4", "--output-len", "4", "--json")
    assert status == 0, err
    report = json.loads(out)
    assert report["ttft_ms"] > 0
    assert report["tpot_ms"] > 0
    assert report["itl_ms"]["p50"] > 0


def _skip_without_model() -> None:
    try:
        resolve("smollm2-135m")
    except ModelNotFoundError as error:
        pytest.skip(str(error))


@pytest.mark.slow
@pytest.mark.model
def test_speculation_is_measured_on_each_work_with_each_kind_of_draft(bench: Run) -> None:
    _skip_without_model()
    small = ["--batch", "8", "--output-tokens", "4", "--draft-layers", "2"]
    status, out, err = bench("speculation", *small, "--json")
    assert status == 0, err
    rows = json.loads(out)["runs"]
    drafts = ["none", "n-gram", "first 2 of 30 layers"]
    assert [(row["work"], row["draft"]) for row in rows] == [
        (work, draft) for work in ("summary", "chat") for draft in drafts
    ]
    for row in rows:
        is_none = row["draft"] == "none"
        assert (row["speedup"] == 1) == is_none
        assert (row["acceptance_rate"] is None) or not is_none
        assert 1 <= row["tokens_per_step"] <= 4


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["speculation", "--num-speculative-tokens", "0"], "integer from 1 to 32, not 0"),
        (["speculation", "--draft-layers", "1"], "from 1 to 0 for this model, not 1"),
        (["beams", "--width", "0"], "beam_width must be an integer from 1 to 64, not 0"),
        (["beams", "--width", "2", "--width", "65"], "from 1 to 64, not 65"),
    ],
)
def test_what_cannot_be_measured_is_refused_before_anything_is_loaded(
    bench: Run, tiny_config: str, arguments: list[str], message: str
) -> None:
    status, out, err = bench(*arguments, "--model", tiny_config)
    assert (status, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_a_draft_model_that_is_not_there_is_refused_before_anything_is_loaded(
    bench: Run, tiny_config: str
) -> None:
    arguments = ["--model", tiny_config, "--draft-model", "./no/such"]
    status, out, err = bench("speculation", *arguments)
    assert (status, out) == (1, "")
    assert err == "error: there is no file or folder './no/such'\n"


@pytest.mark.model
def test_a_draft_model_of_another_vocabulary_is_refused_before_anything_is_loaded(
    bench: Run, tiny_config: str
) -> None:
    _skip_without_model()
    status, out, err = bench("speculation", "--draft-model", tiny_config)
    assert (status, out) == (2, "")
    assert "a vocabulary of 32 tokens and the model one of 49,152" in err
    assert err.count("\n") == 1


@pytest.mark.slow
@pytest.mark.model
def test_beams_save_more_the_more_there_are(bench: Run) -> None:
    _skip_without_model()
    small = ["--width", "2", "--width", "3", "--output-tokens", "2", "--block-size", "32"]
    status, out, err = bench("beams", *small, "--json")
    assert status == 0, err
    report = json.loads(out)
    assert report["block_size"] == 32
    rows = report["beams"]
    assert [row["beam_width"] for row in rows] == [2, 3]
    assert 0 < rows[0]["saved"] < rows[1]["saved"] < 1
