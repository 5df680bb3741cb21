"""`infra-lab quantize`, `quantize compare` and `eval ppl` from the command line to the folder."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from safetensors.torch import load_file, save_file

from infra_lab.models.loader import open_checkpoint
from infra_lab.quantization import layer_methods, run
from infra_lab.quantization.layer_result import LayerResult
from infra_lab.quantization.settings import METHODS
from tests.quantization.tiny_models import TEXT, tiny_model

Run = Callable[..., Any]
SHORT = ("--samples", "4", "--sequence-length", "24")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    tiny_model(folder, intermediate_size=128)
    (folder / "text.txt").write_text(TEXT)
    return folder


@pytest.fixture
def calibrated(model: Path) -> tuple[str, ...]:
    return (str(model), "--calibration", str(model / "text.txt"), *SHORT)


def what_is_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_writes_a_folder_that_is_evaluated_like_any_model(
    run_command: Run, model: Path, tmp_path: Path, method: str
) -> None:
    out = tmp_path / "out"
    options = ["--method", method, "--out", str(out), "--json"]
    if METHODS[method].calibrated:
        options += ["--calibration", str(model / "text.txt"), *SHORT]
    result = run_command("quantize", str(model), *options)
    assert result.status == 0, result.err
    report = json.loads(result.out)
    assert report["format"] == METHODS[method].formats[0]
    assert report["bits"] < report["bits_per_weight"] < report["bits"] + 3
    assert what_is_in(tmp_path) == {"out"}
    checkpoint = open_checkpoint(out)
    assert checkpoint.quantized("model.layers.0.mlp.up_proj.weight") is not None
    evaluated = run_command("eval", "ppl", str(out), "--text", str(model / "text.txt"), "--json")
    measured = json.loads(evaluated.out)
    assert measured["bits_per_weight"] == report["bits_per_weight"]
    assert measured["perplexity"] > 1
    assert measured["tokens"] == report_tokens(measured)


def report_tokens(measured: dict[str, Any]) -> int:
    """One token a character of the text; the first of every window is not scored."""
    return len(TEXT) - -(-len(TEXT) // measured["window"])


@pytest.mark.parametrize(
    ("options", "status", "said"),
    [
        (["--method", "gtpq"], 2, "no method 'gtpq': there are rtn, gptq"),
        (["--group", "48"], 2, "a group of 48 does not divide the 64 inputs of self_attn.q_proj"),
        (["--method", "nf4", "--format", "gptq"], 2, "nf4 is kept as bitsandbytes, not as gptq"),
        (["--format", "zip"], 2, "no format 'zip'"),
        (["--bits", "5", "--method", "rtn"], 2, "no format here keeps rtn of 5 bits"),
        (["--method", "rtn", "--alpha", "0.5"], 2, "rtn has no alpha"),
        (
            ["--method", "rtn", "--format", "gguf"],
            2,
            "tokenizer cuts text by none of the rules",
        ),
        (["--method", "rtn", "--seed", "1"], 2, "rtn has no seed"),
        (["--method", "rtn", "--samples", "4"], 2, "rtn has no samples"),
        (["--method", "fp8", "--sequence-length", "4"], 2, "fp8 has no sequence-length"),
        (["--method", "nf4", "--calibration", "x"], 2, "nf4 has no calibration"),
        (["--method", "smoothquant", "--alpha", "x"], 2, "--alpha is a share from 0 to 1, or auto"),
        (["--sequence-length", "97"], 2, "97 tokens do not fit the model's context of 96"),
        (["--samples", "0"], 2, "--samples must be at least 1, not 0"),
        (["--calibration", "./no/such.txt"], 2, "no/such.txt cannot be read as text"),
    ],
)
def test_what_makes_no_sense_ends_with_one_line_and_nothing_written(
    run_command: Run, model: Path, tmp_path: Path, options: list[str], status: int, said: str
) -> None:
    result = run_command("quantize", str(model), "--out", str(tmp_path / "out"), *options)
    assert (result.status, result.out) == (status, "")
    assert said in result.err
    assert result.err.count("\n") == 1
    assert what_is_in(tmp_path) == set()


def test_too_short_a_text_is_counted(run_command: Run, model: Path, tmp_path: Path) -> None:
    (tmp_path / "short.txt").write_text(TEXT[:95])
    options = ["--calibration", str(tmp_path / "short.txt"), *SHORT]
    result = run_command("quantize", str(model), "--out", str(tmp_path / "out"), *options)
    assert result.status == 2
    assert "the calibration text has 95 tokens, and 4 sequences of 24 take 96" in result.err
    assert what_is_in(tmp_path) == {"short.txt"}


def test_what_is_there_is_not_written_over(
    run_command: Run, calibrated: tuple[str, ...], tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    result = run_command("quantize", *calibrated, "--out", str(tmp_path / "out"))
    assert result.status == 2
    assert "out is there already: give another --out" in result.err
    result = run_command("quantize", *calibrated, "--out", str(tmp_path / "no" / "out"))
    assert result.status == 2
    assert "no is no folder: make it, or give another --out" in result.err


def test_a_model_with_nan_and_a_truncated_one_are_refused_by_name(
    run_command: Run, model: Path, tmp_path: Path
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model, folder)
    file = folder / "model.safetensors"
    tensors = load_file(file)
    tensors["model.layers.0.mlp.up_proj.weight"][0, 0] = float("inf")
    save_file(tensors, file, metadata={"format": "pt"})
    for method in ("rtn", "gptq"):
        options = ["--method", method, "--out", str(tmp_path / "out")]
        if method == "gptq":
            options += ["--calibration", str(model / "text.txt"), *SHORT]
        result = run_command("quantize", str(folder), *options)
        assert result.status == 1
        assert re.search("up_proj.weight' has 1 numbers that are NaN or infinite", result.err)
    file.write_bytes(file.read_bytes()[:-1000])
    result = run_command("quantize", str(folder), "--out", str(tmp_path / "out"))
    assert result.status == 1
    assert "damaged or truncated" in result.err
    assert what_is_in(tmp_path) == {"model"}


def test_a_run_stopped_by_ctrl_c_says_how_to_go_on_and_goes_on(
    run_command: Run,
    calibrated: tuple[str, ...],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    arguments = ("quantize", *calibrated, "--json", "--out")
    whole = json.loads(run_command(*arguments, str(tmp_path / "whole")).out)
    calls = []

    def interrupted(*given: Any) -> LayerResult:
        calls.append(given)
        if len(calls) == 3:
            raise KeyboardInterrupt
        return layer_methods.gptq_layer(*given)

    with monkeypatch.context() as patched:
        methods = dict(layer_methods.LAYER_METHODS) | {"gptq": interrupted}
        patched.setattr("infra_lab.quantization.quantize.LAYER_METHODS", methods)
        stopped = run_command(*arguments, str(tmp_path / "out"))
    assert stopped.status == 130
    assert stopped.err.splitlines()[-1].startswith("interrupted: 2 of 3 layers are kept in ")
    assert stopped.err.splitlines()[-1].endswith("out.partial: the same command goes on")
    assert what_is_in(tmp_path) == {"whole", "out.partial"}
    other = run_command(*arguments, str(tmp_path / "out"), "--bits", "8")
    assert other.status == 2
    assert "holds an unfinished run with another settings" in other.err
    report = json.loads(run_command(*arguments, str(tmp_path / "out")).out)
    assert (whole["resumed_layers"], report["resumed_layers"]) == (0, 2)
    assert what_is_in(tmp_path) == {"whole", "out"}
    file = "model.safetensors"
    assert (tmp_path / "out" / file).read_bytes() == (tmp_path / "whole" / file).read_bytes()


def test_a_run_stopped_before_its_first_layer_leaves_nothing(
    run_command: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(*given: Any) -> LayerResult:
        raise KeyboardInterrupt

    monkeypatch.setattr("infra_lab.quantization.quantize.LAYER_METHODS", {"rtn": stop})
    result = run_command("quantize", str(model), "--method", "rtn", "--out", str(tmp_path / "o"))
    assert result.status == 130
    assert result.err.endswith("interrupted: no layer was finished and nothing is kept\n")
    assert what_is_in(tmp_path) == set()


def test_a_full_disk_is_said_before_and_during_a_run(
    run_command: Run, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    arguments = ("quantize", str(model), "--method", "rtn", "--out", str(tmp_path / "out"))
    with monkeypatch.context() as patched:
        patched.setattr(run.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(9, 9, 1000))
        result = run_command(*arguments)
    assert result.status == 1
    assert "has 0 MB free, and a run may take up to" in result.err

    def full(self: LayerResult, file: Path) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(LayerResult, "save", full)
    result = run_command(*arguments)
    assert result.status == 1
    assert "no space is left on the disk of" in result.err
    assert result.err.count("\n") == 1
    assert what_is_in(tmp_path) == set()


def test_the_help_has_an_example_for_both_spellings(run_command: Run) -> None:
    for arguments in (("quantize",), ("quantize", "--help")):
        out = " ".join(run_command(*arguments).out.split())
        assert "Usage: infra-lab quantize [OPTIONS] MODEL" in out
        assert "Example: infra-lab quantize smollm2-135m --method gptq --bits 4" in out
    out = run_command("quantize", "compare", "--help").out
    assert "Usage: infra-lab quantize compare [OPTIONS] [MODEL]" in out
    assert "Example: infra-lab quantize compare smollm2-135m --bits 4" in out
    assert "Example: infra-lab eval ppl smollm2-135m" in run_command("eval", "ppl", "--help").out


def test_all_methods_stand_side_by_side_as_a_table_json_and_a_figure(
    run_command: Run, model: Path, calibrated: tuple[str, ...], tmp_path: Path
) -> None:
    text = ("--text", str(model / "text.txt"), "--tokens", "100", "--bits", "4", "--bits", "8")
    figure, rows = tmp_path / "f.svg", tmp_path / "rows.jsonl"
    arguments = ("quantize", "compare", *calibrated, *text)
    kept = ("--figure", str(figure), "--rows", str(rows))
    report = json.loads(run_command(*arguments, *kept, "--json").out)
    names = [row["name"] for row in report["rows"]]
    assert names[0] == "fp32"
    assert set(names[1:]) >= {"gptq W4A16", "rtn W8A8", "smoothquant W8A8", "nf4 W4A16"}
    assert (report["rows"][0]["kl_divergence"], report["rows"][0]["top1_agreement"]) == (0, 1)
    for row in report["rows"]:
        assert row["perplexity"] > 1
        assert row["tokens_per_s"] > 0
        assert 0 <= row["top1_agreement"] <= 1
    assert all(f">{name}<" in figure.read_text() for name in ("gptq", "smoothquant, A8", "fp8, A8"))
    # Finished rows are not made again: all of them are there, to the last digit.
    again = run_command(*arguments, *kept, "--json")
    assert json.loads(again.out) == report
    assert again.err == ""
    table = run_command(*arguments, "--rows", str(rows)).out
    assert all(name in table for name in names)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--method", "zip"], "no method 'zip': there are rtn"),
        (["--method", "nf4", "--bits", "2"], "no method has that many bits"),
        (["--figure", "f.png"], "--figure writes SVG: f.png must end in .svg"),
        (["--method", "rtn", "--samples", "3"], "rtn has no samples"),
        (["--method", "fp8", "--calibration", "x.txt"], "fp8 has no calibration"),
        (["--window", "97"], "a window of 97 tokens does not fit the model's context of 96"),
        (["--tokens", "1"], "--tokens must be at least 2, not 1"),
    ],
)
def test_a_comparison_of_nothing_is_refused(
    run_command: Run, model: Path, options: list[str], said: str
) -> None:
    result = run_command("quantize", "compare", str(model), *options)
    assert (result.status, result.out) == (2, "")
    assert said in result.err
    assert result.err.count("\n") == 1


def test_rows_of_another_text_are_not_taken(run_command: Run, model: Path, tmp_path: Path) -> None:
    rows = ("--rows", str(tmp_path / "rows"), "--method", "rtn", "--bits", "8", "--no-speed")
    text = ("--text", str(model / "text.txt"), "--tokens")
    assert run_command("quantize", "compare", str(model), *rows, *text, "60").status == 0
    result = run_command("quantize", "compare", str(model), *rows, *text, "70")
    assert result.status == 2
    assert "holds rows of another model, text or window" in result.err
    (tmp_path / "rows").write_text("{}\n")
    result = run_command("quantize", "compare", str(model), *rows, *text, "60")
    assert "holds no rows of this command" in result.err


def test_the_bits_of_a_model_as_it_was_are_counted_too(run_command: Run, model: Path) -> None:
    text = ("--text", str(model / "text.txt"), "--window", "50")
    report = json.loads(run_command("eval", "ppl", str(model), *text, "--json").out)
    assert report["bits_per_weight"] == 32
    assert report["window"] == 50
    table = run_command("eval", "ppl", str(model), *text).out
    assert f"{report['perplexity']:.4f}" in table


@pytest.mark.slow
@pytest.mark.model
@pytest.mark.parametrize(
    ("options", "bits"), [(["--sym"], 4.5), (["--asym"], 5.0), (["--sym", "--bits", "8"], 8.5)]
)
def test_a_gguf_file_becomes_another_of_the_bits_asked_for(
    run_command: Run, tmp_path: Path, smollm2_path: Path, options: list[str], bits: float
) -> None:
    out = tmp_path / "m.gguf"
    arguments = ("--method", "rtn", "--format", "gguf", *options, "--out", str(out), "--json")
    result = run_command("quantize", str(smollm2_path), *arguments)
    assert json.loads(result.out)["bits_per_weight"] == bits
    measured = json.loads(run_command("eval", "ppl", str(out), "--tokens", "200", "--json").out)
    source = json.loads(
        run_command("eval", "ppl", str(smollm2_path), "--tokens", "200", "--json").out
    )
    assert measured["bits_per_weight"] == bits
    assert measured["perplexity"] == pytest.approx(source["perplexity"], rel=0.3)
