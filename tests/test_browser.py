"""What the browser of the tests notices; a fault here would let pages pass that are wrong."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.browser import PHONE, Visitor


@pytest.fixture
def page_of(tmp_path: Path) -> Callable[[str], str]:
    def write(body: str) -> str:
        path = tmp_path / "page.html"
        viewport = "<meta name=viewport content='width=device-width'>"
        path.write_text(f"<!doctype html>{viewport}{body}")
        return path.as_uri()

    return write


def test_a_sound_page_has_nothing_noted(visit: Visitor, page_of: Callable[[str], str]) -> None:
    visited = visit(page_of("<p>all is well<script>console.log('as usual')</script>"))
    assert visited.page.inner_text("p") == "all is well"
    assert visited.complaints == []
    assert visited.foreign_requests() == []
    visited.assert_fits_width()


def test_console_errors_and_uncaught_exceptions_are_noted(
    visit: Visitor, page_of: Callable[[str], str]
) -> None:
    script = "console.error('spoken'); console.warn('whispered'); throw new Error('thrown')"
    visited = visit(page_of(f"<script>{script}</script>"))
    assert visited.complaints[:2] == ["error: spoken", "warning: whispered"]
    assert visited.complaints[2].startswith("uncaught: ")
    assert "thrown" in visited.complaints[2]


def test_a_request_to_another_host_is_noted_and_does_not_arrive(
    visit: Visitor, page_of: Callable[[str], str]
) -> None:
    visited = visit(page_of("<img src='http://pictures.example/one.png'>"))
    assert visited.foreign_requests() == ["http://pictures.example/one.png"]
    assert any("ERR_NAME_NOT_RESOLVED" in one for one in visited.complaints)


def test_a_page_wider_than_the_screen_is_noted(
    visit: Visitor, page_of: Callable[[str], str]
) -> None:
    visited = visit(page_of("<div style='width: 500px'>wide</div>"), size=PHONE)
    with pytest.raises(AssertionError, match="508 px wide on 390"):
        visited.assert_fits_width()
