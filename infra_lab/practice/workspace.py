"""The learner's folder: `work/<slug>/solution.py`, and the attempts that were set aside.

Nothing here ever writes over what a learner wrote.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
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
            with _copy_beside(problem.starter, path) as copy:
                return _place(copy, path)
        except OSError as error:
            raise WorkspaceError(f"cannot write {path}: {error.strerror}") from None

    def reset(self, problem: Problem) -> Path | None:
        """Puts the starter in the attempt's place.

        Returns:
            where the attempt is kept, or None if it had not been touched.
        """
        path = self.attempt(problem.slug)
        kept = None
        try:
            if path.read_bytes() == problem.starter.read_bytes():
                return None
            # The starter is copied first: on a full disk the attempt stays where it is.
            with _copy_beside(problem.starter, path) as copy:
                kept = self._set_aside(path)
                while not _place(copy, path):
                    kept = self._set_aside(path)  # an editor saved once more
        except OSError as error:
            where = f"; the attempt is kept as {kept}" if kept else ""
            raise WorkspaceError(f"cannot reset {path}: {error.strerror}{where}") from None
        return kept

    def kept_attempts(self, slug: str) -> list[Path]:
        """Those set aside by `reset`, oldest first."""
        files = (self.folder / slug / "attempts").glob("[0-9]*.py")
        numbered = (path for path in files if path.stem.isdecimal())  # 1_old.py is a learner's own
        return sorted(numbered, key=lambda path: int(path.stem))

    def _set_aside(self, path: Path) -> Path:
        """Moves the attempt to the next free number. It is moved and not copied, so that no
        save can fall between the copy and the removal."""
        folder = path.parent / "attempts"
        folder.mkdir(exist_ok=True)
        earlier = self.kept_attempts(path.parent.name)
        number = int(earlier[-1].stem) + 1 if earlier else 1
        while not _claim(kept := folder / f"{number:03}.py"):
            number += 1  # another process took that number
        try:
            if path.is_symlink():  # moved, a relative link would point to nothing
                kept.write_bytes(path.read_bytes())
                path.unlink()
            else:
                path.replace(kept)
        except OSError:
            kept.unlink(missing_ok=True)
            raise
        return kept


def _claim(path: Path) -> bool:
    """Makes an empty file; False if one is there already."""
    try:
        path.open("xb").close()
    except FileExistsError:
        return False
    return True


def _place(copy: Path, target: Path) -> bool:
    """Gives the copy its name; False if the target is there already."""
    try:
        os.link(copy, target)
    except FileExistsError:
        return False
    except OSError:  # a file system without hard links
        try:
            with target.open("xb") as file:
                file.write(copy.read_bytes())
        except FileExistsError:
            return False
    return True


@contextmanager
def _copy_beside(source: Path, target: Path) -> Iterator[Path]:
    """A copy in the target's folder, under a name of its own, whole on the disk; it is removed
    when the block ends."""
    copy = target.with_name(f".{target.stem}-{os.urandom(8).hex()}.tmp")
    try:
        with copy.open("xb") as file:
            file.write(source.read_bytes())
            file.flush()
            os.fsync(file.fileno())
        yield copy
    finally:
        with suppress(OSError):
            copy.unlink(missing_ok=True)
