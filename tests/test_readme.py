"""The two READMEs keep their promises: links lead somewhere, commands exist, snippets print what
is shown, and both languages say the same."""

from __future__ import annotations

import contextlib
import io
import re
from itertools import pairwise
from pathlib import Path

import pytest

from infra_lab.cli.main import COMMANDS

ROOT = Path(__file__).resolve().parent.parent
READMES = ("README.md", "README.zh.md")

LINK = re.compile(r"\[([^\]]+)\]\(([^)\s]+)\)")
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMENT = re.compile(r"\s+#\s.*$", re.MULTILINE)
QUOTED = re.compile(r'"[^"\n]*"')


def read(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def blocks(name: str) -> list[tuple[str, str]]:
    """(language, content) of every code block, in order."""
    return BLOCK.findall(read(name))


def links(name: str) -> list[tuple[str, str]]:
    """(text, target) of every link outside code blocks, in order."""
    return LINK.findall(BLOCK.sub("", read(name)))


def untranslated(language: str, content: str) -> str:
    """What must be the same in both languages: all but comments, and labels in a figure."""
    if language == "mermaid":
        return QUOTED.sub('""', content)
    return COMMENT.sub("", content)


def anchors(name: str) -> set[str]:
    """Headings as GitHub makes them into anchors."""
    headings = re.findall(r"^#+ (.+)$", BLOCK.sub("", read(name)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def commands(name: str) -> list[str]:
    """Every line to be typed, and every command named in the text."""
    lines = [
        line.removeprefix("$ ")
        for language, content in blocks(name)
        for line in content.splitlines()
        if language == "bash" or line.startswith("$ ")
    ]
    return lines + re.findall(r"`([^`\n]+)`", BLOCK.sub("", read(name)))


@pytest.mark.parametrize("name", READMES)
def test_every_relative_link_leads_somewhere(name: str) -> None:
    targets = [target for _, target in links(name) if not target.startswith("https://")]
    missing = [
        target
        for target in targets
        if (target[1:] not in anchors(name) if target[0] == "#" else not (ROOT / target).is_file())
    ]
    assert targets
    assert missing == []


@pytest.mark.parametrize("name", READMES)
def test_a_link_named_as_a_test_leads_to_the_file_that_defines_it(name: str) -> None:
    tests = [link for link in links(name) if re.fullmatch(r"(test_|Test)\w+", link[0])]
    elsewhere = [
        text
        for text, target in tests
        if not re.search(rf"^(def {text}\(|class {text}\b|{text} = )", read(target), re.MULTILINE)
    ]
    assert tests
    assert elsewhere == []


@pytest.mark.parametrize("name", READMES)
def test_every_command_exists(name: str) -> None:
    text = "\n".join(commands(name))
    named = set(re.findall(r"infra-lab ([a-z]+)", text))
    targets = set(re.findall(r"\bmake ([a-z]+)", text))
    assert named
    assert targets
    assert named <= set(COMMANDS)
    assert targets <= set(re.findall(r"^([a-z-]+):", read("Makefile"), re.MULTILINE))


@pytest.mark.parametrize("name", READMES)
def test_every_snippet_compiles(name: str) -> None:
    for language, content in blocks(name):
        if language == "python":
            compile(content, name, "exec")


@pytest.mark.model
def test_every_snippet_prints_what_is_shown_below_it(smollm2_path: Path) -> None:
    found = blocks("README.md")
    namespace: dict[str, object] = {}
    for (language, content), (next_language, shown) in pairwise(found):
        if language != "python":
            continue
        assert next_language == "text", "a snippet is followed by what it prints"
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec(compile(content, "README.md", "exec"), namespace)
        assert printed.getvalue() == shown


def test_both_languages_link_to_the_same_places() -> None:
    english, chinese = (
        [
            target.replace("docs/zh/", "docs/en/")  # a page has its Chinese twin
            for _, target in links(name)
            if target not in READMES and target[0] != "#"
        ]
        for name in READMES
    )
    assert chinese == english


def test_both_languages_have_the_same_code_blocks() -> None:
    english, chinese = ([(one[0], untranslated(*one)) for one in blocks(name)] for name in READMES)
    assert chinese == english


def test_both_languages_name_the_same_commands() -> None:
    english, chinese = (
        sorted(COMMENT.sub("", command) for command in commands(name)) for name in READMES
    )
    assert chinese == english


def test_each_language_leads_to_the_other() -> None:
    for name, other in (READMES, READMES[::-1]):
        assert other in {target for _, target in links(name)}


def test_chinese_and_latin_words_are_set_apart_by_a_space() -> None:
    prose = re.sub(r"[`*]|\]\([^)]*\)|\[", "", BLOCK.sub("", read("README.zh.md")))
    assert re.findall(r"[\u4e00-\u9fff][A-Za-z0-9]\w*|\w*[A-Za-z0-9][\u4e00-\u9fff]", prose) == []
