"""The source text of a function, class or method, found by its name in the tree: nothing is run."""

from __future__ import annotations

import ast
import textwrap
from dataclasses import dataclass
from pathlib import Path

from docs.hooks.facts import near
from docs.hooks.faults import ROOT, MarkerError

IMPORTABLE = ("infra_lab", "kernels")


@dataclass(frozen=True, slots=True)
class Excerpt:
    """`path` from the repository's root; lines counted from 1, both ends included."""

    path: str
    name: str
    first_line: int
    last_line: int
    text: str

    @property
    def module(self) -> str | None:
        """`infra_lab.cache.block_pool`; None for a file that is not imported by name."""
        parts = Path(self.path).with_suffix("").parts
        if parts[0] not in IMPORTABLE:
            return None
        return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def find_source(reference: str, root: Path = ROOT) -> Excerpt:
    """`infra_lab.cache.block_pool:BlockPool.allocate`, or `problems/x/starter.py:LRUCache`.

    Also a name at a module's level that is assigned to. Raises MarkerError for one that is not
    there."""
    where, colon, name = reference.partition(":")
    if not colon or not name:
        raise MarkerError(f"code {reference!r}: write it as module:name or path/to/file.py:name")
    path = _file_of(where.strip(), root)
    source = path.read_text(encoding="utf-8")
    node = _find(ast.parse(source), name.strip(), reference)
    first, last = _first_line(node), node.end_lineno or node.lineno
    text = "\n".join(source.split("\n")[first - 1 : last])
    return Excerpt(
        path.relative_to(root).as_posix(), name.strip(), first, last, textwrap.dedent(text)
    )


def _file_of(where: str, root: Path) -> Path:
    if where.endswith(".py"):
        candidates = [root / where]
    else:
        base = root.joinpath(*where.split("."))
        candidates = [base.with_suffix(".py"), base / "__init__.py"]
    for path in candidates:
        if path.is_file() and path.resolve().is_relative_to(root.resolve()):
            return path
    folder = candidates[0].parent
    known = [one.stem for one in folder.glob("*.py")] if folder.is_dir() else []
    raise MarkerError(f"there is no module or file {where!r}{near(candidates[0].stem, known)}")


def _find(tree: ast.Module, name: str, reference: str) -> ast.stmt:
    body: list[ast.stmt] = tree.body
    found: ast.stmt | None = None
    for part in name.split("."):
        named = {key: one for one in body for key in _names(one)}
        if part not in named:
            raise MarkerError(f"code {reference}: there is no {part!r}{near(part, named)}")
        found = named[part]
        body = getattr(found, "body", [])
    assert found is not None  # "".split gives one part at least
    return found


def _names(node: ast.stmt) -> list[str]:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return [node.name]
    if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
        return [node.target.id]
    if isinstance(node, ast.Assign):
        return [one.id for one in node.targets if isinstance(one, ast.Name)]
    return []


def _first_line(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(one.lineno for one in decorators)])
