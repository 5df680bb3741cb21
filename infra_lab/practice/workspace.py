"""The learner's folder: `work/<slug>/solution.py`, and the attempts that were set aside.

Nothing here ever writes over what a learner wrote.
"""

from __future__ import annotations

import os
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from infra_lab.errors import InfraLabError
from infra_lab.practice.catalog import default_root
from infra_lab.practice.problem import Problem


class WorkspaceError(InfraLabError):
    """The learner's folder cannot be read or written."""


@dataclass(frozen=True, slots=True)
class Workspace:
    """All attempts of one learner, a folder each problem."""

    folder: Path

    @classmethod
    def default(cls) -> Workspace:
        return cls(default_root() / "work")

    def attempt(self, slug: str) -> Path:
        """The file that the learner edits, there or not."""
        return self.folder / slug / "solution.py"

    def start(self, problem: Problem) -> bool:
        """Copies the starter; False if there is an attempt already, which stays as it is."""
        path = self.attempt(problem.slug)
        if path.exists():
            return False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            return _publish(problem.starter, path)
        except OSError as error:
            raise WorkspaceError(f"cannot write {path}: {error.strerror}") from None

    def reset(self, problem: Problem) -> Path | None:
        """Puts the starter in the attempt's place.

        Returns:
            where the attempt is kept, or None if it had not been touched.
        """
        path = self.attempt(problem.slug)
        try:
            if path.read_bytes() == problem.starter.read_bytes():
                return None
            kept = self._keep(path)
            _copy_beside(problem.starter, path).replace(path)
        except OSError as error:
            raise WorkspaceError(f"cannot reset {path}: {error.strerror}") from None
        return kept

    def kept_attempts(self, slug: str) -> list[Path]:
        """Those set aside by `reset`, oldest first."""
        return sorted(
            (self.folder / slug / "attempts").glob("[0-9]*.py"), key=lambda path: int(path.stem)
        )

    def _keep(self, path: Path) -> Path:
        """A copy under the next free number, whole on the disk before this returns."""
        folder = path.parent / "attempts"
        folder.mkdir(exist_ok=True)
        earlier = self.kept_attempts(path.parent.name)
        number = int(earlier[-1].stem) + 1 if earlier else 1
        while not _publish(path, kept := folder / f"{number:03}.py"):
            number += 1  # another process took that number
        return kept


def _publish(source: Path, target: Path) -> bool:
    """Copies the file; False if the target is there already. It appears whole or not at all."""
    copy = _copy_beside(source, target)
    try:
        os.link(copy, target)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        try:
            with target.open("xb") as file:
                file.write(source.read_bytes())
        except FileExistsError:
            return False
    finally:
        with suppress(OSError):
            copy.unlink()
    return True


def _copy_beside(source: Path, target: Path) -> Path:
    """A copy in the target's folder, under a name of its own."""
    copy = target.with_name(f".{target.stem}-{os.urandom(8).hex()}.tmp")
    try:
        with copy.open("xb") as file:
            file.write(source.read_bytes())
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        copy.unlink(missing_ok=True)
        raise
    return copy
