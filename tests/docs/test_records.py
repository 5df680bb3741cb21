"""What is recorded can be shown: every run with its tables, conclusions that hold, and figures."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from docs.hooks.facts import Facts
from docs.hooks.faults import MarkerError, NotRecordedError
from docs.hooks.record import command_output
from docs.hooks.runs import command_lines, figure_lines, read_commands, run_lines
from infra_lab.claims.claim import EXPERIMENTS
from infra_lab.claims.texts import Language
from infra_lab.figures import INK
from tests.docs.page_helpers import FACTS

RECORDED = sorted(path.stem for path in FACTS.recorded.glob("*.json"))


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("name", RECORDED)
def test_a_run_is_shown_whole(name: str, language: Language) -> None:
    text = "\n".join(run_lines(name, FACTS, language))
    record = FACTS.record(FACTS.recorded, name)
    assert text.count("<table") == len(record["tables"])
    assert text.count("<tr>") == sum(len(table["rows"]) + 1 for table in record["tables"])
    assert text.count('class="run__holds"') == len(record["conclusions"])
    assert "<svg" in text
    assert INK not in text
    assert record["recorded"]["date"] in text


@pytest.mark.parametrize("name", RECORDED)
def test_a_record_is_of_an_experiment_whose_conclusions_hold(name: str) -> None:
    record = FACTS.record(FACTS.recorded, name)
    assert name in EXPERIMENTS
    assert record["experiment"] == name
    assert all(one["holds"] for one in record["conclusions"])
    for language in ("en", "zh"):
        ElementTree.parse(FACTS.recorded / f"{name}.{language}.svg")


def test_ids_of_two_figures_on_one_page_do_not_meet() -> None:
    """A figure that names a clip path or marker of another would be drawn by it."""
    ids = [
        set(re.findall(r'\bid="([^"]+)"', (FACTS.recorded / f"{name}.en.svg").read_text("utf-8")))
        for name in RECORDED
    ]
    used = [
        set(re.findall(r"#([\w-]+)", (FACTS.recorded / f"{name}.en.svg").read_text("utf-8")))
        for name in RECORDED
    ]
    for index, own in enumerate(ids):
        others = set().union(*(ids[:index] + ids[index + 1 :])) & own & set().union(*used)
        same = [name for name in others if name in used[index]]
        assert all(re.fullmatch(r"[mp][0-9a-f]{10}", name) for name in same), same


@pytest.fixture
def repository(tmp_path: Path) -> Facts:
    (tmp_path / "docs/recorded").mkdir(parents=True)
    return Facts(tmp_path)


def test_a_figure_is_one_line_in_the_themes_ink(tmp_path: Path) -> None:
    path = tmp_path / "x.svg"
    path.write_text(f'<?xml version="1.0"?>\n<svg>\n\n<path fill="{INK}"/>\n</svg>\n', "utf-8")
    lines = figure_lines(path, "a & b")
    assert lines[1] == (
        '<figure class="plot" role="img" aria-label="a &amp; b">'
        '<svg> <path fill="currentColor"/> </svg></figure>'
    )


def test_what_is_not_recorded_says_how_to_record_it(repository: Facts) -> None:
    with pytest.raises(NotRecordedError, match=r"python -m docs\.hooks\.record paged-memory"):
        run_lines("paged-memory", repository, "en")
    path = repository.recorded / "commands.toml"
    path.write_text('[x]\ncommand = "infra-lab calc models"\n', encoding="utf-8")
    with pytest.raises(NotRecordedError, match="record x"):
        command_lines("x", repository, "en")


def test_a_commands_output_is_the_pages_languages_own_where_there_is_one(
    repository: Facts,
) -> None:
    folder = repository.recorded
    (folder / "commands.toml").write_text('[x]\ncommand = "infra-lab list"\n', "utf-8")
    (folder / "x.txt").write_text("ring walk\n", "utf-8")
    assert command_lines("x", repository, "zh")[2] == "ring walk"
    (folder / "x.zh.txt").write_text("环\n", "utf-8")
    assert command_lines("x", repository, "zh") == ["```console", "$ infra-lab list", "环", "```"]
    assert command_lines("x", repository, "en")[2] == "ring walk"


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("[x\n", "commands.toml"),
        ('[x]\ncommand = "rm -rf /"\n', "must begin with `infra-lab `"),
        ('[x]\ncommand = "infra-lab x"\nslow = true\n', "command and prepared only"),
    ],
)
def test_a_damaged_list_of_commands_is_told(repository: Facts, text: str, told: str) -> None:
    (repository.recorded / "commands.toml").write_text(text, "utf-8")
    with pytest.raises(MarkerError, match=re.escape(told)):
        read_commands(repository.recorded)


def test_output_does_not_depend_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("INFRA_LAB_LANG", "zh")
    plain = command_output("infra-lab claims show K4")
    assert "\x1b" not in plain
    assert "wrong" in plain
    assert json.dumps(plain)
