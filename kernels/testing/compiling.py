"""Compiles cases in processes of their own, several at a time, and remembers the results."""

from __future__ import annotations

import ast
import hashlib
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from queue import SimpleQueue

from kernels.testing.cases import AotCase, CaseId
from kernels.testing.gate import Row

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = "kernels"


@dataclass(frozen=True)
class Job:
    """A case to compile for an architecture."""

    place: CaseId
    case: AotCase
    arch: str

    @property
    def name(self) -> str:
        return f"{self.case.kernel}, {self.case.config}, {self.arch}"


def measure(
    jobs: Sequence[Job],
    workers: int = 2,
    cache: ResultCache | None = None,
    done: Callable[[Job], None] = lambda job: None,
) -> list[Row]:
    """A row for every job, in their order; compiled in processes of their own."""
    pool: SimpleQueue[_Worker] = SimpleQueue()
    for _ in range(workers):
        pool.put(_Worker())

    def one(job: Job) -> Row:
        row = cache.get(job) if cache else None
        if row is None:
            worker = pool.get()
            try:
                row = worker.measure(job)
            finally:
                pool.put(worker)
            if cache and row["status"] == "ok":
                cache.put(job, row)
        done(job)
        return row

    try:
        with ThreadPoolExecutor(workers) as threads:
            return list(threads.map(one, jobs))
    finally:
        while not pool.empty():
            pool.get().close()


def triton_version() -> str:
    return version("triton")


class ResultCache:
    """Rows by a hash of everything that they depend on: the kernel's source, versions, tools."""

    def __init__(self, folder: Path, tools: str = "") -> None:
        self.folder = folder
        self.tools = tools

    @classmethod
    def open(cls) -> ResultCache:
        """In $INFRA_LAB_CACHE, or the user's cache folder."""
        base = os.environ.get("INFRA_LAB_CACHE") or Path(
            os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"), "infra-lab"
        )
        return cls(Path(base) / "aot", _tools())

    def get(self, job: Job) -> Row | None:
        try:
            row: Row = json.loads(self._path(job).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return row

    def put(self, job: Job, row: Row) -> None:
        path = self._path(job)
        path.parent.mkdir(parents=True, exist_ok=True)
        half = path.with_suffix(f".{os.getpid()}")
        half.write_text(json.dumps(row), encoding="utf-8")
        half.replace(path)  # whole or not at all, whoever else writes

    def _path(self, job: Job) -> Path:
        case = job.case
        parts = [
            self.tools, sources_hash(case.function.__module__), job.name,
            case.function.__module__, case.function.__name__,
            sorted(case.arguments.items()), sorted(map(repr, case.constants.items())),
            case.num_warps, case.num_stages, sorted(case.any_alignment),
        ]  # fmt: skip
        return self.folder / f"{hashlib.sha256(repr(parts).encode()).hexdigest()}.json"


class _Worker:
    """A process that compiles, started when first needed and again if it dies."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None
        self._errors = tempfile.TemporaryFile("w+", errors="replace")  # noqa: SIM115  (lives as long)

    def measure(self, job: Job) -> Row:
        process = self._running()
        assert process.stdin is not None
        assert process.stdout is not None
        request = {"module": job.place.module, "index": job.place.index, "arch": job.arch}
        try:
            process.stdin.write(json.dumps(request) + "\n")
            process.stdin.flush()
            answer = process.stdout.readline()
        except BrokenPipeError:
            answer = ""
        if answer:
            row: Row = json.loads(answer)
            return row
        status = process.wait()
        self._process = None
        self._errors.seek(0)
        last_words = self._errors.read()[-1000:].strip()
        return {
            "kernel": job.case.kernel,
            "config": job.case.config,
            "arch": job.arch,
            "status": "failed",
            "reason": f"the compiler's process ended with {status}: {last_words}",
        }

    def close(self) -> None:
        if self._process is not None and self._process.stdin is not None:
            self._process.stdin.close()
            self._process.wait()
        self._errors.close()

    def _running(self) -> subprocess.Popen[str]:
        if self._process is None:
            environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
            environment["PYTHONPATH"] = os.pathsep.join(
                part for part in (str(ROOT), environment.get("PYTHONPATH")) if part
            )
            # Stated, because its default changes in Triton 3.10.
            environment.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
            self._process = subprocess.Popen(
                [sys.executable, "-m", "kernels.testing.aot_worker"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=self._errors,
                text=True,
                env=environment,
            )
        return self._process


def sources_hash(module: str) -> str:
    """Of a module's file and of those of this project that it imports, and so on."""
    digest = hashlib.sha256()
    seen: set[str] = set()
    waiting = [module]
    while waiting:
        name = waiting.pop()
        spec = None if name in seen else importlib.util.find_spec(name)
        seen.add(name)
        if spec is None or spec.origin is None:
            continue
        source = Path(spec.origin).read_bytes()
        digest.update(source)
        waiting += sorted(_imports(ast.parse(source)))
    return digest.hexdigest()


def _imports(tree: ast.AST) -> set[str]:
    """The modules of this project that a module's source names in its imports."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
            if node.module == PACKAGE:
                names |= {f"{PACKAGE}.{alias.name}" for alias in node.names}
    return {name for name in names if name.split(".")[0] == PACKAGE}


def _tools() -> str:
    """What compiles and measures: versions, overruled assemblers, and the code of the gate."""
    digest = hashlib.sha256(f"{triton_version()} {sys.version_info[:2]}".encode())
    for name in ("aot_worker", "architectures", "machine_code"):
        digest.update(Path(__file__).with_name(f"{name}.py").read_bytes())
    chosen = {k: v for k, v in os.environ.items() if k.startswith(("TRITON_PTXAS", "PTXAS"))}
    digest.update(repr(sorted(chosen.items())).encode())
    return digest.hexdigest()
