"""`infra-lab calc`: the figures that it prints, as text and as JSON, and what it refuses."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra_lab.calculators.parameters import num_parameters
from infra_lab.cli import calc_inputs
from infra_lab.cli.calc_inputs import shape_of, wanted_model
from infra_lab.errors import UsageError
from infra_lab.models import hub

Run = Callable[..., Any]

CONFIG = {
    "model_type": "qwen2",
    "vocab_size": 1000,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "max_position_embeddings": 512,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "model"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(CONFIG))
    return path


def test_kv_shows_the_product_and_all_three_ways_to_say_its_size(run_command: Run) -> None:
    result = run_command("calc", "kv", "llama-2-70b", "--tokens", "4096")
    assert result.status == 0
    assert (
        "2 x 80 layers x 8 KV heads x 128 x 4,096 tokens x 2 bytes "
        "= 1,342,177,280 bytes = 1.342 GB = 1.25 GiB"
    ) in result.out
    assert "\033" not in result.out


def test_kv_as_json_is_plain_numbers(run_command: Run) -> None:
    report = json.loads(run_command("calc", "kv", "llama-2-70b", "--requests", "32", "--json").out)
    assert report["bytes_per_token"] == 327_680
    assert report["bytes_in_all"] == 32 * 1_342_177_280
    assert report["block_bytes"] == 5 * 2**20
    assert report["bytes_per_request_by_format"]["fp8"] == 671_088_640


def test_kv_rounds_up_to_whole_blocks_and_says_what_is_unused(run_command: Run) -> None:
    arguments = ("calc", "kv", "llama-2-70b", "--tokens", "500", "--json")
    report = json.loads(run_command(*arguments).out)
    assert report["blocks_per_request"] == 32
    assert report["unused_slots_of_last_block"] == 12
    assert report["paged_bytes_per_request"] == 512 * 327_680


def test_a_model_may_be_given_in_numbers(run_command: Run) -> None:
    shape = ("--layers", "80", "--heads", "64", "--kv-heads", "8", "--head-dim", "128")
    report = json.loads(run_command("calc", "kv", *shape, "--json").out)
    assert report["bytes_per_request"] == 1_342_177_280
    assert report["model"]["attention"] == "GQA"


def test_a_model_may_be_a_folder(run_command: Run, folder: Path) -> None:
    report = json.loads(run_command("calc", "kv", str(folder), "--tokens", "1", "--json").out)
    assert report["bytes_per_token"] == 2 * 3 * 2 * 8 * 2


@pytest.mark.model
def test_a_model_may_be_a_gguf_file(run_command: Run, smollm2_path: Path) -> None:
    of_file = json.loads(run_command("calc", "kv", str(smollm2_path), "--json").out)
    of_name = json.loads(run_command("calc", "kv", "smollm2-135m", "--json").out)
    assert of_file["model"]["parameters"] == of_name["model"]["parameters"] == 134_515_008
    assert of_file["bytes_per_request"] == of_name["bytes_per_request"]


@pytest.mark.parametrize("family", ["llama", "mistral", "qwen2", "qwen3"])
def test_a_config_of_the_engines_keeps_its_parameters(family: str, tmp_path: Path) -> None:
    from infra_lab.models.hf_config import hf_config
    from infra_lab.models.parameters import num_parameters as engine_count

    values = {**CONFIG, "model_type": family, "attention_bias": family == "llama"}
    (tmp_path / "config.json").write_text(json.dumps(values))
    config = hf_config(tmp_path)
    assert num_parameters(shape_of(config, "mine")) == engine_count(config)


def test_of_a_hub_model_only_the_config_is_fetched(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[bool] = []

    def config_folder(hub_id: str, offline: bool) -> Path:
        from huggingface_hub.errors import LocalEntryNotFoundError

        asked.append(offline)
        if offline:
            raise LocalEntryNotFoundError("not in the cache")
        return folder

    monkeypatch.setattr(hub, "_config_folder", config_folder)
    assert wanted_model("some-org/some-model").num_layers == 3
    assert asked == [True, False]


def test_a_hub_model_without_a_network_says_what_to_do(
    run_command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    def offline(hub_id: str, offline: bool) -> Path:
        from huggingface_hub.errors import LocalEntryNotFoundError

        raise LocalEntryNotFoundError("no network")

    monkeypatch.setattr(hub, "_config_folder", offline)
    result = run_command("calc", "kv", "some-org/some-model")
    assert result.status == 1
    assert "Without a network, give a local folder" in result.err


def test_the_advised_number_of_gpus_splits_the_heads(run_command: Run) -> None:
    # 138 GB over 22 GB a card are 6.3, and 7 do not divide 64 heads.
    out = run_command("calc", "fit", "llama-2-70b", "--gpu", "rtx-4090").out
    assert "no request fits: it takes 8 GPUs" in out
    again = run_command("calc", "fit", "llama-2-70b", "--gpu", "rtx-4090", "--gpus", "8", "--json")
    assert json.loads(again.out)["fits"]


def test_a_model_that_no_split_fits_says_so(run_command: Run) -> None:
    arguments = ("calc", "fit", "gpt-3", "--gpu", "rtx-4090", "--utilization", "0.05")
    assert "not even on 96 GPUs with a head each" in run_command(*arguments).out
    assert json.loads(run_command(*arguments, "--json").out)["fewest_gpus"] is None


@pytest.mark.parametrize("weights", ["fp32", "FP32", "float32", "Float32"])
def test_weights_of_32_bits_are_multiplied_as_such_however_they_are_written(
    run_command: Run, weights: str
) -> None:
    arguments = ("calc", "roofline", "llama-2-7b", "--weights", weights, "--json")
    assert json.loads(run_command(*arguments).out)["operands"] == "fp32"
    upper = ("calc", "roofline", "llama-2-7b", "--operands", "BF16", "--json")
    lower = ("calc", "roofline", "llama-2-7b", "--operands", "bf16", "--json")
    first, second = (json.loads(run_command(*one).out) for one in (upper, lower))
    assert first["flops_per_s"] == second["flops_per_s"]


def test_roofline_says_what_bounds_a_step_and_that_long_contexts_never_turn(
    run_command: Run,
) -> None:
    result = run_command("calc", "roofline", "llama-2-70b", "--batch", "1", "--batch", "64")
    assert "1.868 s (compute 1.868 s" in result.out
    assert re.search(r"never: an endless batch does 110\.\d FLOP", result.out)
    report = json.loads(
        run_command("calc", "roofline", "llama-2-7b", "--context", "16", "--json").out
    )
    assert report["decode"][0]["bound"] == "memory"
    assert report["decode"][-1]["bound"] == "compute"
    assert 128 < report["crossover_batch"] < 512


def test_a_cached_prefix_shortens_the_first_token(run_command: Run) -> None:
    def ttft(*more: str) -> float:
        arguments = ("calc", "roofline", "llama-3-8b", "--prompt", "2100", "--json", *more)
        return float(json.loads(run_command(*arguments).out)["ttft"]["compute_s"])

    assert 17 < ttft() / ttft("--cached", "2000") < 21  # 2100 / 100, less the prefix's attention


def test_fit_counts_requests_or_says_what_it_would_take(run_command: Run) -> None:
    arguments = ("calc", "fit", "llama-2-70b", "--weights", "int4-g128")
    assert "27.8: 27 requests" in run_command(*arguments).out
    small = run_command(*arguments, "--gpu", "4090").out
    assert "no request fits: it takes 2 GPUs, or weights of at most 2.30 bits" in small
    assert json.loads(run_command(*arguments, "--gpu", "4090", "--json").out)["fits"] is False


def test_the_memory_that_a_driver_reports_may_be_given(run_command: Run) -> None:
    arguments = ("calc", "fit", "llama-2-70b", "--weights", "int4", "--utilization", "0.92")
    report = json.loads(run_command(*arguments, "--memory-gib", "80", "--json").out)
    assert report["memory_bytes_per_gpu"] == 80 * 2**30
    assert report["budget_bytes"] == pytest.approx(0.92 * 80 * 2**30)


def test_the_bits_that_fit_said_do_fit(run_command: Run) -> None:
    bits = json.loads(run_command("calc", "fit", "llama-2-70b", "--gpu", "4090", "--json").out)[
        "most_bits_per_weight"
    ]
    assert 2 < bits < 3
    arguments = ("calc", "fit", "llama-2-70b", "--gpu", "4090", "--json", "--weights")
    assert json.loads(run_command(*arguments, "int2-g128").out)["fits"] is True
    assert json.loads(run_command(*arguments, "int3-g128").out)["fits"] is False


def test_speculate_shows_the_formula_and_the_best_number(run_command: Run) -> None:
    result = run_command("calc", "speculate", "--acceptance", "0.8", "--drafts", "5")
    assert "(1 - 0.8^6) / (1 - 0.8) = 3.689" in result.out
    assert "3.689 / (5 x 0.1 + 1) = 2.46" in result.out
    assert "best           6 drafts" in result.out
    never = run_command("calc", "speculate", "--acceptance", "0.1", "--cost", "0.2")
    assert "no drafts: acceptance does not exceed the cost" in never.out
    sure = run_command("calc", "speculate", "--acceptance", "1", "--cost", "0")
    assert "5 + 1 = 6.000" in sure.out


def test_parallel_counts_all_reduces_and_their_bytes(run_command: Run) -> None:
    report = json.loads(run_command("calc", "parallel", "llama-2-70b", "--tp", "8", "--json").out)
    assert report["all_reduces_per_step"] == 160
    assert report["message_bytes"] == 16_384
    assert report["kv_heads_per_gpu"] == 1
    assert [plan["num_replicas"] for plan in report["plans"]] == [8, 4, 2, 1]
    assert report["plans"][0]["most_requests"] == 0
    assert "0 (too few)" in run_command("calc", "parallel", "llama-2-70b").out
    text = run_command("calc", "parallel", "llama-2-70b", "--tp", "1", "--pp", "2").out
    assert "none: one GPU has everything" in text
    assert "0-39 40-79" in text


def test_this_machine_is_measured(run_command: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    from infra_lab.cli import torch_probe

    found = {"fp32_gflop_per_s": 50.0, "bf16_gflop_per_s": 10.0, "read_gb_per_s": 10.0}
    monkeypatch.setattr(torch_probe, "probe", lambda buffer_bytes: found)
    arguments = ("calc", "roofline", "smollm2-135m", "--gpu", "this-machine", "--weights", "fp32")
    report = json.loads(run_command(*arguments, "--json").out)
    assert report["operands"] == "fp32"
    assert report["ridge_flops_per_byte"] == 5.0
    assert report["decode"][0]["floor_s"] == pytest.approx(
        (134.5e6 * 4 + 4096 * 23_040) / 10e9, rel=1e-3
    )
    monkeypatch.setattr(torch_probe, "probe", lambda buffer_bytes: "torch is missing")
    assert "this machine cannot be measured: torch is missing" in run_command(*arguments).err


@pytest.mark.parametrize("command", ["models", "gpus"])
def test_what_is_known_is_listed(run_command: Run, command: str) -> None:
    rows = json.loads(run_command("calc", command, "--json").out)
    text = run_command("calc", command).out
    assert all(row["name"] in text for row in rows)
    assert len(rows) >= 6


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("kv",), "no model: give a name"),
        (("kv", "--layers", "2"), "needs --kv-heads and --head-dim as well"),
        (("kv", "gpt-3", "--layers", "2"), "give a model or numbers, not both"),
        (("kv", "lama-2-70b"), "did you mean llama-2-70b"),
        (("kv", "./nowhere"), "there is no file or folder './nowhere'"),
        (("kv", "gpt-3", "--tokens", "-1"), "--tokens must be at least 0, not -1"),
        (("kv", "gpt-3", "--block-size", "0"), "--block-size must be at least 1, not 0"),
        (("kv", "gpt-3", "--cache", "int7"), "no number format is called 'int7'"),
        (("fit", "gpt-3", "--gpus", "0"), "--gpus must be at least 1, not 0"),
        (("fit", "gpt-3", "--gpu", "h1000"), "no GPU is called 'h1000': did you mean h100"),
        (("fit", "gpt-3", "--utilization", "2"), "--utilization must be above 0 and at most 1"),
        (("fit", "gpt-3", "--memory-gib", "0"), "--memory-gib must be above 0, not 0"),
        (("kv", "gpt-3", "--tokens", "9" * 400), "num_tokens must be at most 10^15"),
        (("speculate", "--most", "9" * 400), "--most must be above 0 and at most 64"),
        (("speculate", "--cost", "nan"), "--cost must be at least 0, not nan"),
        (("fit", "gpt-3", "--other-gb", "-1"), "--other-gb must be at least 0"),
        (("fit", "llama-2-70b", "--gpus", "3"), "num_gpus 3 does not divide num_query_heads 64"),
        (("roofline", "gpt-3", "--batch", "0"), "--batch must be above 0"),
        (("roofline", "gpt-3", "--prompt", "8", "--cached", "8"), "at least the last token"),
        (("roofline", "gpt-3", "--operands", "fp4"), "has no peak for 'fp4' operands"),
        (("roofline", "gpt-3", "--compute-efficiency", "1.1"), "at most 1, not 1.1"),
        (("speculate", "--acceptance", "1.1"), "--acceptance must be from 0 to 1, not 1.1"),
        (("speculate", "--cost", "-1"), "--cost must be at least 0"),
        (("speculate", "--most", "1000"), "--most must be above 0 and at most 64"),
        (("parallel", "smollm2-135m", "--tp", "2"), "choose one of 1, 3, 9"),
        (("parallel", "gpt-3", "--pp", "97"), "97 stages for 96 layers"),
        (("parallel", "gpt-3", "--gpu", "4090"), "no link between GPUs is known"),
    ],
)
def test_what_makes_no_sense_is_one_line(
    run_command: Run, arguments: tuple[str, ...], message: str
) -> None:
    result = run_command("calc", *arguments)
    assert result.status in (1, 2)
    assert message in result.err
    assert result.out == ""
    assert result.err.count("\n") == 1


def test_numbers_without_heads_mean_a_head_for_each_kv_head() -> None:
    assert wanted_model(None, layers=2, kv_heads=4, head_dim=8).attention_kind == "MHA"
    with pytest.raises(UsageError, match="does not divide"):
        wanted_model(None, layers=2, heads=6, kv_heads=4, head_dim=8)


def test_known_names_come_before_folders_of_that_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "gpt-3").mkdir()
    monkeypatch.chdir(tmp_path)
    assert calc_inputs.wanted_model("gpt-3").num_layers == 96
