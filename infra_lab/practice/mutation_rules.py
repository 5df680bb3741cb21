"""Which small wrong changes a solution is tried with: one change of its syntax tree each.

A rule says, for one node, what may stand in its place. `mutants_of` applies every rule at every
place. Answers "how do you know that a test suite would notice a bug?".
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

RULES_VERSION = 1  # a record that was made by other rules is out of date

ARITHMETIC: dict[type[ast.operator], tuple[type[ast.operator], ...]] = {
    ast.Add: (ast.Sub, ast.Mult),
    ast.Sub: (ast.Add, ast.Mult),
    ast.Mult: (ast.Add, ast.FloorDiv),
    ast.Div: (ast.Mult, ast.FloorDiv),
    ast.FloorDiv: (ast.Div, ast.Mult),
    ast.Mod: (ast.FloorDiv, ast.Mult),
    ast.Pow: (ast.Mult, ast.Add),
    ast.LShift: (ast.RShift,),
    ast.RShift: (ast.LShift,),
    ast.BitAnd: (ast.BitOr, ast.BitXor),
    ast.BitOr: (ast.BitAnd, ast.BitXor),
    ast.BitXor: (ast.BitAnd, ast.BitOr),
}
COMPARISONS: dict[type[ast.cmpop], tuple[type[ast.cmpop], ...]] = {
    ast.Lt: (ast.LtE, ast.GtE),
    ast.LtE: (ast.Lt, ast.Gt),
    ast.Gt: (ast.GtE, ast.LtE),
    ast.GtE: (ast.Gt, ast.Lt),
    ast.Eq: (ast.NotEq,),
    ast.NotEq: (ast.Eq,),
    ast.Is: (ast.IsNot,),
    ast.IsNot: (ast.Is,),
    ast.In: (ast.NotIn,),
    ast.NotIn: (ast.In,),
}
ORDERED = (ast.Sub, ast.Div, ast.FloorDiv, ast.Mod, ast.Pow, ast.LShift, ast.RShift, ast.MatMult)
SYMMETRIC_CALLS = {"min", "max", "gcd", "lcm", "minimum", "maximum", "TypeVar", "NewType"}
DEFINITIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Import, ast.ImportFrom)
WITHOUT_BEHAVIOUR = {"__slots__", "__all__"}

Replacement = tuple[str, ast.AST]  # the rule's name, and what stands in the node's place


@dataclass(frozen=True, slots=True)
class Mutant:
    """One wrong solution.

    Attributes:
        id: where it is, as file.Class.method, and the line before and after; it holds while
            that line does, whatever is edited elsewhere.
        approach: the stem of the file that it was made from.
        rule: which kind of change.
        before, after: the line that changed.
        source: the whole file.
    """

    id: str
    approach: str
    rule: str
    before: str
    after: str
    source: str

    @property
    def diff(self) -> str:
        return f"- {self.before}\n+ {self.after}"


def mutants_of(path: Path) -> list[Mutant]:
    """Every mutant of one file, in the order of its lines; none twice, none like the file."""
    tree = ast.parse(path.read_text(encoding="utf-8"), str(path))
    seen = {ast.unparse(tree)}
    occurrences: Counter[str] = Counter()
    mutants = []
    for place in _places(tree):
        before = ast.unparse(place.statement).split("\n")
        for rule, replacement in _replacements(place):
            place.put(replacement)
            source = ast.unparse(tree)
            statement = replacement if place.node is place.statement else place.statement
            after = ast.unparse(statement).split("\n")
            place.put(place.node)
            if source in seen or not _compiles(source):
                continue
            seen.add(source)
            lines = _changed_lines(before, after)
            where = ".".join((path.stem, *place.scope))
            name = f"{where}: {lines[0]} => {lines[1]}"
            occurrences[name] += 1
            count = occurrences[name]
            mutant_id = f"{name} #{count}" if count > 1 else name
            mutants.append(Mutant(mutant_id, path.stem, rule, *lines, source))
    return mutants


def _compiles(source: str) -> bool:
    try:
        compile(source, "<mutant>", "exec")
    except (SyntaxError, ValueError):
        return False
    return True


def _changed_lines(before: list[str], after: list[str]) -> tuple[str, str]:
    """The first line that differs; of a statement that was dropped with its block, its head."""
    for old, new in zip(before, after, strict=False):
        if old != new:
            return old.strip(), new.strip()
    longer = before if len(before) > len(after) else after
    line = longer[min(len(before), len(after))].strip()
    return (line, "") if longer is before else ("", line)


@dataclass(slots=True)
class _Place:
    """A node, the slot of the tree that holds it, the statement around it, and the names of the
    functions and classes around that."""

    owner: ast.AST
    field: str
    index: int | None
    node: ast.AST
    statement: ast.stmt
    scope: tuple[str, ...]

    def put(self, node: ast.AST) -> None:
        if self.index is None:
            setattr(self.owner, self.field, node)
        else:
            getattr(self.owner, self.field)[self.index] = node


def _places(tree: ast.Module) -> Iterator[_Place]:
    for index, statement in enumerate(tree.body):
        yield from _places_under(tree, "body", index, statement, statement, ())


def _places_under(
    owner: ast.AST,
    field: str,
    index: int | None,
    node: ast.AST,
    statement: ast.stmt,
    scope: tuple[str, ...],
) -> Iterator[_Place]:
    if isinstance(node, ast.stmt):
        statement = node
    if _is_without_behaviour(node):
        return
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        scope = (*scope, node.name)
    yield _Place(owner, field, index, node, statement, scope)
    for name, value in ast.iter_fields(node):
        if name in _skipped_fields(node):
            continue
        children = [*enumerate(value)] if isinstance(value, list) else [(None, value)]
        for position, child in children:
            if isinstance(child, ast.AST) and not isinstance(
                child, (ast.expr_context, ast.operator, ast.cmpop, ast.boolop, ast.unaryop)
            ):
                yield from _places_under(node, name, position, child, statement, scope)


def _is_without_behaviour(node: ast.AST) -> bool:
    """Code that no grader should depend on: docstrings, imports, `if __name__ == ...`, slots."""
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Constant)
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return True
    if isinstance(node, ast.If):
        return ast.unparse(node.test).startswith("__name__ ==") or "TYPE_CHECKING" in ast.unparse(
            node.test
        )
    if isinstance(node, ast.Assign):
        targets = {target.id for target in node.targets if isinstance(target, ast.Name)}
        calls = node.value.func if isinstance(node.value, ast.Call) else None
        is_type = isinstance(calls, ast.Name) and calls.id in ("TypeVar", "NewType")
        return bool(targets & WITHOUT_BEHAVIOUR) or is_type
    return False


def _skipped_fields(node: ast.AST) -> tuple[str, ...]:
    """Annotations and decorators change nothing that is graded, nor do the texts of errors."""
    skipped: tuple[str, ...] = ("annotation", "returns", "decorator_list", "type_params")
    if isinstance(node, ast.Raise):
        skipped += ("exc", "cause")
    elif isinstance(node, ast.Assert):
        skipped += ("msg",)
    elif isinstance(node, ast.FormattedValue):
        skipped += ("format_spec",)
    elif isinstance(node, ast.ExceptHandler):
        skipped += ("type",)
    elif isinstance(node, ast.ClassDef):
        skipped += ("bases", "keywords")
    return skipped


def _replacements(place: _Place) -> Iterator[Replacement]:
    node = place.node
    if isinstance(place.owner, ast.JoinedStr) and isinstance(node, ast.Constant):
        return  # the words of a message
    if isinstance(node, ast.stmt) and not isinstance(node, (*DEFINITIONS, ast.Pass)):
        yield "dropped statement", ast.Pass()
    rule = _RULES.get(type(node))
    if rule is not None:
        yield from rule(node)
    is_condition = place.field in ("test", "ifs") and not isinstance(
        node, (ast.Compare, ast.BoolOp, ast.Constant)
    )
    if is_condition and not (isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not)):
        yield "negation", ast.UnaryOp(ast.Not(), node)  # type: ignore[arg-type]
    if place.field == "ifs":
        yield "dropped condition", ast.Constant(value=True)


def _changed(node: Any, **fields: Any) -> Any:
    """The node with some fields changed; it shares the others with the original."""
    return type(node)(**{**dict(ast.iter_fields(node)), **fields})


def _binary(node: ast.BinOp) -> Iterator[Replacement]:
    for operator in ARITHMETIC.get(type(node.op), ()):
        yield "arithmetic", _changed(node, op=operator())
    if isinstance(node.op, ORDERED):
        yield "swapped operands", _changed(node, left=node.right, right=node.left)


def _augmented(node: ast.AugAssign) -> Iterator[Replacement]:
    for operator in ARITHMETIC.get(type(node.op), ()):
        yield "augmented assignment", _changed(node, op=operator())
    assign = ast.Assign(targets=[node.target], value=node.value, lineno=node.lineno)
    yield "augmented assignment", assign


def _compare(node: ast.Compare) -> Iterator[Replacement]:
    for index, before in enumerate(node.ops):
        for operator in COMPARISONS[type(before)]:
            ops = [*node.ops]
            ops[index] = operator()
            yield "comparison", _changed(node, ops=ops)


def _boolean(node: ast.BoolOp) -> Iterator[Replacement]:
    yield "boolean", _changed(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    for index in range(len(node.values)):
        rest = [*node.values[:index], *node.values[index + 1 :]]
        yield "boolean", rest[0] if len(rest) == 1 else _changed(node, values=rest)


def _unary(node: ast.UnaryOp) -> Iterator[Replacement]:
    yield "unary", node.operand


def _constant(node: ast.Constant) -> Iterator[Replacement]:
    value = node.value
    wrong: tuple[Any, ...] = ()
    if isinstance(value, bool):
        wrong = (not value,)
    elif isinstance(value, int | float):
        wrong = (value + 1, value - 1)
    elif isinstance(value, str):
        wrong = ("" if value else "X",)
    for one in wrong:
        yield "constant", ast.Constant(value=one)


def _call(node: ast.Call) -> Iterator[Replacement]:
    name = getattr(node.func, "id", getattr(node.func, "attr", ""))
    if name in SYMMETRIC_CALLS:
        return
    for index in range(len(node.args) - 1):
        first, second = node.args[index : index + 2]
        if not isinstance(first, ast.Starred) and not isinstance(second, ast.Starred):
            args = [*node.args]
            args[index : index + 2] = second, first
            yield "swapped arguments", _changed(node, args=args)
    for index in range(len(node.keywords)):
        rest = [*node.keywords[:index], *node.keywords[index + 1 :]]
        yield "dropped keyword", _changed(node, keywords=rest)


def _slice(node: ast.Slice) -> Iterator[Replacement]:
    if node.lower is not None or node.upper is not None:
        yield "slice", _changed(node, lower=node.upper, upper=node.lower)
    for field in ("lower", "upper", "step"):
        if getattr(node, field) is not None:
            yield "slice", _changed(node, **{field: None})


def _return(node: ast.Return) -> Iterator[Replacement]:
    is_none = isinstance(node.value, ast.Constant) and node.value.value is None
    if node.value is not None and not is_none:
        yield "dropped value", ast.Return(value=None)


def _yield(node: ast.Yield) -> Iterator[Replacement]:
    if node.value is not None:
        yield "dropped value", ast.Yield(value=None)


def _conditional(node: ast.IfExp) -> Iterator[Replacement]:
    yield "conditional", node.body
    yield "conditional", node.orelse


def _break(node: ast.Break) -> Iterator[Replacement]:
    yield "break", ast.Continue()


def _continue(node: ast.Continue) -> Iterator[Replacement]:
    yield "break", ast.Break()


_RULES: dict[type[ast.AST], Callable[[Any], Iterator[Replacement]]] = {
    ast.BinOp: _binary,
    ast.AugAssign: _augmented,
    ast.Compare: _compare,
    ast.BoolOp: _boolean,
    ast.UnaryOp: _unary,
    ast.Constant: _constant,
    ast.Call: _call,
    ast.Slice: _slice,
    ast.Return: _return,
    ast.Yield: _yield,
    ast.IfExp: _conditional,
    ast.Break: _break,
    ast.Continue: _continue,
}
