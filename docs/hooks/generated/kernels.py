"""A page a kernel's module: what it does, its reference, and the quality of its machine code."""

from __future__ import annotations

import ast
import inspect
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from docs.hooks.cards import pick
from docs.hooks.facts import Facts
from docs.hooks.generated.problems import code_block, folded
from infra_lab.texts import Language

Row = dict[str, Any]
COLUMNS = (
    ("config", ("Configuration", "配置")),
    ("arch", ("Architecture", "架构")),
    ("registers", ("Registers", "寄存器")),
    ("spill_bytes", ("Spilled bytes", "溢出字节")),
    ("shared_bytes", ("Shared memory, bytes", "共享内存（字节）")),
    ("occupancy", ("Occupancy", "占用率")),
    ("mma", ("Matrix instruction", "矩阵指令")),
    ("load_bits", ("Widest load, bits", "最宽读取（位）")),
)


# Kernels that are spread over several files, named after the one that callers use.
FAMILIES = ("flash_attention", "paged_attention")


@dataclass(frozen=True, slots=True)
class KernelPage:
    """`paths`: the file that callers use first. What is shown of them, by (file, name)."""

    name: str
    paths: tuple[Path, ...]
    docstring: str
    rows: tuple[Row, ...]
    kernels: tuple[tuple[str, str], ...]
    references: tuple[tuple[str, str], ...]
    entries: tuple[tuple[str, str], ...]


def pages(facts: Facts, language: Language) -> Iterator[tuple[str, str]]:
    found = facts.once(kernel_pages, facts.root)
    yield "kernels/index.md", _index(found, language)
    for one in found:
        yield f"kernels/{one.name}.md", "\n".join(_page(one, language))


def kernel_pages(root: Path) -> list[KernelPage]:
    """A page for every file of `kernels/` that declares cases for the ahead-of-time gate, or for
    its family. Parsed, not imported: the site is built where there is no Triton too."""
    table = json.loads((root / "kernels/testing/quality.json").read_text(encoding="utf-8"))
    groups: dict[str, list[Path]] = {}
    for path in sorted((root / "kernels").glob("*.py")):
        family = next((one for one in FAMILIES if path.stem.startswith(one)), path.stem)
        groups.setdefault(family, []).append(path)
    found = [_kernel_page(name, paths, table["rows"]) for name, paths in groups.items()]
    return [one for one in found if one.rows]


def _kernel_page(name: str, paths: list[Path], rows: list[Row]) -> KernelPage:
    trees = {path: ast.parse(path.read_text(encoding="utf-8")) for path in paths}
    functions = [
        (path, node)
        for path, tree in trees.items()
        for node in tree.body
        if isinstance(node, ast.FunctionDef)
    ]
    declaring = [tree for tree in trees.values() if any(_declares_cases(one) for one in tree.body)]
    texts = {
        node.value
        for tree in declaring
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    kernels = [(path, node) for path, node in functions if _is_kernel(node)]
    names = texts | {node.name.removesuffix("_kernel") for _, node in kernels}
    shown = [
        (path, node)
        for path, node in functions
        if not node.name.startswith("_") and not _is_kernel(node)
    ]
    return KernelPage(
        name=name,
        paths=tuple(paths),
        docstring=inspect.cleandoc(ast.get_docstring(trees[paths[0]]) or ""),
        rows=tuple(row for row in rows if declaring and row["kernel"] in names),
        kernels=_places(kernels),
        references=_places([one for one in shown if "reference" in one[1].name]),
        entries=_places(
            [one for one in shown if one[0] == paths[0] and "reference" not in one[1].name]
        ),
    )


def _places(functions: list[tuple[Path, ast.FunctionDef]]) -> tuple[tuple[str, str], ...]:
    return tuple((path.name, node.name) for path, node in functions)


def _declares_cases(node: ast.stmt) -> bool:
    return _assigns(node, "AOT_CASES")


def _assigns(node: ast.stmt, name: str) -> bool:
    targets: list[ast.expr] = []
    if isinstance(node, ast.Assign):
        targets = node.targets
    elif isinstance(node, ast.AnnAssign):
        targets = [node.target]
    return any(isinstance(one, ast.Name) and one.id == name for one in targets)


def _is_kernel(node: ast.FunctionDef) -> bool:
    return any("triton.jit" in ast.unparse(one) for one in node.decorator_list)


def _index(found: list[KernelPage], language: Language) -> str:
    title = pick(("Kernels", "算子"), language)
    intro = pick(
        (
            "Triton kernels, one file each, beside a reference in plain torch. None needs a GPU to "
            "be tested: an interpreter with a GPU's arithmetic runs them against float64, a "
            "sanitizer watches their memory, and the machine code for five architectures is held "
            "to a table that may only improve.",
            "Triton 算子，一个文件一个，旁边是纯 torch 的参考实现。测试不需要 GPU：一个按 GPU 规则"
            "做算术的解释器把它们与 float64 对照，检查器监视访存，"
            "五种架构的机器码对照一张只许变好的表。",
        ),
        language,
    )
    heads = pick(("Kernel | What it does", "算子 | 作用"), language)
    lines = ["---", f"title: {title}", "---", "", intro, "", f"| {heads} |", "|---|---|"]
    for one in found:
        first = " ".join(one.docstring.split("\n\n")[0].split()).replace("|", "\\|")
        lines.append(f"| [`{one.name}`]({one.name}.md) | {first} |")
    return "\n".join([*lines, ""])


def _page(kernel_page: KernelPage, language: Language) -> Iterator[str]:
    yield from ("---", f'title: "{kernel_page.name}"', "tags: [kernel]", "---", "")
    if language == "zh":
        yield from ("以下说明取自源码的文档字符串（英文）。", "")
    for paragraph in kernel_page.docstring.split("\n\n"):
        yield from (*_escaped(paragraph), "")
    heading = pick(("Entry points", "入口函数"), language)
    if kernel_page.entries:
        yield from (f"## {heading}", "")
        for file, name in kernel_page.entries:
            yield from (f"<!-- code kernels/{file}:{name} -->", "")
    if kernel_page.references:
        yield from (f"## {pick(('Reference', '参考实现'), language)}", "")
        for file, name in kernel_page.references:
            yield from (f"<!-- code kernels/{file}:{name} -->", "")
    yield from (f"## {pick(('Kernel', '核函数'), language)}", "")
    for file, name in kernel_page.kernels:
        yield from (f"<!-- code kernels/{file}:{name} -->", "")
    whole = pick(("The whole file", "完整文件"), language)
    for path in kernel_page.paths:
        yield from folded("code", f"{whole}: kernels/{path.name}", code_block(path))
    yield from _quality(kernel_page, language)


def _quality(kernel_page: KernelPage, language: Language) -> Iterator[str]:
    yield from (f"## {pick(('Quality of the machine code', '机器码质量'), language)}", "")
    yield pick(
        (
            "Compiled ahead of time, no GPU needed; a change that makes a row worse fails the "
            f"tests. `python -m kernels.testing.aot --kernel {kernel_page.rows[0]['kernel']}`",
            "提前编译，不需要 GPU；任何让某一行变差的改动都会使测试失败。"
            f"`python -m kernels.testing.aot --kernel {kernel_page.rows[0]['kernel']}`",
        ),
        language,
    )
    yield ""
    for kernel in sorted({row["kernel"] for row in kernel_page.rows}):
        rows = [row for row in kernel_page.rows if row["kernel"] == kernel]
        heads = "".join(f'<th scope="col">{pick(texts, language)}</th>' for _, texts in COLUMNS)
        yield from (f"### `{kernel}`", "", '<div class="run__table"><table class="rows">')
        yield f"<thead><tr>{heads}</tr></thead><tbody>"
        for row in rows:
            cells = "".join(f"<td>{row[key] if row[key] != '' else '-'}</td>" for key, _ in COLUMNS)
            yield f"<tr>{cells}</tr>"
        yield from ("</tbody></table></div>", "")


def _escaped(paragraph: str) -> list[str]:
    """A docstring is no Markdown: what looks like emphasis or a heading in it is none."""
    if all(line.startswith("    ") for line in paragraph.split("\n")):
        return paragraph.split("\n")
    table = str.maketrans({one: f"\\{one}" for one in "*_<>#[]|"})
    parts = paragraph.split("`")
    return "`".join(
        part if index % 2 else part.translate(table) for index, part in enumerate(parts)
    ).split("\n")
