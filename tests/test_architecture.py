"""The house rules that a reader may rely on: who imports whom, and what starts without torch."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "infra_lab"
MAX_LINES = 400

# Modules at the package root: the words that every part may use.
VOCABULARY = {
    "errors",
    "config",
    "speculative_config",
    "step",
    "sampling_params",
    "structured_outputs",
    "outputs",
    "kernels_guard",
    "paths",
    "figures",
    "texts",
}

# Direct edges; what lies below a neighbour may be imported too, what lies above may not.
EDGES: dict[str, set[str]] = {
    "cli": {"practice", "engine", "claims", "bench", "server", "quantization"},
    "server": {"engine"},
    "bench": {"engine", "quantization"},
    "claims": {"calculators", "engine", "quantization"},
    "engine": {"worker", "cache", "speculative"},
    "worker": {"models", "sampling"},
    "models": {"layers"},
    "quantization": {"models", "kernels"},
    "layers": {"attention", "native", "formats"},
    "attention": {"kernels", "native"},
    "agent": set(),
    "cache": set(),
    "calculators": set(),
    "distributed": {"worker", "cache"},
    "formats": set(),
    "kernels": set(),
    "native": set(),
    "practice": set(),
    "sampling": {"kernels"},
    "speculative": {"worker"},
}

TORCH_FREE = [
    "infra_lab",
    "infra_lab.cli.main",
    "infra_lab.cli.models",
    "infra_lab.cli.calc",
    "infra_lab.cli.claims",
    "infra_lab.cli.doctor",
    "infra_lab.cli.list",
    "infra_lab.cli.next",
    "infra_lab.cli.start",
    "infra_lab.cli.test",
    "infra_lab.cli.watch",
    "infra_lab.cli.hint",
    "infra_lab.cli.reset",
    "infra_lab.cli.solution",
    "infra_lab.cli.status",
    "infra_lab.cli.eval",
    "infra_lab.cli.quantize",
    "infra_lab.quantization.likelihood",
    "infra_lab.quantization.settings",
    "infra_lab.models.store",
    "infra_lab.models.config",
    "infra_lab.models.parameters",
    "infra_lab.kernels_guard",
    "infra_lab.engine.speculation",
    "infra_lab.speculative.acceptance",
    "infra_lab.speculative.draft_blocks",
    "infra_lab.speculative.draft_length",
    "infra_lab.speculative.ngram",
    "infra_lab.speculative.proposer",
]
TORCH_FREE_PATTERNS = [
    "cache/*.py",
    "engine/scheduler.py",
    "engine/request*.py",
    "engine/policies.py",
    "engine/simulation.py",
    "engine/traces.py",
    "calculators/*.py",
    "claims/**/*.py",
]
# The engine's own parts may use these; a start-up that loads them has lost its second.
HEAVY = {"torch", "transformers", "huggingface_hub", "gguf", "triton", "numpy"}


def sources() -> list[Path]:
    return sorted([*PACKAGE.rglob("*.py"), *(ROOT / "kernels").rglob("*.py")])


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imports(path: Path) -> Iterator[tuple[int, str]]:
    """Line and full name of every import, also of those inside functions."""
    package = module_name(path) if path.name == "__init__.py" else module_name(path.parent / "x")
    if path.name != "__init__.py":
        package = package.rpartition(".")[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield node.lineno, alias.name
        elif isinstance(node, ast.ImportFrom):
            base = package.split(".")[: len(package.split(".")) - node.level + 1]
            prefix = ".".join(base) if node.level else ""
            stem = ".".join(part for part in (prefix, node.module) if part)
            for alias in node.names:
                yield node.lineno, f"{stem}.{alias.name}"


def reachable(part: str) -> set[str]:
    found: set[str] = set()
    waiting = [part]
    while waiting:
        for below in EDGES[waiting.pop()] - found:
            found.add(below)
            waiting.append(below)
    return found


def part_of(name: str) -> str | None:
    """The part of the house that a module belongs to; None for other people's modules."""
    pieces = name.split(".")
    if pieces[0] == "kernels":
        return "kernels"
    if pieces[0] != "infra_lab":
        return None
    return pieces[1] if len(pieces) > 1 else "infra_lab"


def test_every_package_has_its_place_in_the_import_order() -> None:
    packages = {folder.name for folder in PACKAGE.iterdir() if (folder / "__init__.py").is_file()}
    assert packages <= set(EDGES), "give the new package its place in EDGES and in the design"


def test_the_import_order_has_no_cycle() -> None:
    assert [part for part in EDGES if part in reachable(part)] == []


def test_nothing_imports_upward() -> None:
    wrong = []
    for path in sources():
        part = part_of(module_name(path))
        if part not in EDGES:
            continue
        allowed = {part, "__version__"} | reachable(part) | VOCABULARY
        for line, name in imports(path):
            target = part_of(name)
            if target is not None and target not in allowed:
                wrong.append(f"{path.relative_to(ROOT)}:{line} imports {name}")
    assert wrong == []


def test_the_vocabulary_imports_only_itself() -> None:
    wrong = []
    for name in VOCABULARY:
        for line, target in imports(PACKAGE / f"{name}.py"):
            part = part_of(target)
            top = target.split(".")[0]
            foreign = part is None and top not in sys.stdlib_module_names | {
                "platformdirs",
                "matplotlib",
                "cycler",
            }
            if foreign or (part is not None and part not in VOCABULARY):
                wrong.append(f"{name}.py:{line} imports {target}")
    assert wrong == []


def test_kernels_import_only_torch_triton_and_numbers() -> None:
    allowed = {"torch", "triton", "numpy", "ml_dtypes", "kernels", *sys.stdlib_module_names}
    wrong = [
        f"{path.relative_to(ROOT)}:{line} imports {name}"
        for path in (ROOT / "kernels").rglob("*.py")
        for line, name in imports(path)
        if name.split(".")[0] not in allowed
    ]
    assert wrong == []


def test_no_file_is_too_long_to_read_in_one_sitting() -> None:
    long = {
        str(path.relative_to(ROOT)): lines
        for path in sources()
        if (lines := len(path.read_text(encoding="utf-8").splitlines())) > MAX_LINES
    }
    assert long == {}


def test_every_module_says_what_it_is() -> None:
    silent = [
        str(path.relative_to(ROOT))
        for path in sources()
        if (text := path.read_text(encoding="utf-8")).strip()
        and ast.get_docstring(ast.parse(text)) is None
    ]
    assert silent == []


def torch_free_modules() -> list[str]:
    found = [module_name(path) for glob in TORCH_FREE_PATTERNS for path in PACKAGE.glob(glob)]
    return sorted({*TORCH_FREE, *found})


def test_accounting_and_the_command_start_without_torch() -> None:
    """One child for all: whatever one of them drags in shows up, with the first to blame."""
    program = (
        "import importlib, json, sys\n"
        "heavy, blame = set(json.loads(sys.argv[2])), {}\n"
        "for name in json.loads(sys.argv[1]):\n"
        "    before = heavy & set(sys.modules)\n"
        "    importlib.import_module(name)\n"
        "    new = (heavy & set(sys.modules)) - before\n"
        "    if new: blame[name] = sorted(new)\n"
        "print(json.dumps(blame))\n"
    )
    arguments = [json.dumps(torch_free_modules()), json.dumps(sorted(HEAVY))]
    assert json.loads(run_python(program, *arguments)) == {}


@pytest.mark.parametrize("argument", ["--help", "--version"])
def test_the_first_answer_of_the_command_imports_nothing_large(argument: str) -> None:
    program = (
        "import sys, json\n"
        "from infra_lab.cli.main import main\n"
        "try: main([sys.argv[1]])\n"
        "except SystemExit: pass\n"
        "print(json.dumps(sorted({name.split('.')[0] for name in sys.modules})), file=sys.stderr)\n"
    )
    result = subprocess.run(
        [sys.executable, "-c", program, argument], cwd=ROOT, capture_output=True, text=True
    )
    loaded = set(json.loads(result.stderr.splitlines()[-1]))
    assert loaded & (HEAVY | {"typer", "rich", "click", "asyncio"}) == set()


def run_python(program: str, *arguments: str) -> str:
    result = subprocess.run(
        [sys.executable, "-c", program, *arguments], cwd=ROOT, capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    return result.stdout
