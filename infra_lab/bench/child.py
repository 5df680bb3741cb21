"""Runs a benchmark's child process: its output captured, its whole family ended with it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from typing import IO

from infra_lab.errors import InfraLabError

LAST_LINES = 12


class ChildFailedError(InfraLabError):
    """A child process did not start, did not end in time, or did not succeed."""


def run_child(command: Sequence[str], timeout_s: float) -> str:
    """What the command writes to stdout.

    Raises ChildFailedError with the last lines of its stderr when it fails. Workers that it started
    are ended too, whether it succeeds, fails or is interrupted (not on Windows, where a child
    has no process group to end).
    """
    with tempfile.TemporaryFile() as errors:
        try:
            child = subprocess.Popen(
                command, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
            )
        except OSError as error:
            raise ChildFailedError(f"cannot run {command[0]}: {error.strerror or error}") from error
        try:
            output, _ = child.communicate(timeout=timeout_s)
        except subprocess.TimeoutExpired as error:
            raise ChildFailedError(f"it took longer than {timeout_s:.0f} s") from error
        finally:
            end_family(child)
        if child.returncode != 0:
            reason = f"it ended with status {child.returncode}:"
            raise ChildFailedError("\n".join([reason, *last_lines(errors)]))
    return output.decode(errors="replace")


def last_lines(output: IO[bytes]) -> list[str]:
    """Of a file into which a child has written, those that most likely say what went wrong."""
    output.seek(0)
    return output.read().decode(errors="replace").strip().splitlines()[-LAST_LINES:]


def end_family(child: subprocess.Popen[bytes]) -> None:
    """Kills a child that has a session of its own, and its workers, if they still run."""
    if sys.platform == "win32":
        if child.poll() is None:
            child.kill()
    else:
        # The group has the child's number, also after the child itself is gone.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
    child.wait()
