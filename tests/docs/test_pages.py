"""Every page that there is: nothing wrong with it, its code runs, its commands exist."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from docs.hooks.check import check_page, main
from docs.hooks.page import Page, read_page
from docs.hooks.parity import missing_pages
from docs.hooks.record import command_output
from docs.hooks.runs import Command, read_commands
from infra_lab.cli.main import main as command_line
from infra_lab.texts import Language
from tests.docs.page_helpers import FACTS, PAGES, name_of

RECORDED = read_commands(FACTS.recorded)
QUICK = [one for one in RECORDED.values() if not one.is_prepared]
SHELLS = ("bash", "sh", "shell", "console")


def code_blocks(page: Page) -> Iterator[tuple[str, str, str, int]]:
    """Language, info string, text and line of each code block."""
    block: list[str] = []
    for line in page.lines:
        if line.is_delimiter and not block:
            block, start = [""], line.number
        elif line.is_delimiter:
            yield line.language, line.fence or "", "\n".join(block[1:]), start
            block = []
        elif line.fence is not None:
            block.append(line.text)


def programs() -> list[Any]:
    return [
        pytest.param(text, id=f"{name_of(path)}:{line}")
        for path in PAGES
        for language, info, text, line in code_blocks(read_page(path))
        if language == "python" and ".fragment" not in info
    ]


def commands(path: Path) -> Iterator[tuple[int, str]]:
    """Every `infra-lab ...` that a page shows, in a shell's block or as code in a line."""
    page = read_page(path)
    for line in page.lines:
        if line.fence is None:
            for found in re.findall(r"`(infra-lab [^`]+)`", line.text):
                yield line.number, found
        elif line.language in SHELLS and "infra-lab " in line.text:
            for found in re.findall(r"(?:^|\$ |&& )(infra-lab [^#|&>]+)", line.text.strip()):
                yield line.number, found


@functools.cache
def help_of(words: tuple[str, ...]) -> str | None:
    """What `infra-lab WORDS --help` says; None where there is no such command."""
    printed = io.StringIO()
    with contextlib.redirect_stdout(printed), contextlib.redirect_stderr(io.StringIO()):
        try:
            command_line([*words, "--help"])
        except SystemExit as end:
            return printed.getvalue() if not end.code else None
    return printed.getvalue()


def unknown_word(command: str) -> str | None:
    """What the command line does not know of a command: the command itself, or an option."""
    words = shlex.split(command.replace("...", ""))[1:]
    if words[:1] in ([], ["COMMAND"]):
        return None
    options = [word.partition("=")[0] for word in words if re.match(r"--?[a-z]", word)]
    names = list(itertools.takewhile(lambda word: not word.startswith("-"), words))
    known = help_of(tuple(names))
    if known is None:
        return " ".join(names)
    if names in (["claims"], ["models"]):  # a group whose options are those of `list`
        known += help_of((*names, "list")) or ""
    return next(
        (one for one in options if not re.search(rf"(?<![\w-]){re.escape(one)}(?![\w-])", known)),
        None,
    )


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_nothing_is_wrong_with_a_page(path: Path) -> None:
    assert [str(one) for one in check_page(path, FACTS) if not one.is_gap] == []


def test_both_languages_have_the_same_pages() -> None:
    assert missing_pages() == []


@pytest.mark.parametrize("program", programs())
def test_a_program_on_a_page_runs(program: str, tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": str(FACTS.root), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", PAGES, ids=name_of)
def test_every_command_on_a_page_exists(path: Path) -> None:
    wrong = [
        (line, command, word)
        for line, command in commands(path)
        if (word := unknown_word(command)) is not None
    ]
    assert wrong == []


@pytest.mark.parametrize("name", list(RECORDED))
def test_a_recorded_command_exists(name: str) -> None:
    assert unknown_word(RECORDED[name].command) is None


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("command", QUICK, ids=lambda one: one.name)
def test_a_recorded_command_prints_the_same_again(command: Command, language: Language) -> None:
    own = FACTS.recorded / f"{command.name}.{language}.txt"
    kept = own if own.is_file() else FACTS.recorded / f"{command.name}.txt"
    assert command_output(command.command, language) == kept.read_text(encoding="utf-8")


def test_unknown_words_are_seen() -> None:
    assert unknown_word("infra-lab clac kv") == "clac kv"
    assert unknown_word("infra-lab calc kv llama-2-70b --length 4096") == "--length"
    assert unknown_word("infra-lab calc kv llama-2-70b --tokens 4096") is None
    assert unknown_word("infra-lab claims --topic kv_cache") is None


def test_the_check_names_file_and_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "questions" / "x.md"
    path.parent.mkdir()
    path.write_text("---\ntitle: x\n---\nIt is 3.5 GB.\n\n<!-- claim K999 -->\n", encoding="utf-8")
    assert main([str(path)]) == 1
    printed = capsys.readouterr().out
    assert f"{path}:4: '3.5 GB' is typed by hand" in printed
    assert f"{path}:6: there is no claim 'K999'" in printed
    assert "front matter: topic is missing" in printed


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"---\ntopic: [a]\n---\n", ":2: front matter: topic is one of"),
        (b"---\ntitle: x\nkey_points: 5\n---\n", ":3: front matter: key_points must be a list"),
        (b"---\ntitle: x\n1: y\n---\n", ":3: front matter: the key 1 is no text"),
        (b"---\ntitle: x\nlevel: [\n---\n", ":4: front matter: while parsing"),
        (b"---\ntitle: x\n---\n\xe4\xb8\n", ":4: is not UTF-8"),
    ],
)
def test_a_damaged_page_is_told_with_its_line_and_no_traceback(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, told: str
) -> None:
    path = tmp_path / "questions" / "x.md"
    path.parent.mkdir()
    path.write_bytes(content)
    assert main([str(path)]) == 1
    assert f"{path}{told}" in capsys.readouterr().out


def test_a_page_that_is_only_named_like_one_with_tables_is_read_for_numbers(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "quantization.md"
    path.write_text("It is 3.5 GB.\n", encoding="utf-8")
    assert main([str(path)]) == 1
    assert "typed by hand" in capsys.readouterr().out


def test_a_gap_is_no_fault_unless_the_check_is_strict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.md"
    path.write_text("{{ run.no-such-record.x }}\n", encoding="utf-8")
    assert main([str(path)]) == 0
    assert "(to be recorded)" in capsys.readouterr().out
    assert main([str(path), "--strict"]) == 1


def test_a_file_that_is_not_there_is_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["no/such/page.md"])
    assert "there is no" in capsys.readouterr().err
