"""Figures are whole, the same each time, and refused early where they cannot be written."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from infra_lab.errors import UsageError
from infra_lab.figures import checked_figure_path, direct_labels, drawing


def _draw(path: Path) -> None:
    with drawing(path) as (_, axes):
        axes.plot([1, 2, 3], [1, 4, 9], label="平方")
        axes.set_title("squares")
        direct_labels(axes)


def test_the_same_figure_is_the_same_bytes_with_its_text_as_text(tmp_path: Path) -> None:
    first, second = tmp_path / "first.svg", tmp_path / "second.svg"
    _draw(first)
    _draw(second)
    assert first.read_bytes() == second.read_bytes()
    words = {element.text for element in ET.parse(first).iter() if element.tag.endswith("}text")}
    assert {"平方", "squares"} <= words


def test_a_fault_while_drawing_leaves_the_old_figure_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "kept.svg"
    _draw(path)
    before = path.read_bytes()
    with pytest.raises(ZeroDivisionError), drawing(path) as (_, axes):
        axes.plot([1], [1 / 0])
    assert path.read_bytes() == before
    assert [file.name for file in tmp_path.iterdir()] == ["kept.svg"]


def test_a_figures_folder_is_made_and_anything_but_svg_is_refused(tmp_path: Path) -> None:
    assert checked_figure_path(None) is None
    path = tmp_path / "new" / "folder" / "one.svg"
    assert checked_figure_path(path) == path
    assert path.parent.is_dir()
    with pytest.raises(UsageError, match=r"must end in \.svg"):
        checked_figure_path(tmp_path / "one.png")
    (tmp_path / "folder.svg").mkdir()
    with pytest.raises(UsageError, match="is a folder"):
        checked_figure_path(tmp_path / "folder.svg")
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot make the folder"):
        checked_figure_path(tmp_path / "file" / "one.svg")
