"""The built site in a real browser: both languages, search, themes, a phone, and no other host."""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urldefrag, urljoin, urlsplit

import pytest

from docs.hooks.faults import ROOT
from tests.browser import PHONE, Visit, Visitor, browser, visit
from tests.docs.test_calculator import base, differences, in_python

__all__ = ["browser", "visit"]  # fixtures
pytestmark = pytest.mark.slow

SEARCH_MS = 30_000  # the index is read and made by a worker, on a machine that may be busy
BOTH = ["", "zh/"]
TYPICAL = ["", "questions/", "problems/lru_cache/", "calculator/", "errata/", "kernels/softmax/"]


def mkdocs(config: str, folder: Path, root: Path) -> subprocess.CompletedProcess[str]:
    """A build without the API reference, which takes a minute."""
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1", "INFRA_LAB_DOCS_QUICK": "1"}
    environment.pop("CI", None)
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "-f", config, "-d", str(folder)],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
    )


def build(config: str, folder: Path, root: Path = ROOT) -> str:
    """What a build that succeeds prints."""
    done = mkdocs(config, folder, root)
    assert done.returncode == 0, done.stderr
    return done.stderr


def warnings(printed: str) -> list[str]:
    return [line for line in printed.splitlines() if line.startswith(("WARNING", "ERROR"))]


def test_a_warning_of_a_build_is_seen(tmp_path: Path) -> None:
    pages = tmp_path / "docs"
    pages.mkdir()
    (pages / "index.md").write_text("[nowhere](nowhere.md)\n", encoding="utf-8")
    (tmp_path / "mkdocs.yml").write_text("site_name: x\n", encoding="utf-8")
    found = warnings(build("mkdocs.yml", tmp_path / "site", tmp_path))
    assert len(found) == 1
    assert "nowhere.md" in found[0]


@pytest.mark.parametrize(
    ("content", "told"),
    [
        (b"---\ntitle: x\nlevel: [\n---\n", "index.md:4: front matter: while parsing"),
        (b"---\ntitle: x\n---\n\xff\n", "index.md:4: is not UTF-8: byte 0xff"),
    ],
)
def test_a_page_that_cannot_be_read_ends_a_build_in_a_message(
    tmp_path: Path, content: bytes, told: str
) -> None:
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs/index.md").write_bytes(content)
    settings = f"site_name: x\ntheme: material\nhooks: [{ROOT / 'docs/hooks/site.py'}]\n"
    (tmp_path / "mkdocs.yml").write_text(settings, encoding="utf-8")
    done = mkdocs("mkdocs.yml", tmp_path / "site", tmp_path)
    assert done.returncode == 1
    assert told in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Both languages; a warning fails."""
    folder = tmp_path_factory.mktemp("site")
    printed = build("mkdocs.yml", folder) + build("mkdocs.zh.yml", folder / "zh")
    assert warnings(printed) == []
    assert "prefix dict" not in printed  # jieba's news
    return folder


class Silent(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(built: Path) -> Iterator[str]:
    handler = functools.partial(Silent, directory=str(built))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()


class Links(HTMLParser):
    """What a page leads to, and the ids that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.targets: list[str] = []
        self.ids: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        if found.get("id"):
            self.ids.add(str(found["id"]))
        for name in ("href", "src", "data-steps", "data-calculator"):
            if found.get(name):
                self.targets.append(str(found[name]))


def has_anchor(page: Links, anchor: str) -> bool:
    return anchor.startswith("__") or unquote(anchor) in page.ids  # __: the theme's own


def test_every_link_and_anchor_leads_somewhere(built: Path) -> None:
    pages = {
        path.relative_to(built).as_posix(): Links(path.read_text(encoding="utf-8"))
        for path in built.rglob("*.html")
        if path.name != "404.html"
    }
    wrong = []
    for name, page in pages.items():
        for target in page.targets:
            link, anchor = urldefrag(urljoin(f"http://site/{name}", target))
            parts = urlsplit(link)
            if parts.netloc != "site" or parts.scheme != "http" or "reference/" in parts.path:
                continue
            path = unquote(parts.path).lstrip("/")
            path += "index.html" if path == "" or path.endswith("/") else ""
            if not (built / path).is_file():
                wrong.append(f"{name}: {target}")
            elif anchor and path in pages and not has_anchor(pages[path], anchor):
                wrong.append(f"{name}: {target} (no such anchor)")
    assert wrong == []


def test_no_page_names_another_host_for_what_it_loads(built: Path) -> None:
    loaded = re.compile(r"<(?:script|link|img|iframe|source)[^>]+(?:src|href)=\"?(https?:)?//")
    wrong = [
        path.relative_to(built).as_posix()
        for path in built.rglob("*.html")
        if loaded.search(path.read_text(encoding="utf-8"))
    ]
    assert wrong == []


def settled(opened: Visit) -> Visit:
    """Waits until the page has drawn what it draws; nothing may have gone wrong meanwhile."""
    opened.page.wait_for_load_state("networkidle")
    assert opened.complaints == []
    assert opened.foreign_requests() == []
    return opened


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("language", BOTH)
@pytest.mark.parametrize("path", TYPICAL)
def test_a_page_opens_without_a_complaint_and_fits_a_phone(
    site: str, visit: Visitor, path: str, language: str, scheme: str
) -> None:
    opened = settled(visit(site + language + path, size=PHONE, color_scheme=scheme))
    opened.assert_fits_width()
    shown = opened.page.evaluate("document.body.dataset.mdColorScheme")
    assert shown == {"light": "default", "dark": "slate"}[scheme]


@pytest.mark.parametrize("language", BOTH)
def test_every_question_opens_without_a_complaint(
    site: str, built: Path, visit: Visitor, language: str
) -> None:
    for folder in sorted((built / language / "questions").iterdir()):
        if folder.is_dir():
            opened = settled(visit(f"{site}{language}questions/{folder.name}/", size=PHONE))
            opened.assert_fits_width()
            assert opened.page.locator("details.question").count() >= 6
            unset = "document.querySelectorAll('.arithmatex:not(:has(.katex))').length"
            assert opened.page.evaluate(unset) == 0
            assert opened.page.locator(".katex-error").count() == 0
            assert "Syntax error" not in opened.page.content()
            opened.page.context.close()


@pytest.mark.parametrize(
    ("language", "query", "wanted"),
    [
        ("", "paged", "PagedAttention"),
        ("", "ring walk", "ring"),
        ("zh/", "连续批处理", "连续批处理"),
        ("zh/", "显存带宽", "显存带宽"),
        ("zh/", "paged", "Paged"),
    ],
)
def test_a_search_finds_words_of_the_field(
    site: str, visit: Visitor, language: str, query: str, wanted: str
) -> None:
    opened = settled(visit(site + language))
    opened.page.locator(".md-search__input").click()
    opened.page.keyboard.type(query)
    opened.page.keyboard.press("End")  # text put in as a whole brings no key with it
    first = opened.page.locator(".md-search-result__item").first
    first.wait_for(timeout=SEARCH_MS)
    found = first.inner_text().replace("\u200b", "")
    assert wanted.lower() in found.lower()
    link = first.locator("a").first.get_attribute("href") or ""
    assert ("/zh/" in urljoin(opened.page.url, link)) is (language == "zh/")
    assert opened.complaints == []


def test_the_language_switch_leads_to_the_same_page(site: str, visit: Visitor) -> None:
    opened = settled(visit(f"{site}problems/lru_cache/"))
    opened.page.locator("a.language").click()
    opened.page.wait_for_url(f"{site}zh/problems/lru_cache/")
    opened.page.locator("a.language").click()
    opened.page.wait_for_url(f"{site}problems/lru_cache/")


def test_the_dark_theme_is_kept_from_page_to_page(site: str, visit: Visitor) -> None:
    opened = settled(visit(site, color_scheme="light"))
    opened.page.locator("label[for=__palette_1]").click()
    opened.page.goto(f"{site}errata/")
    assert opened.page.evaluate("document.body.dataset.mdColorScheme") == "slate"


@pytest.mark.parametrize("language", BOTH)
def test_the_calculator_computes_what_the_calculators_do(
    site: str, visit: Visitor, language: str
) -> None:
    opened = settled(visit(f"{site}{language}calculator/#model=llama-2-70b&gpus=4&batch=64"))
    page = opened.page
    page.locator(".calculator__output h3").first.wait_for()
    result = page.evaluate("document.querySelector('[data-calculator]').result")
    given = base(model="llama-2-70b", gpus=4, batch=64, prompt=2048, output=256)
    assert differences(in_python(given), result) == []
    page.locator("#calculator-weights").select_option("int4-g128")
    page.locator("#calculator-prompt").fill("1000")
    result = page.evaluate("document.querySelector('[data-calculator]').result")
    assert differences(in_python(given | {"weights": "int4-g128", "prompt": 1000}), result) == []
    assert "weights=int4-g128" in page.url
    page.locator("#calculator-prompt").fill("999999")
    assert page.locator("#calculator-prompt").get_attribute("aria-invalid") == "true"
    assert page.locator("#calculator-prompt-fault").inner_text()
    assert page.locator(".calculator__output").inner_text() == ""  # no result of other inputs
    assert page.evaluate("document.querySelector('[data-calculator]').result") is None
    page.locator(".calculator__form button").click()
    assert page.locator("#calculator-model").input_value() == "llama-3-8b"
    assert page.locator(".roofline circle").count() == 2
    assert opened.complaints == []


@pytest.mark.parametrize("name", ["model", "device", "weights", "cache", "operands", "toString"])
def test_an_address_that_names_nothing_gives_the_default(
    site: str, visit: Visitor, name: str
) -> None:
    """Every object has a `constructor`; no table of models does."""
    opened = settled(visit(f"{site}calculator/#{name}=constructor"))
    opened.page.locator(".calculator__output h3").first.wait_for()
    assert opened.page.locator("#calculator-model").input_value() == "llama-3-8b"
    assert opened.page.locator("#calculator-operands").input_value() == "bf16"
    assert opened.complaints == []


def stepped_page(built: Path) -> str:
    """A page with a stepwise figure."""
    for path in sorted(built.glob("questions/*/index.html")):
        if "data-steps=" in path.read_text(encoding="utf-8"):
            return path.parent.relative_to(built).as_posix()
    raise AssertionError("no page has a stepwise figure")


@pytest.mark.parametrize("language", BOTH)
def test_a_stepwise_figure_is_stepped_through_by_keys_and_buttons(
    site: str, built: Path, visit: Visitor, language: str
) -> None:
    name = stepped_page(built)
    opened = settled(visit(f"{site}{language}{name}/", reduced_motion="reduce"))
    figure = opened.page.locator("figure.steps").first
    text = figure.locator(".steps__text")
    first = text.inner_text()
    figure.focus()
    opened.page.keyboard.press("ArrowRight")
    assert text.inner_text() != first
    opened.page.keyboard.press("Home")
    assert text.inner_text() == first
    buttons = figure.locator("button")
    assert buttons.count() == 2  # no player for those who want less motion
    buttons.last.click()
    assert text.inner_text() != first
    opened.page.keyboard.press("End")
    assert buttons.last.is_disabled()
    assert opened.complaints == []


def test_a_figure_plays_by_itself_and_can_be_stopped(
    site: str, built: Path, visit: Visitor
) -> None:
    name = stepped_page(built)
    opened = settled(visit(f"{site}{name}/"))
    figure = opened.page.locator("figure.steps").first
    play = figure.locator("button").first
    first = figure.locator(".steps__text").inner_text()
    play.click()
    opened.page.wait_for_function(
        "first => document.querySelector('.steps__text').textContent !== first", arg=first
    )
    assert play.get_attribute("aria-label") == "Pause"
    play.click()
    assert play.get_attribute("aria-label") == "Play"


def test_data_of_figures_and_calculator_are_json(built: Path) -> None:
    found: dict[str, Any] = {
        path.name: json.loads(path.read_text(encoding="utf-8"))
        for path in (built / "assets/data").rglob("*.json")
    }
    assert "calculator.json" in found
    assert len(found) == 6
