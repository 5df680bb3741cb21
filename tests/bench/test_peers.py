"""Side by side: turns, failures, pairing of peers with Pythons, and the ratios that come out."""

from __future__ import annotations

import ast
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from infra_lab.bench import contenders as contenders_module
from infra_lab.bench.child import ChildFailedError, run_child
from infra_lab.bench.comparison import comparison_report, ratios
from infra_lab.bench.contenders import RUNNERS, contenders_for, job_for, pair_peers_with_pythons
from infra_lab.bench.peers import OURS, Contender, EngineRun, compare, parse_result, run_in_child
from infra_lab.bench.runs import BatchRun, StreamRun
from infra_lab.bench.tables import comparison_tables
from infra_lab.bench.workload import BenchRequest, Job, Workload, load_job
from infra_lab.errors import UsageError
from infra_lab.models.config import ModelConfig

RUNNER_FOLDER = Path(contenders_module.__file__).parent / "peer_runners"
JOB = Job((BenchRequest((1, 2), 10),), (BenchRequest((3,), 5),), 64, 1)
CONTENDERS = [Contender(name, ("run", name), "model") for name in (OURS, "vllm", "transformers")]
CONFIG = ModelConfig(
    architecture="llama",
    vocab_size=300,
    hidden_size=8,
    intermediate_size=16,
    num_hidden_layers=3,
    num_attention_heads=2,
    num_key_value_heads=1,
    head_dim=4,
    max_position_embeddings=1000,
    rms_norm_eps=1e-5,
    rope_theta=10_000.0,
)
GOOD_RESULT = {
    "elapsed_s": 2.0,
    "prompt_tokens": 2,
    "output_tokens": 10,
    "peak_rss_mb": 100.0,
    "single_stream": [{"ttft_s": 0.1, "latency_s": 0.5, "output_tokens": 5}],
    "versions": {"peer": "1.0"},
}


def run_of(elapsed_s: float = 1.0, output_tokens: int = 10, rss: float = 100.0) -> EngineRun:
    stream = StreamRun(0.1, elapsed_s, 5)
    return EngineRun(BatchRun(elapsed_s, 2, output_tokens), (stream,), rss, {"peer": "1.0"})


def script(tmp_path: Path, text: str) -> list[str]:
    path = tmp_path / "child.py"
    path.write_text(text)
    return [sys.executable, str(path)]


# Turns


def test_engines_run_in_turn_on_one_job_file() -> None:
    order: list[str] = []

    def run(contender: Contender, job_file: Path) -> EngineRun:
        assert load_job(job_file) == JOB
        order.append(contender.name)
        return run_of()

    result = compare(CONTENDERS, JOB, 2, run)
    assert order == [OURS, "vllm", "transformers"] * 2
    assert {name: len(runs) for name, runs in result.runs.items()} == dict.fromkeys(order, 2)


def test_a_failed_peer_is_named_and_left_out_while_the_others_go_on() -> None:
    order: list[str] = []

    def run(contender: Contender, job_file: Path) -> EngineRun:
        order.append(contender.name)
        if contender.name == "vllm":
            raise ChildFailedError("no module named vllm")
        return run_of()

    result = compare(CONTENDERS, JOB, 2, run)
    assert order == [OURS, "vllm", "transformers", OURS, "transformers"]
    assert result.failures == {"vllm": "no module named vllm"}


def test_a_peer_that_ran_another_workload_has_failed() -> None:
    result = compare(CONTENDERS[:1], JOB, 1, lambda contender, job_file: run_of(output_tokens=9))
    assert result.failures == {OURS: "it produced 9 output tokens, not 10"}


def test_progress_names_round_engine_and_speed() -> None:
    said: list[str] = []
    compare(CONTENDERS[:1], JOB, 1, lambda contender, job_file: run_of(2.0), said.append)
    assert said == [
        "round 1 of 1: infra-lab ...",
        "round 1 of 1: infra-lab: 5.0 output tokens/s, single stream 2.5",
    ]


# Children


def test_a_childs_stdout_comes_back() -> None:
    assert run_child([sys.executable, "-c", "print('hi')"], 60).strip() == "hi"


def test_a_child_that_fails_gives_its_last_lines(tmp_path: Path) -> None:
    text = "import sys\nfor i in range(50): print('line', i, file=sys.stderr)\nsys.exit(3)"
    with pytest.raises(ChildFailedError, match=r"status 3:\nline 38\n(.*\n)+line 49$"):
        run_child(script(tmp_path, text), 60)


def test_a_child_that_takes_too_long_is_ended(tmp_path: Path) -> None:
    with pytest.raises(ChildFailedError, match="longer than 1 s"):
        run_child(script(tmp_path, "import time; time.sleep(600)"), 1)


def test_a_python_that_is_not_there_is_named() -> None:
    with pytest.raises(ChildFailedError, match="cannot run /no/such/python: No such file"):
        run_child(["/no/such/python", "x.py"], 60)


def test_a_runner_gets_job_and_model_and_its_last_line_is_read(tmp_path: Path) -> None:
    text = (
        "import json, sys\nassert json.load(open(sys.argv[1]))['format'] == 1\n"
        f"assert sys.argv[2] == 'the-model'\nprint('chatter')\nprint({json.dumps(GOOD_RESULT)!r})"
    )
    peer = Contender("vllm", tuple(script(tmp_path, text)), "the-model")
    result = compare([peer], JOB, 1, lambda who, job_file: run_in_child(who, job_file, 60))
    assert result.failures == {}
    assert result.runs["vllm"][0].batch.output_tokens_per_s == 5.0
    assert result.runs["vllm"][0].single_stream_tokens_per_s == 10.0


@pytest.mark.parametrize("output", ["", "no json", "[]", "{}", '{"elapsed_s": 1}'])
def test_output_that_is_no_result_is_a_failure_that_shows_it(output: str) -> None:
    with pytest.raises(ChildFailedError, match="it printed no result"):
        parse_result(output)


# Who runs where


def test_pythons_go_to_peers_in_order() -> None:
    assert pair_peers_with_pythons(["llama.cpp", "vllm"], ["a", "b"]) == [
        ("llama.cpp", "a"),
        ("vllm", "b"),
    ]


def test_transformers_may_go_without_a_python_wherever_it_stands() -> None:
    pairs = pair_peers_with_pythons(["vllm", "transformers", "llama.cpp"], ["a", "b"])
    assert pairs == [("vllm", "a"), ("transformers", sys.executable), ("llama.cpp", "b")]


@pytest.mark.parametrize(
    ("peers", "pythons", "message"),
    [
        ([], [], "name at least one peer"),
        (["sglang"], ["a"], "no peer 'sglang': peers are vllm, transformers, llama.cpp"),
        (["vllm"], [], "0 --python for vllm: give one for each"),
        (["vllm"], ["a", "b"], "2 --python for vllm"),
        (["vllm", "vllm"], ["a", "b"], "each peer can be named once"),
    ],
)
def test_peers_and_pythons_that_do_not_match_are_refused(
    peers: list[str], pythons: list[str], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        pair_peers_with_pythons(peers, pythons)


def test_llama_cpp_reads_the_file_and_the_others_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tmp_path / "model.gguf"
    model.touch()
    folder = tmp_path / "folder"
    monkeypatch.setattr(contenders_module, "hugging_face_folder", lambda path, cache: folder)
    given = contenders_for([("vllm", "a"), ("llama.cpp", "b")], model, tmp_path)
    assert [item.model for item in given] == [str(model), str(folder), str(model)]
    assert [item.command[0] for item in given] == [sys.executable, "a", "b"]


def test_llama_cpp_is_not_given_a_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"llama\.cpp reads \.gguf files"):
        contenders_for([("llama.cpp", "a")], tmp_path, tmp_path)


def test_all_engines_get_cache_for_the_whole_batch_at_its_longest() -> None:
    job = job_for(Workload(4, 10, 100, 10, 100), Workload(1, 5, 5, 5, 5), CONFIG, "float32", None)
    assert job.max_model_len == 256
    bytes_per_token = 2 * 3 * 1 * 4 * 4
    assert job.kv_cache_bytes == 4 * (256 + 128) * bytes_per_token


def test_an_unknown_dtype_is_refused() -> None:
    with pytest.raises(UsageError, match="dtype must be one of float32, bfloat16, float16"):
        job_for(Workload(), Workload(), CONFIG, "int4", None)


# Results


def test_ratios_are_of_the_same_round_and_their_median_counts() -> None:
    ours = [run_of(1.0), run_of(2.0), run_of(1.0)]
    peer = [run_of(2.0, rss=200.0), run_of(2.0, rss=200.0), run_of(6.0, rss=200.0)]
    result = ratios(ours, peer)
    assert result["output_tokens_per_s_each"] == [2.0, 1.0, 6.0]
    assert result["output_tokens_per_s"] == 2.0
    assert result["single_stream_tokens_per_s"] == 2.0
    assert result["peak_rss_mb"] == 0.5


def test_a_report_has_figures_for_those_that_ran_and_reasons_for_the_rest() -> None:
    def run(contender: Contender, job_file: Path) -> EngineRun:
        if contender.name == "vllm":
            raise ChildFailedError("gone")
        return run_of()

    report = comparison_report(compare(CONTENDERS, JOB, 2, run))
    assert report["engines"]["vllm"] == {"error": "gone"}
    assert report["engines"]["transformers"]["ours_over_peer"]["output_tokens_per_s"] == 1.0
    assert "ours_over_peer" not in report["engines"][OURS]
    assert json.loads(json.dumps(report))["engines"].keys() == report["engines"].keys()
    figures, over = comparison_tables(report)
    assert (figures.row_count, over.row_count) == (3, 1)


# The runners themselves


@pytest.mark.parametrize("name", [*RUNNERS.values(), "saved_job.py", "vllm_server.py"])
def test_a_peers_runner_stands_alone(name: str) -> None:
    tree = ast.parse((RUNNER_FOLDER / name).read_text(encoding="utf-8"))
    imported: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            imported |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            imported.add(node.module or "")
    assert not any(module.startswith("infra_lab") for module in imported)


def test_every_runner_file_has_a_peer_and_every_peer_a_file() -> None:
    files = {path.name for path in RUNNER_FOLDER.glob("*_runner.py")}
    assert files == set(RUNNERS.values())


def test_the_transformers_runner_runs_a_job(tmp_path: Path) -> None:
    model = tiny_model_folder(tmp_path)
    command = (sys.executable, str(RUNNER_FOLDER / RUNNERS["transformers"]))
    peer = Contender("transformers", command, str(model))
    job = Job((BenchRequest((1, 2), 6), BenchRequest((4,), 4)), (BenchRequest((3,), 3),), 64, 2, 1)
    result = compare([peer], job, 1, lambda who, job_file: run_in_child(who, job_file, 120))
    assert result.failures == {}
    run = result.runs["transformers"][0]
    assert (run.batch.prompt_tokens, run.batch.output_tokens) == (3, 10)
    assert run.streams[0].output_tokens == 3
    assert run.peak_rss_mb > 0


def tiny_model_folder(tmp_path: Path) -> Path:
    import torch
    import transformers

    torch.manual_seed(0)
    settings: dict[str, Any] = {
        "vocab_size": 32,
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "max_position_embeddings": 64,
        # Every id is an end of sequence: a runner that heeded it would stop at once.
        "eos_token_id": list(range(32)),
    }
    model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**settings))
    folder = tmp_path / "tiny"
    model.save_pretrained(folder)
    return folder
