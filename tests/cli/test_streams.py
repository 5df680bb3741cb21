"""The command with its streams closed, full or broken: one clear line, or quiet; no traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COMMAND = f'"{sys.executable}" -c "from infra_lab.cli.main import main; main()"'

pytestmark = pytest.mark.skipif(os.name == "nt", reason="redirections of a POSIX shell")


def shell(line: str) -> tuple[int, str, str]:
    """Exit status, stdout and stderr of a shell line in which `infra-lab` is our command."""
    script = line.replace("infra-lab", COMMAND)
    done = subprocess.run(["sh", "-c", script], cwd=ROOT, capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize("command", ["generate <&-", "generate </dev/null", "chat <&-"])
def test_no_input_is_said_before_anything_is_loaded(command: str) -> None:
    status, out, err = shell(f"infra-lab {command}")
    assert (status, out) == (2, "")
    assert "standard input is empty" in err
    assert err.count("\n") == 1


def test_input_that_is_not_utf8_is_named() -> None:
    status, _, err = shell(r"printf 'a\377b' | infra-lab generate")
    assert status == 2
    assert "('\\udcff') at character 1" in err


@pytest.mark.parametrize("command", ["--help", "models list", "generate --help"])
def test_a_closed_output_is_as_good_as_none(command: str) -> None:
    assert shell(f"infra-lab {command} >&-") == (0, "", "")


def test_a_closed_stderr_changes_no_status() -> None:
    assert shell("infra-lab --bogus 2>&-") == (2, "", "")


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="a device of Linux")
@pytest.mark.parametrize("command", ["--version", "models list", "models --help"])
def test_a_full_disk_is_the_disks_fault(command: str) -> None:
    error = "error: cannot write the output: No space left on device\n"
    assert shell(f"infra-lab {command} >/dev/full") == (1, "", error)


@pytest.mark.parametrize("command", ["--help", "models list", "models list --json", "bench"])
def test_a_reader_that_has_gone_ends_every_command_alike(command: str) -> None:
    # The reader takes nothing and is gone before the command writes.
    line = f"{{ sleep 0.2; infra-lab {command}; echo $? >&2; }} | true"
    status, _, err = shell(line)
    assert (status, err) == (0, "141\n")
