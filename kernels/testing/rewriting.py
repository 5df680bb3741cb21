"""A kernel's Python source, changed so that running it means what compiling it means.

Triton's interpreter turns assigned numbers into tensors. It leaves `and`, `or` and `not` to
Python, which asks a whole block for one truth value; the compiler takes them lane by lane, and so
does this.
"""

from __future__ import annotations

import ast
import inspect
from collections.abc import Callable
from functools import lru_cache
from types import CodeType
from typing import Any

import triton.language as tl
from triton.runtime import interpreter as stock

_LOGICAL = {ast.And: "_infra_lab_and", ast.Or: "_infra_lab_or"}
_NOT = "_infra_lab_not"


def rewritten(function: Callable[..., Any], semantic: Any) -> Callable[..., Any]:
    """`function` as the interpreter runs it; the module that it comes from stays untouched."""
    namespace = {
        **vars(stock),  # names that the rewritten source calls, by version
        **function.__globals__,
        **inspect.getclosurevars(function).nonlocals,
        "interpreter_semantic": semantic,
        "_infra_lab_and": _logical_and,
        "_infra_lab_or": _logical_or,
        _NOT: _logical_not,
    }
    exec(_code(function), namespace)
    found: Callable[..., Any] = namespace[function.__name__]
    return found


@lru_cache(maxsize=1024)
def _code(function: Callable[..., Any]) -> CodeType:
    code = _Rewriter(function).rewrite_ast()
    if not isinstance(code, CodeType):  # Triton's rewriter found no source and gives up so
        raise OSError(f"the source of {function.__qualname__} is not in a file")
    return code


class _Rewriter(stock.FunctionRewriter):  # type: ignore[misc]
    """Triton's rewriter, up to the code of a module that defines the function."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__(function)
        self.ast_transformer = _Transformer()

    def _compile_and_exec(self, tree: Any) -> CodeType:
        return compile(tree, filename=self.filename, mode="exec")


class _Transformer:
    """Logic first, then what Triton's own transformer does, which skips some subtrees."""

    def visit(self, tree: ast.AST) -> Any:
        return stock.ASTTransformer().visit(_LogicTransformer().visit(tree))


class _LogicTransformer(ast.NodeTransformer):
    def visit_BoolOp(self, node: ast.BoolOp) -> ast.AST:
        self.generic_visit(node)
        nothing = ast.arguments(posonlyargs=[], args=[], kwonlyargs=[], kw_defaults=[], defaults=[])
        operands: list[ast.expr] = [ast.Lambda(args=nothing, body=value) for value in node.values]
        return _call(_LOGICAL[type(node.op)], operands, node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> ast.AST:
        self.generic_visit(node)
        return _call(_NOT, [node.operand], node) if isinstance(node.op, ast.Not) else node

    def visit_Compare(self, node: ast.Compare) -> ast.AST:
        self.generic_visit(node)
        if len(node.ops) > 1 and not hasattr(stock, "_InterpreterComparison"):
            raise NotImplementedError(
                f"line {node.lineno}: this Triton compiles no chained comparison: write a & b"
            )
        return node


def _call(name: str, arguments: list[ast.expr], node: ast.AST) -> ast.AST:
    call = ast.Call(func=ast.Name(id=name, ctx=ast.Load()), args=arguments, keywords=[])
    return ast.copy_location(call, node)


def _logical_and(*operands: Callable[[], Any]) -> Any:
    result = operands[0]()
    for operand in operands[1:]:
        if isinstance(result, tl.tensor):
            result = result.logical_and(operand())
        elif result:
            result = operand()
        else:
            break
    return result


def _logical_or(*operands: Callable[[], Any]) -> Any:
    result = operands[0]()
    for operand in operands[1:]:
        if isinstance(result, tl.tensor):
            result = result.logical_or(operand())
        elif not result:
            result = operand()
        else:
            break
    return result


def _logical_not(operand: Any) -> Any:
    return operand.__not__() if isinstance(operand, tl.tensor) else not operand
