"""The API reference: a page a module, filled by mkdocstrings from docstrings. English only."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from docs.hooks.facts import Facts

PACKAGES = ("infra_lab", "kernels")


def pages(facts: Facts) -> Iterator[tuple[str, str]]:
    found = list(modules(facts.root))
    lines = ["---", "title: API reference", "---", ""]
    lines += [
        "Every module with its public names. Shapes, units and sources are in docstrings.",
        "",
    ]
    for package in sorted({_group(name) for name, _ in found}):
        lines += [f"## `{package}`", ""]
        for name, summary in found:
            if _group(name) == package:
                lines.append(f"- [`{name}`]({_uri(name).removeprefix('reference/')}): {summary}")
        lines.append("")
    yield "reference/index.md", "\n".join(lines)
    for name, _ in found:
        body = ["---", f"title: {name}", "search:", "  boost: 0.5", "---", "", f"::: {name}", ""]
        yield _uri(name), "\n".join(body)


def modules(root: Path) -> Iterator[tuple[str, str]]:
    """Name and first sentence of every module that says what it is."""
    for package in PACKAGES:
        for path in sorted((root / package).rglob("*.py")):
            docstring = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))
            if docstring:
                parts = path.relative_to(root).with_suffix("").parts
                name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
                first = " ".join(docstring.split("\n\n")[0].split())
                yield name, first.replace("<", "&lt;").replace("[", "\\[")


def _group(name: str) -> str:
    return ".".join(name.split(".")[:2])


def _uri(name: str) -> str:
    """A folder's own page is not its index: `infra_lab.cache` and `infra_lab.cache.block_pool`."""
    return f"reference/{name.replace('.', '/')}.md"
