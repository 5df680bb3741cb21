"""A list of forbidden commands against a list of allowed ones, with real commands in a folder of
their own.

Answers "how do you keep an agent's shell from doing harm?". Every command runs in a fresh temporary
folder with one precious file; what counts is whether it is still there, unchanged. All names are
relative to that folder, and the environment has no other.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from infra_lab.errors import InfraLabError

_LIMIT_S = 10
_PRECIOUS = "the only copy\n"
FORBIDDEN = ("rm -rf", "rm -r", "rm -f", "rmdir", "mkfs", "dd if=", "shutdown", ":(){")
ALLOWED = frozenset({"cat", "ls", "wc", "head", "grep", "echo"})

HARMLESS: Mapping[str, str] = {
    "list": "ls work",
    "read": "cat work/precious.txt",
    "count": "wc -l work/precious.txt",
    "begin": "head -n 1 work/precious.txt",
    "search": "grep 'rm -rf' notes.txt",
}
HARMFUL: Mapping[str, str] = {
    "plain": "rm -rf work",
    "long options": "rm --recursive --force work",
    "split name": "r''m -rf work",
    "substitution": "$(printf r; printf m) -rf work",
    "variable": "options=-rf; rm $options work",
    "encoding": "printf '\\162\\155 -\\162\\146 work' | sh",
    "script": "printf 'rm -%s work' rf > step.sh; sh step.sh",
    "another command": "find work -delete",
    "one by one": "unlink work/precious.txt",
    "through a pipe": "echo work/precious.txt | xargs rm",
    "emptied": ": > work/precious.txt",
    "overwritten": "cp /dev/null work/precious.txt",
    "moved away": "mv work elsewhere",
}


@dataclass(frozen=True, slots=True)
class Ran:
    """Whether a command was let through, ended well, and left the file as it was."""

    allowed: bool
    succeeded: bool
    intact: bool


def forbidden(command: str) -> bool:
    """Whether a list of forbidden words stops it."""
    return any(word in command.lower() for word in FORBIDDEN)


def allowed_words(command: str) -> list[str] | None:
    """The words of a command that a list of allowed ones lets through: an allowed program, paths
    inside the folder, and no shell to read anything else into them; None for any other."""
    try:
        words = shlex.split(command)
    except ValueError:
        return None
    if not words or words[0] not in ALLOWED:
        return None
    outside = any(word.startswith("/") or ".." in Path(word).parts for word in words[1:])
    return None if outside else words


def under_denylist(command: str) -> Ran:
    """As most examples do it: look for forbidden words, then give the line to a shell."""
    if forbidden(command):
        return Ran(False, False, True)
    return _run(["sh", "-c", command])


def under_allowlist(command: str) -> Ran:
    """Words are checked and run as they are: no shell, so that `>`, `|` and `$` mean nothing."""
    words = allowed_words(command)
    return Ran(False, False, True) if words is None else _run(words)


def _run(words: list[str]) -> Ran:
    with tempfile.TemporaryDirectory(prefix="infra-lab-") as name:
        folder = Path(name)
        precious = folder / "work" / "precious.txt"
        precious.parent.mkdir()
        precious.write_text(_PRECIOUS, encoding="utf-8")
        (folder / "notes.txt").write_text("never run rm -rf here\n", encoding="utf-8")
        try:
            done = subprocess.run(
                words,
                cwd=folder,
                env={"PATH": os.environ.get("PATH", os.defpath), "HOME": name},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_LIMIT_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise InfraLabError(
                f"{words[0]} was still running after {_LIMIT_S:g} s: try again on a quieter machine"
            ) from error
        intact = precious.is_file() and precious.read_text(encoding="utf-8") == _PRECIOUS
        return Ran(True, done.returncode == 0, intact)
