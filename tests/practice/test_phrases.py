"""Whatever a grader counts, its name is told in Chinese too."""

from __future__ import annotations

import ast

from infra_lab.practice import catalog
from infra_lab.practice.phrases import counted_name, phrase


def counted_names() -> dict[str, list[str]]:
    """What the graders count, by problem: the first argument of each `within`."""
    found: dict[str, list[str]] = {}
    for grader in sorted((catalog.default_root() / "problems").glob("*/grader.py")):
        tree = ast.parse(grader.read_text(encoding="utf-8"))
        texts: dict[str, list[str]] = {}  # of the names that stand for one, such as `what`
        for node in ast.walk(tree):
            if isinstance(node, ast.Assign):
                for name, value in _assigned(node):
                    texts.setdefault(name, []).extend(_texts(value, {}))
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func) == "solution.within":
                found.setdefault(grader.parent.name, []).extend(_texts(node.args[0], texts))
    return found


def _assigned(node: ast.Assign) -> list[tuple[str, ast.expr]]:
    target = node.targets[0]
    if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
        pairs = list(zip(target.elts, node.value.elts, strict=True))
    else:
        pairs = [(target, node.value)]
    return [(name.id, value) for name, value in pairs if isinstance(name, ast.Name)]


def _texts(node: ast.expr, names: dict[str, list[str]]) -> list[str]:
    """What a text may come to: a 7 for whatever is put in, but for names that stand for texts."""
    if isinstance(node, ast.Name):
        return names.get(node.id, [])
    if isinstance(node, ast.Constant):
        return [node.value] if isinstance(node.value, str) else []
    texts = [""]
    for part in node.values if isinstance(node, ast.JoinedStr) else []:
        inside = part.value if isinstance(part, ast.FormattedValue) else part
        texts = [text + more for text in texts for more in (_texts(inside, names) or ["7"])]
    return texts if isinstance(node, ast.JoinedStr) else []


def test_whatever_a_grader_counts_has_its_chinese() -> None:
    names = counted_names()
    assert len(names) > 10
    assert all(names.values())
    assert names["lru_cache"][0] == "hashes and comparisons of keys in 7 calls on a full cache"
    left = {name for texts in names.values() for name in texts if counted_name(name, "zh") == name}
    assert left == set()


def test_what_is_counted_keeps_its_numbers_and_says_over_what() -> None:
    name = "bytes of extra memory for 20,000 nodes in 4 lists"
    assert counted_name(name, "zh") == "4 条链表、20,000 个节点时额外占用的字节数"
    assert counted_name(name, "en") == name
    assert counted_name("lines executed by append", "zh") == "append 执行的代码行数"
    assert counted_name("bytes of nothing known", "zh") == "bytes of nothing known"
    assert phrase("25,000 nested calls for 300 nodes", "zh") == "300 个节点时嵌套调用的层数：25,000"
