"""A page is read as its author wrote it: lines keep their numbers, code is known as code."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from docs.hooks.faults import ROOT, MarkerError, PageError
from docs.hooks.page import language_of, parse_page, read_page
from tests.docs.page_helpers import page


def test_lines_are_counted_from_the_first_of_the_file() -> None:
    found = page("one\ntwo\n", front="title: x\ntopic: y")
    assert [(line.number, line.text) for line in found.lines] == [(5, "one"), (6, "two"), (7, "")]


def test_a_page_without_front_matter_begins_at_its_first_line() -> None:
    assert page("one").lines[0].number == 1
    assert page("one").front == {}


def test_a_fence_ends_at_its_own_kind_only() -> None:
    found = page("````text\n```\nx\n````\ny\n~~~\n```\n~~~")
    assert [line.fence for line in found.lines] == ["text"] * 4 + [None] + [""] * 3
    assert [line.is_delimiter for line in found.lines] == [
        True, False, False, True, False, True, False, True,
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("info", "language"),
    [("python", "python"), ('python title="x"', "python"), ("{ .python .fragment }", "python")],
)
def test_the_language_of_a_block_is_read_in_every_spelling(info: str, language: str) -> None:
    assert page(f"```{info}\nx\n```").lines[1].language == language


def test_headings_in_code_are_none() -> None:
    found = page("## A {#a}\n```bash\n# no heading\n```\n### B")
    assert found.headings() == [(2, 1, "A"), (3, 5, "B")]


def test_a_front_matter_that_is_no_yaml_is_told() -> None:
    with pytest.raises(MarkerError, match="front matter"):
        parse_page(Path("x.md"), "---\na: [\n---\n")


@pytest.mark.parametrize(
    ("content", "line", "told"),
    [
        (b"---\ntitle: x\nlevel: [\n---\n", 4, "front matter"),
        (b"---\n- x\n---\n", 1, "must be keys and values"),
        (b"---\ntitle: x\n1: y\n---\n", 3, "the key 1 is no text"),
        (b"---\ntitle: x\n---\n\xff\n", 4, "is not UTF-8: byte 0xff"),
        (b"\xef\xbb\xbfa\nb\n\xe4\xb8", 3, "is not UTF-8"),
    ],
)
def test_a_page_that_cannot_be_read_says_where(
    tmp_path: Path, content: bytes, line: int, told: str
) -> None:
    path = tmp_path / "x.md"
    path.write_bytes(content)
    with pytest.raises(PageError) as error:
        read_page(path)
    assert error.value.line == line
    assert told in str(error.value)


def test_a_mark_of_byte_order_and_other_ends_of_lines_change_nothing(tmp_path: Path) -> None:
    path = tmp_path / "x.md"
    path.write_bytes(b"\xef\xbb\xbf---\r\ntitle: x\r\n---\r\nbody\r\n")
    assert read_page(path).front == {"title": "x"}
    assert [line.text for line in read_page(path).lines] == ["body", ""]


def test_the_folder_says_the_language() -> None:
    assert language_of(ROOT / "docs/zh/questions/x.md") == "zh"
    assert language_of(ROOT / "docs/en/zh.md") == "en"


@given(st.text(st.sampled_from("a`~ #\n"), max_size=60))
def test_no_line_is_lost_or_changed(body: str) -> None:
    assert "\n".join(line.text for line in page(body).lines) == body
