"""`cache show` as its user runs it, on the real model."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

Run = Callable[..., Any]
pytestmark = [pytest.mark.usefixtures("smollm2_path"), pytest.mark.model]
SYSTEM = ("--system", "You are a patient teacher who answers in one short sentence.")


def test_the_tree_parts_where_the_prompts_do(run_command: Run) -> None:
    prompts = ("What is a KV cache?", "What is a GPU?", "What is a GPU?")
    report = json.loads(
        run_command("cache", "show", *prompts, *SYSTEM, "--block-size", "8", "--json").out
    )
    (root,) = report["roots"]
    assert "patient teacher" in root["text"]
    assert len(root["children"]) == 2
    cached = [entry["num_cached_tokens"] for entry in report["requests"]]
    assert cached[0] == 0
    assert cached[1] == len(root["token_ids"])
    assert cached[2] > cached[1]
    assert report["hit_tokens"] == sum(cached)


def test_prompts_come_from_a_file_and_the_tree_is_drawn(run_command: Run, tmp_path: Path) -> None:
    path = tmp_path / "prompts.txt"
    path.write_text("[bold] one two three\n\n[bold] one two four\n", encoding="utf-8")
    arguments = ("--file", str(path), "--raw", "--block-size", "2", "--max-tokens", "1")
    result = run_command("cache", "show", *arguments)
    assert result.status == 0
    assert "cached blocks of 2 tokens" in result.out
    assert "[bold] one" in result.out


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ((), "no prompts: give some, or --file FILE"),
        (("--file", "/nonexistent"), "cannot read /nonexistent"),
        (("x", "--raw", *SYSTEM), "leave --system out, or --raw"),
        (("x", "--block-size", "0"), "block-size"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(
    run_command: Run, arguments: tuple[str, ...], said: str
) -> None:
    result = run_command("cache", "show", *arguments)
    assert result.status in (1, 2)
    assert said in result.err
    assert result.out == ""
