"""What MkDocs calls while it builds: pages' markers are filled in, assets are brought along.

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

from docs.hooks.facts import Facts
from docs.hooks.faults import ROOT, Fault
from docs.hooks.markers import expand
from docs.hooks.page import Page

log = logging.getLogger("mkdocs.hooks.infra_lab")


class Build:
    """One build's facts and faults."""

    def __init__(self) -> None:
        self.facts = Facts()
        self.faults: list[Fault] = []


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.extra["build"] = Build()
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    assets = ROOT / "docs" / "assets"
    for path in sorted(assets.rglob("*")):
        if path.is_file():
            name = f"assets/{path.relative_to(assets).as_posix()}"
            files.append(File.generated(config, name, abs_src_path=str(path)))
    return files


def on_page_markdown(markdown: str, page: BuiltPage, config: MkDocsConfig, files: Files) -> str:
    build: Build = config.extra["build"]
    source = page.file.abs_src_path
    path = Path(source) if source else ROOT / "docs" / page.file.src_uri
    first_line = 1
    if source:
        whole = path.read_text(encoding="utf-8-sig")
        first_line += whole[: max(whole.rfind(markdown.strip()[:200]), 0)].count("\n")
    language: Any = config.theme["language"]
    own = Page(path, "zh" if language == "zh" else "en", dict(page.meta), markdown, first_line)
    text, faults = expand(own, build.facts, up_from(page.url))
    build.faults += faults
    return text


def on_env(env: Any, config: MkDocsConfig, files: Files) -> Any:
    """After every page has been read: all faults at once, not only the first."""
    build: Build = config.extra["build"]
    wrong = [one for one in sorted(build.faults) if not one.is_gap]
    for one in sorted(build.faults):
        if one.is_gap:
            log.warning("%s", one)
        else:
            log.error("%s", one)
    if wrong:
        raise PluginError(f"{len(wrong)} faults in pages")
    if build.faults and os.environ.get("CI"):
        raise PluginError(f"{len(build.faults)} records are still to be made")
    return env


def up_from(url: str) -> str:
    """What leads from a page to its site's root: "../../" from "questions/kv-cache/"."""
    return "../" * url.count("/")
