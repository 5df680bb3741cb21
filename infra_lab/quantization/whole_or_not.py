"""Files and folders that appear under their name when they are whole, or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from infra_lab.errors import UsageError


@contextmanager
def new_folder(out: Path) -> Iterator[Path]:
    """A temporary sibling to fill, which becomes `out` if nothing was raised.

    Raises UsageError when there is something at `out` already.
    """
    with _sibling(out) as work:
        yield work
        work.replace(out)


@contextmanager
def new_file(out: Path) -> Iterator[Path]:
    """A name to write a file under, which becomes `out` likewise."""
    with _sibling(out) as work:
        yield work / out.name
        (work / out.name).replace(out)


@contextmanager
def _sibling(out: Path) -> Iterator[Path]:
    if out.exists():
        raise UsageError(f"{out} is there already: give another name, or remove it first")
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{out.name}-", dir=out.parent))
    except OSError as error:
        raise UsageError(f"{out.parent} cannot be written to: {error}") from error
    try:
        umask = os.umask(0)
        os.umask(umask)
        work.chmod(0o777 & ~umask)  # mkdtemp shuts others out; the result is an ordinary folder
        yield work
    finally:
        shutil.rmtree(work, ignore_errors=True)
