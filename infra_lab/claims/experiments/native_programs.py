"""Small C++ programs that are compiled and run, in a folder that goes away.

What a process ended with is told as a shell tells it: 128 + the signal's number. Every compiler
and every program has a time limit; no program leaves a core file unless it is asked to.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from infra_lab.claims.experiments.needs import compiler
from infra_lab.errors import InfraLabError

SEGMENTATION_FAULT = 128 + 11
BUS_ERROR = 128 + 7
ABORTED = 128 + 6
KILLED = 128 + 9
COMPILE_LIMIT_S = 60
RUN_LIMIT_S = 20
_TIMED_OUT = 124  # as timeout(1) says it


@dataclass(frozen=True, slots=True)
class Ended:
    """How a process ended: its status as a shell has it, and what it wrote."""

    status: int
    out: str
    err: str

    @property
    def has_crashed(self) -> bool:
        """Whether the hardware stopped it."""
        return self.status in (SEGMENTATION_FAULT, BUS_ERROR)

    def number(self, name: str) -> float | None:
        """The number behind `name` at the start of a line of its output."""
        for line in self.out.splitlines():
            word, _, rest = line.partition(" ")
            if word == name:
                return float(rest)
        return None


@dataclass(frozen=True, slots=True)
class Built:
    """A program, None where it did not compile, and what the compiler wrote."""

    program: Path | None
    messages: str


class Workshop:
    """A folder with a compiler. Attributes: kind ("gcc" or "clang"), version (its first line)."""

    def __init__(self, folder: Path, compiler_path: str) -> None:
        self.folder = folder
        self._compiler = compiler_path
        self._count = 0
        self.version = (run_command([compiler_path, "--version"]).out.splitlines() or [""])[0]
        self.kind = "clang" if "clang" in self.version.lower() else "gcc"

    def build(self, source: str, *flags: str) -> Built:
        """Compiles `programs/SOURCE.cpp` to a program of its own."""
        self._count += 1
        program = self.folder / f"{source}-{self._count}"
        text = self._source(source)
        ended = run_command(
            [self._compiler, *flags, str(text), "-o", str(program)], limit_s=COMPILE_LIMIT_S
        )
        return Built(program if ended.status == 0 else None, ended.err)

    def built(self, source: str, *flags: str) -> Path:
        """As `build`. Raises InfraLabError with the compiler's words where it fails."""
        found = self.build(source, *flags)
        if found.program is None:
            raise InfraLabError(
                f"{self._compiler} cannot compile {source}.cpp with {' '.join(flags)}: "
                f"{found.messages.strip()[-400:]}"
            )
        return found.program

    def assembly(self, source: str, *flags: str) -> str:
        """The instructions that a source becomes."""
        target = self.folder / f"{source}.s"
        run_command(
            [self._compiler, "-S", *flags, str(self._source(source)), "-o", str(target)],
            limit_s=COMPILE_LIMIT_S,
        )
        return target.read_text(encoding="utf-8") if target.exists() else ""

    def defines(self, macro: str) -> bool:
        """Whether the compiler's library defines a macro."""
        probe = self.folder / "probe.cpp"
        probe.write_text("#include <vector>\n", encoding="utf-8")
        listed = run_command([self._compiler, "-std=c++20", "-dM", "-E", str(probe)])
        return f"#define {macro} " in listed.out

    def run(
        self,
        program: Path,
        *arguments: object,
        environment: Mapping[str, str] | None = None,
        limit_s: float = RUN_LIMIT_S,
    ) -> Ended:
        """Runs a program in the folder. Raises InfraLabError where it takes longer than it may."""
        ended = run_command(
            [str(program), *map(str, arguments)],
            folder=self.folder,
            environment=environment,
            limit_s=limit_s,
        )
        if ended.status == _TIMED_OUT:
            raise InfraLabError(f"{program.name} was {ended.err}: try again on a quieter machine")
        return ended

    def measured(self, ended: Ended, name: str) -> float:
        """The number behind `name`. Raises InfraLabError, with what was written, without one."""
        found = ended.number(name)
        if found is None:
            raise InfraLabError(
                f"a program printed no {name!r} (status {ended.status}): "
                f"{(ended.out + ended.err).strip()[-200:]!r}"
            )
        return found

    def _source(self, name: str) -> Path:
        target = self.folder / f"{name}.cpp"
        if not target.exists():
            target.write_text(source_text(name), encoding="utf-8")
        return target


@contextmanager
def workshop() -> Iterator[Workshop]:
    """A workshop in a temporary folder. Raises InfraLabError where no C++ compiler is found."""
    found = compiler()
    if found is None:
        raise InfraLabError("there is no C++ compiler: install g++ (or clang++) and try again")
    with tempfile.TemporaryDirectory(prefix="infra-lab-") as folder:
        yield Workshop(Path(folder), found)


def source_text(name: str) -> str:
    """A program's source."""
    folder = files("infra_lab.claims.experiments.programs")
    return folder.joinpath(f"{name}.cpp").read_text(encoding="utf-8")


def run_command(
    command: Sequence[str],
    folder: Path | None = None,
    environment: Mapping[str, str] | None = None,
    limit_s: float = RUN_LIMIT_S,
    core_limit: str = "0",
) -> Ended:
    """Runs a command; a time limit that is passed gives status 124. No core file by default."""
    wrapped = ["sh", "-c", f'ulimit -c {core_limit} 2>/dev/null; exec "$0" "$@"', *command]
    try:
        done = subprocess.run(
            wrapped,
            cwd=folder,
            env={**_plain_environment(), **(environment or {})},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=limit_s,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Ended(_TIMED_OUT, "", f"still running after {limit_s:g} s")
    status = done.returncode if done.returncode >= 0 else 128 - done.returncode
    return Ended(status, _text(done.stdout), _text(done.stderr))


def tool(name: str) -> str | None:
    """The path of a tool that an experiment can do without; None where there is none."""
    return shutil.which(name)


def _plain_environment() -> dict[str, str]:
    """This process's, in English and without settings of sanitizers or the allocator."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("ASAN_", "TSAN_", "UBSAN_", "LSAN_", "MALLOC_", "GLIBC_"))
    }
    return {**kept, "LC_ALL": "C"}


def _text(written: bytes) -> str:
    return written.decode("utf-8", "replace")
