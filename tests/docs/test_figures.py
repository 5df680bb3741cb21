"""Stepwise figures show what the engine did, and what they say of it is so."""

from __future__ import annotations

import json
import math
import re
from itertools import pairwise
from typing import Any

import pytest

from docs.hooks.faults import ROOT
from docs.hooks.figures import FIGURES, batches, block_tables, flash_tiles, pipeline, step_files
from docs.hooks.figures.prefix_chain import PROMPTS
from docs.hooks.figures.prefix_chain import figure as prefix_figure
from docs.hooks.steps import FIGURES as NAMED
from infra_lab.calculators.parallel import pipeline_bubble

SCRIPTS = ROOT / "docs/assets/javascripts"


def test_every_named_figure_has_data_and_every_kind_a_drawing() -> None:
    player = (SCRIPTS / "steps.js").read_text(encoding="utf-8")
    drawn = set(re.findall(r'^  "([a-z-]+)": draw', player, re.MULTILINE))
    assert set(FIGURES) == set(NAMED) == drawn


@pytest.fixture(scope="module")
def files() -> dict[str, str]:
    return step_files()


def keys_of(value: Any) -> set[str]:
    """Of every table in some data, at any depth."""
    if isinstance(value, list):
        return set().union(*map(keys_of, value))
    if isinstance(value, dict):
        return set(value).union(*map(keys_of, value.values()))
    return set()


@pytest.mark.parametrize("name", list(FIGURES))
def test_all_data_of_a_figure_is_drawn(name: str, files: dict[str, str]) -> None:
    player = (SCRIPTS / "steps.js").read_text(encoding="utf-8")
    found = re.search(rf'"{name}": (draw\w+)', player)
    assert found
    drawing = next(
        text
        for path in SCRIPTS.glob("steps_*.js")
        if f"function {found[1]}(" in (text := path.read_text(encoding="utf-8"))
    )
    named = set(re.findall(r"\w+", player + drawing))
    assert keys_of(json.loads(files[f"steps/{name}.json"])) <= named


@pytest.mark.parametrize("name", list(FIGURES))
def test_every_frame_says_in_both_languages_what_it_shows(name: str, files: dict[str, str]) -> None:
    data = json.loads(files[f"steps/{name}.json"])
    assert len(data["frames"]) > 2
    for frame in data["frames"]:
        assert frame["text"]["en"]
        assert re.search(r"[\u4e00-\u9fff]", frame["text"]["zh"])


def test_block_references_are_the_tables_that_hold_the_block() -> None:
    for frame in block_tables.figure()["frames"]:
        for block in frame["blocks"]:
            holders = sum(table["blocks"].count(block["id"]) for table in frame["tables"])
            assert block["refs"] == holders
            assert 0 <= block["filled"] <= block_tables.BLOCK_SIZE


def test_a_fork_copies_one_block_and_a_hit_takes_the_blocks_that_are_there() -> None:
    frames = block_tables.figure()["frames"]
    copies = [frame for frame in frames if frame["copy"]]
    assert len(copies) == 1
    source, target = copies[0]["copy"]
    tables = {one["name"]: one["blocks"] for one in copies[0]["tables"]}
    assert source in tables["A"]
    assert target in tables["B"]
    assert tables["A"][:2] == tables["B"][:2]
    assert frames[-1]["tables"][0]["blocks"][:2] == tables["A"][:2]


@pytest.mark.parametrize("policy", ["static", "fcfs"])
def test_every_request_gets_its_tokens_and_no_slot_two_requests(policy: str) -> None:
    steps = batches.run(policy)
    for number, length in enumerate(batches.OUTPUT_LENGTHS):
        assert sum(cell["request"] == number for step in steps for cell in step) == length
    for step in steps:
        slots = [cell["slot"] for cell in step]
        assert len(set(slots)) == len(slots) <= batches.SLOTS


def test_a_static_batch_begins_when_the_one_before_it_is_done() -> None:
    first_of_second = next(
        number
        for number, step in enumerate(batches.run("static"))
        if any(cell["request"] >= batches.SLOTS for cell in step)
    )
    assert first_of_second == max(batches.OUTPUT_LENGTHS[: batches.SLOTS])


def test_tiles_come_to_the_softmax_of_the_whole_row() -> None:
    last = flash_tiles.figure()["frames"][-1]["rows"]
    for row, (largest, total, output) in zip(last, flash_tiles.exact_rows(), strict=True):
        assert row["m"] == pytest.approx(largest)
        assert row["l"] == pytest.approx(total, abs=1e-6)
        assert row["o"] == pytest.approx(output, abs=1e-6)


def test_a_factor_is_below_one_exactly_where_the_maximum_moved() -> None:
    frames = flash_tiles.figure()["frames"]
    for before, frame in pairwise(frames):
        for old, new in zip(before["rows"], frame["rows"], strict=True):
            if new["factor"] is not None:
                assert new["factor"] == pytest.approx(math.exp(old["m"] - new["m"]), abs=1e-4)


def test_hits_of_the_prefix_cache_are_whole_blocks_of_the_same_words() -> None:
    frames = prefix_figure()["frames"]
    hits = [sum(part["hit"] for part in frame["prompt"]) for frame in frames]
    assert hits == [0, 2, 3, 0, 0]
    assert len(PROMPTS["A"]) > 3 * 4  # the last, partly filled block is not found
    hashes = [{node["hash"]: node for node in frame["nodes"]} for frame in frames]
    assert all(len(one) == len(frame["nodes"]) for one, frame in zip(hashes, frames, strict=True))


def test_a_chain_loses_its_tail_before_its_head() -> None:
    for frame in prefix_figure()["frames"]:
        known = {node["hash"] for node in frame["nodes"]}
        assert all(node["parent"] is None or node["parent"] in known for node in frame["nodes"])


@pytest.mark.parametrize("number", pipeline.MICRO_BATCHES)
def test_the_empty_places_are_the_calculators_bubble(number: int) -> None:
    plan = pipeline.schedule(pipeline.STAGES, number)
    idle = sum(cell is None for row in plan for cell in row) / (len(plan) * len(plan[0]))
    assert idle == pytest.approx(pipeline_bubble(pipeline.STAGES, number))
    for stage in plan:
        assert [cell for cell in stage if cell is not None] == list(range(number))
