"""What is recorded can be shown: every run with its tables, conclusions that hold, and figures."""

from __future__ import annotations

import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from docs.hooks import record as recorder
from docs.hooks.facts import Facts
from docs.hooks.faults import MarkerError, NotRecordedError
from docs.hooks.record import command_output
from docs.hooks.runs import Command, command_lines, figure_lines, read_commands, run_lines
from infra_lab.claims.claim import EXPERIMENTS
from infra_lab.figures import INK
from infra_lab.texts import Language
from tests.docs.page_helpers import FACTS

COMMANDS = read_commands(FACTS.recorded)
PREPARED = sorted(name for name, one in COMMANDS.items() if one.is_prepared)
RECORDED = sorted({path.stem for path in FACTS.recorded.glob("*.json")} - set(PREPARED))


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


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("name", PREPARED)
def test_a_prepared_command_is_shown_with_its_date_and_machine(
    name: str, language: Language
) -> None:
    record = FACTS.record(FACTS.recorded, name)
    assert record["command"] == COMMANDS[name].command  # of this command, not of an older one
    lines = command_lines(name, FACTS, language)
    assert lines[:2] == ["```console", f"$ {record['command']}"]
    assert record["recorded"]["date"] in lines[-1]
    assert record["recorded"]["machine"] in lines[-1]


def test_every_record_is_of_something_that_is_recorded() -> None:
    """What is no longer recorded leaves nothing behind."""
    wanted = {"commands.toml"}
    for name in EXPERIMENTS:
        wanted |= {f"{name}.json", f"{name}.en.svg", f"{name}.zh.svg"}
    for name, one in COMMANDS.items():
        wanted |= {f"{name}.txt"} | ({f"{name}.json"} if one.is_prepared else set())
        if one.is_bilingual or not one.is_prepared:
            wanted |= {f"{name}.zh.txt"}
    assert {path.name for path in FACTS.recorded.iterdir()} <= wanted


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
        ('[x]\ncommand = "infra-lab x"\nslow = true\n', "command, prepared and bilingual only"),
        ('[x]\ncommand = "infra-lab x"\nprepared = 1\n', "are true or false"),
        ('[x]\ncommand = "infra-lab x"\nbilingual = true\n', "only prepared ones need bilingual"),
        ('[demo]\ncommand = "infra-lab x"\n[x]\n', "[x] command must begin with"),
        ('[paged-memory]\ncommand = "infra-lab x"\n', "is an experiment's name"),
        ("\udcff", "'utf-8'"),
    ],
)
def test_a_damaged_list_of_commands_is_told(repository: Facts, text: str, told: str) -> None:
    path = repository.recorded / "commands.toml"
    path.write_bytes(text.encode("utf-8", "surrogateescape"))
    with pytest.raises(MarkerError, match=re.escape(told)):
        read_commands(repository.recorded)


def test_output_does_not_depend_on_the_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = command_output("infra-lab claims show K4")
    monkeypatch.setenv("COLUMNS", "30")
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setenv("INFRA_LAB_LANG", "zh")
    assert command_output("infra-lab claims show K4") == plain
    assert "\x1b" not in plain
    assert "wrong" in plain


@pytest.fixture
def runs(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, Language]]:
    """What is run, each by name and language; each run prints another number, as timings do."""
    made: list[tuple[str, Language]] = []

    def run(command: str, language: Language = "en") -> str:
        made.append((command, language))
        return f"run {len(made)}\n"

    monkeypatch.setattr(recorder, "command_output", run)
    return made


def test_a_prepared_command_runs_once_and_its_timings_are_no_other_text(
    tmp_path: Path, runs: list[tuple[str, Language]]
) -> None:
    (tmp_path / "x.zh.txt").write_text("of a time when it was bilingual\n", "utf-8")
    one = Command("x", "infra-lab demo", is_prepared=True, is_bilingual=False)
    written = recorder.record_command(one, tmp_path)
    assert runs == [("infra-lab demo", "en")]
    assert written == [tmp_path / "x.txt", tmp_path / "x.json"]
    assert sorted(tmp_path.iterdir()) == sorted(written)
    about = json.loads((tmp_path / "x.json").read_text("utf-8"))
    assert about["command"] == "infra-lab demo"
    assert set(about["recorded"]) == {"date", "machine"}


@pytest.mark.parametrize("prepared", [True, False])
def test_another_text_in_chinese_is_kept_beside_the_english_one(
    tmp_path: Path, runs: list[tuple[str, Language]], prepared: bool
) -> None:
    one = Command("x", "infra-lab list", is_prepared=prepared, is_bilingual=prepared)
    recorder.record_command(one, tmp_path)
    assert runs == [("infra-lab list", "en"), ("infra-lab list", "zh")]
    assert (tmp_path / "x.zh.txt").read_text("utf-8") == "run 2\n"
    assert (tmp_path / "x.json").is_file() is prepared


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["kv-llama-2-70b", "dmo", "paged-memry"], "there is no 'dmo': did you mean 'demo'"),
        (["kv-llama-2-70b", "dmo", "paged-memry"], "there is no 'paged-memry': did you mean"),
        (["--all", "demo"], "give it no names"),
    ],
)
def test_a_slip_is_told_before_anything_runs(
    runs: list[tuple[str, Language]],
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    told: str,
) -> None:
    with pytest.raises(SystemExit) as ended:
        recorder.main(arguments)
    assert ended.value.code == 2
    assert told in capsys.readouterr().err
    assert runs == []


def test_a_damaged_list_of_commands_ends_in_a_message(
    repository: Facts, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (repository.recorded / "commands.toml").write_text("[x\n", "utf-8")
    monkeypatch.setattr(recorder, "Facts", lambda: repository)
    assert recorder.main([]) == 1
    assert "commands.toml" in capsys.readouterr().err


@pytest.mark.parametrize(
    "damage",
    ['{"recorded": [1]}', '{"tables": [{}]}', '{"tables": 5}', '{"conclusions": [{"holds": true}]}',
     '{"tables": [{"columns": [], "rows": [[1]], "formats": []}]}', '{"seconds": "long"}'],
)  # fmt: skip
def test_a_record_that_lacks_something_is_a_fault_that_names_it(
    repository: Facts, damage: str
) -> None:
    (repository.recorded / "paged-memory.json").write_text(damage, "utf-8")
    with pytest.raises(MarkerError, match=r"^docs/recorded/paged-memory\.json is not as "):
        run_lines("paged-memory", repository, "en")


def test_a_record_of_a_command_without_a_table_of_when_is_a_fault(repository: Facts) -> None:
    text = '[x]\ncommand = "infra-lab demo"\nprepared = true\n'
    (repository.recorded / "commands.toml").write_text(text, "utf-8")
    (repository.recorded / "x.txt").write_text("run\n", "utf-8")
    with pytest.raises(NotRecordedError, match=r"docs/recorded/x\.json is not there yet"):
        command_lines("x", repository, "en")
    (repository.recorded / "x.json").write_text('{"recorded": "today"}', "utf-8")
    with pytest.raises(MarkerError, match=r"^docs/recorded/x\.json is not as "):
        command_lines("x", Facts(repository.root), "en")
