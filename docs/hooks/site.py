"""What MkDocs calls while it builds: pages are generated, markers filled in, assets brought along.

MkDocs loads this file by its path, so the repository's root is put on the path first.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page as BuiltPage

from docs.hooks.assets import with_head_tags
from docs.hooks.calculator_tables import calculator_tables
from docs.hooks.cards import pick
from docs.hooks.facts import Facts
from docs.hooks.faults import ROOT, Fault, MarkerError, PageError
from docs.hooks.figures import step_files
from docs.hooks.generated import generated_pages
from docs.hooks.generated.questions import LEVELS
from docs.hooks.markers import expand
from docs.hooks.navigation import navigation
from docs.hooks.page import Page, read_page
from docs.hooks.parity import is_question
from docs.hooks.search import mend_segmenter, quiet_jieba
from infra_lab.errors import InfraLabError
from infra_lab.texts import Language

log = logging.getLogger("mkdocs.hooks.infra_lab")
SKIP_REFERENCE = "INFRA_LAB_DOCS_QUICK"  # a build without the API reference takes seconds


class Build:
    """One build's language, facts and faults."""

    def __init__(self, config: MkDocsConfig) -> None:
        self.language: Language = "zh" if config.theme["language"] == "zh" else "en"
        self.facts = Facts()
        self.faults: list[Fault] = []
        self.with_reference = not os.environ.get(SKIP_REFERENCE)


def on_startup(command: str, dirty: bool) -> None:
    quiet_jieba()  # before any plugin's on_config: the theme's search loads the dictionary there


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    build = config.extra["build"] = Build(config)
    with_reference = build.with_reference and build.language == "en"
    try:
        config.nav = navigation(build.facts, build.language, with_reference)
    except InfraLabError as error:  # a ledger or a problem that is damaged
        raise PluginError(str(error)) from error
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    build: Build = config.extra["build"]
    _require_readable(files)
    try:
        generated = list(generated_pages(build.facts, build.language, build.with_reference))
    except (MarkerError, InfraLabError) as error:
        raise PluginError(str(error)) from error
    for name, text in generated:
        files.append(File.generated(config, name, content=text))
    for folder in ("javascripts", "stylesheets", "vendor", "images", "measured"):
        for path in sorted((ROOT / "docs" / "assets" / folder).rglob("*")):
            if path.is_file() and path.suffix != ".md":
                name = f"assets/{path.relative_to(ROOT / 'docs' / 'assets').as_posix()}"
                files.append(File.generated(config, name, abs_src_path=str(path)))
    data = {**step_files(), "calculator.json": calculator_tables()}
    for name, text in data.items():
        files.append(File.generated(config, f"assets/data/{name}", content=text))
    return files


def on_page_markdown(markdown: str, page: BuiltPage, config: MkDocsConfig, files: Files) -> str:
    build: Build = config.extra["build"]
    own = _own_page(markdown, page, build.language)
    text, faults = expand(own, build.facts, up_from(page.url))
    build.faults += faults
    if is_question(own.path):
        page.meta["tags"] = _tags(own, build)
    return text


def on_page_context(context: Any, page: BuiltPage, config: MkDocsConfig, nav: Any) -> Any:
    """The language switch leads to the same page; the reference has no Chinese twin."""
    build: Build = config.extra["build"]
    url = "" if page.url.startswith("reference/") else page.url
    up = up_from(page.url)
    here, there = (up, f"{up}zh/") if build.language == "en" else (f"{up}../", up)
    config.extra["languages"] = [
        {"name": "English", "lang": "en", "link": f"{here}{url}" or "."},
        {"name": "中文", "lang": "zh", "link": f"{there}{url}" or "."},
    ]
    return context


def on_env(env: Any, config: MkDocsConfig, files: Files) -> Any:
    """After every page has been read: all faults at once, not only the first. What is still to be
    recorded is no warning, which a strict build would count: only CI asks for every record."""
    build: Build = config.extra["build"]
    wrong = [one for one in sorted(build.faults) if not one.is_gap]
    needs_records = bool(os.environ.get("CI"))
    of_gaps = logging.WARNING if needs_records else logging.INFO
    for one in sorted(build.faults):
        log.log(of_gaps if one.is_gap else logging.ERROR, "%s", one)
    if wrong:
        raise PluginError(f"{len(wrong)} faults in pages")
    if build.faults and needs_records:
        raise PluginError(f"{len(build.faults)} records are still to be made")
    return env


def on_post_page(output: str, page: BuiltPage, config: MkDocsConfig) -> str:
    return with_head_tags(output, up_from(page.url))


def on_post_build(config: MkDocsConfig) -> None:
    if not mend_segmenter(Path(config.site_dir)):
        log.warning("the theme's search worker has changed: see docs/hooks/search.py")


def up_from(url: str) -> str:
    """What leads from a page to its site's root: "../../" from "questions/kv-cache/"."""
    return "../" * url.count("/")


def _require_readable(files: Files) -> None:
    """Raises PluginError, after each page that cannot be read has been told: MkDocs would end in a
    traceback at text that is not UTF-8, and take front matter that is no YAML for prose."""
    faults = []
    for file in files.documentation_pages():
        if file.generated_by is None and file.abs_src_path:
            path = Path(file.abs_src_path)
            try:
                read_page(path)
            except PageError as error:
                faults.append(Fault(path, error.line, str(error)))
    for one in faults:
        log.error("%s", one)
    if faults:
        raise PluginError(f"{len(faults)} pages cannot be read")


def _own_page(markdown: str, page: BuiltPage, language: Language) -> Page:
    """With the lines of the file, where there is one; MkDocs has cut its front matter off."""
    source = page.file.abs_src_path
    if page.file.generated_by is None and source:
        return read_page(Path(source))
    path = ROOT / "docs" / language / page.file.src_uri
    return Page(path, language, dict(page.meta), markdown, 1)


def _tags(page: Page, build: Build) -> list[str]:
    """What the tag index lists a question under."""
    topic = build.facts.ledger.topics.get(str(page.front.get("topic")))
    level = LEVELS.get(str(page.front.get("level")))
    return [
        *([topic.title[build.language]] if topic else []),
        *([pick(level, build.language)] if level else []),
    ]
