"""The side-by-side comparison of quantization methods: its rows, their file and the figure."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import pytest
import torch

from infra_lab.bench.quality_figure import quality_figure
from infra_lab.bench.quality_rows import ComparedRow, RowsFile
from infra_lab.bench.quantization import Comparison, Variant, default_variants, row_name
from infra_lab.errors import UsageError
from infra_lab.models.checkpoint import Checkpoint
from infra_lab.models.loader import open_checkpoint
from infra_lab.quantization.quantize import quantize_model
from infra_lab.quantization.settings import METHODS, choose_settings
from infra_lab.quantization.stored_size import safetensors_sizes, stored_bits_per_weight
from infra_lab.quantization.targets import target_format, write_model
from tests.models.conftest import make_config
from tests.quantization.tiny_models import tiny_model, token_ids

SVG = "{http://www.w3.org/2000/svg}"


def row(name: str, bits: float, perplexity: float) -> ComparedRow:
    return ComparedRow(name, {"name": name}, bits, 10, perplexity, 0.1, 0.9, None, 1.0)


def test_every_method_and_every_number_of_bits_is_compared() -> None:
    variants = default_variants(None, None)
    assert {variant.method for variant in variants} == set(METHODS)
    for method in ("rtn", "gptq", "awq", "rotation", "quip", "smoothquant"):
        assert {one.bits for one in variants if one.method == method} == {8, 4, 3, 2}
    assert Variant("rtn", 8, 8, -1, symmetric=True) in variants  # what SmoothQuant improves on


def test_a_group_is_for_rows_that_have_a_choice() -> None:
    config = make_config("llama", intermediate_size=128)
    sizes = {
        (one.method, one.bits): one.settings(config, {}, 16).group_size
        for one in default_variants(None, [8, 4])
    }
    assert sizes["rtn", 4] == sizes["gptq", 4] == sizes["quip", 8] == 16
    assert (sizes["nf4", 4], sizes["mxfp4", 4]) == (64, 32)
    assert sizes["smoothquant", 8] is sizes["llm_int8", 8] is sizes["fp8", 8] is None


def test_a_comparison_can_be_narrowed() -> None:
    assert {one.method for one in default_variants(["nf4", "awq"], None)} == {"nf4", "awq"}
    assert {one.bits for one in default_variants(None, [3])} == {3}
    with pytest.raises(UsageError, match="no method 'zip': there are rtn"):
        default_variants(["zip"], None)
    with pytest.raises(UsageError, match="no method has that many bits"):
        default_variants(["nf4"], [8])


@pytest.mark.parametrize("given", [{}, {"format": "compressed-tensors", "symmetric": True}])
def test_a_rows_bits_are_those_of_the_folder_that_would_be_written(
    tmp_path: Path, given: dict[str, Any]
) -> None:
    tiny_model(tmp_path / "m")
    checkpoint = open_checkpoint(tmp_path / "m")
    settings = choose_settings("rtn", checkpoint.config, given)
    compared = Comparison(checkpoint, [token_ids(30)], None, lambda *told: None).row(settings)
    target = target_format(settings)
    quantized = quantize_model(checkpoint, settings, weight_format=target)
    write_model(quantized, tmp_path / "out", target, torch.float16)
    assert compared.bits_per_weight == stored_bits_per_weight(tmp_path / "out", checkpoint.config)
    written = safetensors_sizes(tmp_path / "out" / "model.safetensors")
    assert compared.size_bytes == sum(written.values())
    assert compared.tokens_per_s is None


def test_the_model_itself_is_timed_in_fp32_whatever_its_file_keeps(tmp_path: Path) -> None:
    tiny_model(tmp_path)
    dense = open_checkpoint(tmp_path)
    coded = quantize_model(dense, choose_settings("rtn", dense.config, {}))
    timed: list[Checkpoint] = []

    def measure(checkpoint: Checkpoint) -> float:
        timed.append(checkpoint)
        return 5.0

    compared = Comparison(coded, [token_ids(30)], None, lambda *told: None, measure).row(None)
    assert compared.tokens_per_s == 5.0
    name = "model.layers.0.mlp.up_proj.weight"
    assert coded.quantized(name) is not None
    assert timed[0].quantized(name) is None
    assert torch.equal(timed[0].tensor(name, torch.float32), coded.tensor(name, torch.float32))


def test_what_no_format_keeps_is_counted_in_its_own_bits(tmp_path: Path) -> None:
    tiny_model(tmp_path)
    checkpoint = open_checkpoint(tmp_path)
    settings = choose_settings("rtn", checkpoint.config, {"bits": 5, "group_size": 32})
    compared = Comparison(checkpoint, [token_ids(30)], None, lambda *told: None).row(settings)
    assert settings.format is None
    assert compared.bits_per_weight == 5 + (16 + 5) / 32
    assert row_name(settings) == compared.name == "rtn W5A16"


def test_finished_rows_are_found_again_and_only_for_the_same_model(tmp_path: Path) -> None:
    file, facts = tmp_path / "rows", {"model": "a"}
    one = row("gptq W4A16", 4.5, 20.0)
    RowsFile(file, facts).add(one)
    assert RowsFile(file, facts).find(one.settings, with_speed=False) == one
    assert RowsFile(file, facts).find({"name": "other"}, with_speed=False) is None
    assert RowsFile(None, facts).find(one.settings, with_speed=False) is None
    with pytest.raises(UsageError, match="rows of another model, text or window"):
        RowsFile(file, {"model": "b"})


def test_a_row_without_a_speed_is_none_where_speeds_are_asked_for(tmp_path: Path) -> None:
    kept, one = RowsFile(tmp_path / "rows", {}), row("gptq W4A16", 4.5, 20.0)
    kept.add(one)
    assert kept.find(one.settings, with_speed=True) is None
    timed = replace(one, tokens_per_s=50.0)
    kept.add(timed)
    again = RowsFile(tmp_path / "rows", {})
    assert again.find(one.settings, with_speed=True) == timed
    assert again.find(one.settings, with_speed=False) == timed


def drawn(rows: list[ComparedRow], folder: Path) -> ElementTree.Element:
    path = folder / "figure.svg"
    quality_figure([asdict(one) for one in rows], "a <model> & more", path)
    return ElementTree.parse(path).getroot()


def texts(figure: ElementTree.Element) -> set[str]:
    return {str(text.text) for text in figure.iter(f"{SVG}text")}


def marks(figure: ElementTree.Element) -> list[tuple[float, float]]:
    """Where matplotlib's references to a marker lie that are within the axes' own group."""
    axes = figure.find(f".//{SVG}g[@id='axes_1']")
    assert axes is not None
    clipped = [one for one in axes.iter(f"{SVG}g") if "clip-path" in one.attrib]
    return [
        (float(use.attrib["x"]), float(use.attrib["y"]))
        for group in clipped
        for use in group.findall(f"{SVG}use")
    ]


def test_a_figure_has_a_mark_for_every_row_and_a_name_for_every_method(tmp_path: Path) -> None:
    rows = [row("fp32", 32.0, 15.0)]
    rows += [row(f"rtn W{bits}A16", bits + 0.4, 15 + 2.0**-bits * 100) for bits in (8, 4, 3)]
    rows += [row("rtn W8A8", 8.0, 16.0)]
    figure = drawn(rows, tmp_path)
    assert len(marks(figure)) == 4
    assert {"a <model> & more", "rtn", "rtn, A8", "fp32 (15.00)"} <= texts(figure)


def test_more_bits_stand_further_right_and_a_worse_model_higher(tmp_path: Path) -> None:
    rows = [row("fp32", 32.0, 15.0), row("a W4A16", 4.0, 20.0), row("a W8A16", 8.0, 16.0)]
    (left, upper), (right, lower) = marks(drawn(rows, tmp_path))
    assert left < right
    assert upper < lower  # SVG counts from the top


def test_a_broken_model_is_left_out_of_the_figure(tmp_path: Path) -> None:
    rows = [row("fp32", 32.0, 15.0), row("a W2A16", 2.5, float("inf")), row("b W4A16", 4.0, 16.0)]
    figure = drawn(rows, tmp_path)
    assert len(marks(figure)) == 1
    assert "a" not in texts(figure)
    assert marks(drawn(rows[:2], tmp_path)) == []
