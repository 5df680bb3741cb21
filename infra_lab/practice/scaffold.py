"""Makes the two folders of a new problem, which load and grade from the first minute.

Every file that the author must still write says so with the word TODO; `infra-lab dev check`
lists those, and what is missing.
"""

from __future__ import annotations

import ast
import keyword
import re
from pathlib import Path
from textwrap import dedent

from infra_lab.errors import UsageError
from infra_lab.practice.catalog import default_root
from infra_lab.practice.problem import LEVELS, TRACKS, load_problem

SLUG = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
NUMBER = re.compile(r"^number\s*=\s*(\d+)", re.MULTILINE)
GRADER_NAMES = ("solution", "oracle")  # what the grader's test itself names
CALL_NAMES = ("self", "name")  # what `Solution.call` itself takes, beside the keywords it passes


def scaffold(
    slug: str,
    signature: str | None = None,
    track: str = TRACKS[0],
    level: str = LEVELS[0],
    root: Path | None = None,
) -> list[Path]:
    """Writes problems/<slug> and solutions/<slug>, and returns the files.

    Args:
        signature: of the entry point, `name(parameters) -> result`; by default it bears the
            slug's name and takes and gives an int.

    Raises UsageError for a bad name or signature, or where one of the folders is there already.
    """
    root = root or default_root()
    if not SLUG.fullmatch(slug) or keyword.iskeyword(slug):
        raise UsageError(
            "a problem's name is lower-case words joined by underscores, as ring_walk, "
            f"not {slug!r}"
        )
    for name, value, known in (("track", track, TRACKS), ("level", level, LEVELS)):
        if value not in known:
            raise UsageError(f"{name} must be one of {', '.join(known)}, not {value!r}")
    problem, solutions = root / "problems" / slug, root / "solutions" / slug
    for folder in (problem, solutions):
        if folder.exists():
            raise UsageError(f"{folder} is there already: choose another name")
    function = _parse(signature or f"{slug}(value: int) -> int")
    title = slug.replace("_", " ").capitalize()
    texts = _texts(title, function, track, level, _next_number(root))
    written = []
    for name, text in texts.items():
        path = root / name.format(problem=f"problems/{slug}", solutions=f"solutions/{slug}")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8", newline="\n")
        written.append(path)
    for name in ("mutants", "accepted"):
        (problem / name).mkdir()
    load_problem(problem, root / "solutions")
    return written


def _parse(signature: str) -> ast.FunctionDef:
    source = f"def {signature}: ..."
    try:
        (node,) = ast.parse(source).body
        compile(source, "signature", "exec")  # which sees two parameters of one name
    except (SyntaxError, ValueError):
        node = ast.Pass()
    if not isinstance(node, ast.FunctionDef) or node.returns is None:
        raise UsageError(
            "a signature is name(parameters) -> result, as "
            f'"two_sum(numbers: list[int], target: int) -> list[int]", not {signature!r}'
        )
    for one in ast.walk(node.args):
        if isinstance(one, ast.arg) and one.arg in GRADER_NAMES:
            raise UsageError(
                f"a parameter cannot be named {one.arg!r}, which the grader uses: choose another"
            )
    for one in node.args.kwonlyargs:
        if one.arg in CALL_NAMES:
            raise UsageError(
                f"a keyword-only parameter cannot be named {one.arg!r}, which Solution.call "
                "takes itself: choose another"
            )
    return node


def _next_number(root: Path) -> int:
    """One more than the highest; a damaged folder does not hinder a new one."""
    numbers = [0]
    for path in (root / "problems").glob("*/problem.toml"):
        found = NUMBER.search(path.read_text(encoding="utf-8", errors="replace"))
        numbers += [int(found[1])] if found else []
    return max(numbers) + 1


def _texts(
    title: str, function: ast.FunctionDef, track: str, level: str, number: int
) -> dict[str, str]:
    """File name -> text, all of them."""
    assert function.returns is not None
    name = function.name
    signature = f"{name}({ast.unparse(function.args)}) -> {ast.unparse(function.returns)}"
    stub = dedent('''\
        """{title}. TODO: {module}"""

        from __future__ import annotations
        {imports}

        def {signature}:
            """TODO: what it returns, and what it raises."""
            raise NotImplementedError
        ''')
    statement = dedent("""\
        # {title}

        TODO: {task}

        ## {interface}
        `{signature}`

        ## {examples}
        ```python
        >>> callable({name})  # TODO
        True
        ```

        ## {constraints}
        - TODO

        ## {follow_ups}
        - TODO
        """)
    en = {
        "task": "the task, precise about edge cases: what a grader rejects follows from here.",
        "interface": "Interface",
        "examples": "Examples",
        "constraints": "Constraints",
        "follow_ups": "Follow-ups",
    }
    zh = {
        "task": "题目描述。边界情况要写清楚：评分器拒绝的，都应能从这里推出。",
        "interface": "接口",
        "examples": "示例",
        "constraints": "约束",
        "follow_ups": "进阶",
    }
    common = {"title": title, "signature": signature, "name": name}
    common["imports"] = "\nimport numpy as np\n" if _uses_numpy(function) else ""
    return {
        "{problem}/problem.toml": _toml(title, function, signature, track, level, number),
        "{problem}/README.md": statement.format(**common, **en),
        "{problem}/README.zh.md": statement.format(**common, **zh),
        "{problem}/starter.py": stub.format(**common, module="where the statement is."),
        "{problem}/grader.py": _grader(title, name, function.args),
        "{problem}/hints.toml": "\n".join(_HINT.format(tier=tier) for tier in _TIERS),
        "{problem}/interview.toml": _INTERVIEW,
        "{solutions}/solution.py": stub.format(**common, module="the idea, its time and space."),
        "{solutions}/approach_other.py": stub.format(**common, module="another idea."),
        "{solutions}/notes.md": f"# {title}\n\nTODO: the approaches compared; common mistakes.\n",
        "{solutions}/notes.zh.md": f"# {title}\n\nTODO：各种解法的比较；常见错误。\n",
    }


def _uses_numpy(node: ast.AST) -> bool:
    return any(isinstance(one, ast.Name) and one.id == "np" for one in ast.walk(node))


def _toml(
    title: str, function: ast.FunctionDef, signature: str, track: str, level: str, number: int
) -> str:
    requires = '["numpy"]' if _uses_numpy(function) else "[]"
    signature = signature.replace("\\", "\\\\").replace('"', '\\"')
    return dedent(f"""\
        number = {number}
        title = {{ en = "{title}", zh = "TODO" }}
        summary = {{ en = "TODO: one sentence.", zh = "TODO：一句话。" }}
        track = "{track}"
        level = "{level}"
        frequency = 1  # TODO: 1 (rare) to 5 (asked everywhere)
        tags = []
        companies = []
        sources = []
        requires = {requires}

        [[entry]]
        name = "{function.name}"
        signature = "{signature}"
        """)


def _grader(title: str, name: str, args: ast.arguments) -> str:
    """Each parameter is drawn and passed, but for *args and **kwargs."""
    positional, keywords = [*args.posonlyargs, *args.args], args.kwonlyargs
    parameters = [*positional, *keywords]
    passed = ", ".join(
        [*(one.arg for one in positional), *(f"{one.arg}={one.arg}" for one in keywords)]
    )
    strategies = ", ".join(f"{one.arg}={_strategy(one.annotation)}" for one in parameters)
    typed = "".join(f", {ast.unparse(one)}" for one in parameters)
    plain = ", ".join(
        [*map(ast.unparse, positional), *(["*"] if keywords else []), *map(ast.unparse, keywords)]
    )
    given = f"@given({strategies})\n" if parameters else ""
    hypothesis = (
        "from hypothesis import given\nfrom hypothesis import strategies as st\n\n"
        if parameters
        else ""
    )
    numpy = "import numpy as np\n" if any(map(_uses_numpy, parameters)) else ""
    arguments = f", {passed}" if passed else ""
    return (
        f'"""Grades {title.lower()}. TODO: against what."""\n\n'
        "from __future__ import annotations\n\n"
        "from typing import Any\n\n"
        f"{numpy}{hypothesis}"
        "from infra_lab.practice.kit import Solution, states\n\n\n"
        f"def oracle({plain}) -> Any:\n"
        '    """TODO: brute force, an exact law or published numbers; not the solution."""\n'
        "    return None\n\n\n"
        '@states("TODO: the property, as a sentence", "TODO：一句话说明性质")\n'
        f"{given}"
        f"def test_agrees_with_the_oracle(solution: Solution{typed}) -> None:\n"
        f'    solution.call("{name}"{arguments}).equals(oracle({passed}))\n'
    )


def _strategy(annotation: ast.expr | None) -> str:
    """A first guess, which the author narrows."""
    known = {
        "int": "st.integers(0, 9)",
        "float": "st.floats(-9, 9)",
        "bool": "st.booleans()",
        "str": 'st.text("ab", max_size=6)',
    }
    if annotation is None:
        return known["int"]
    text = ast.unparse(annotation)
    for kind, strategy in known.items():
        if text == f"list[{kind}]":
            return f"st.lists({strategy}, max_size=6)"
    return known.get(text, "st.none()")


_TIERS = ("a nudge", "the idea", "the plan")
_HINT = """\
[[hint]]
en = "TODO: {tier}."
zh = "TODO"
"""
_INTERVIEW = """\
minutes = 15

[[follow_up]]
question = { en = "TODO", zh = "TODO" }
answer = { en = "TODO", zh = "TODO" }

[[rubric]]
text = { en = "TODO: communication", zh = "TODO" }

[[rubric]]
text = { en = "TODO: problem solving", zh = "TODO" }

[[rubric]]
text = { en = "TODO: technical", zh = "TODO" }

[[rubric]]
text = { en = "TODO: testing", zh = "TODO" }
"""
