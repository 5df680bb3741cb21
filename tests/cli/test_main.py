"""The shell around every command: help, versions, exit statuses, and no tracebacks."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import typer

from infra_lab import __version__
from infra_lab.cli import main as shell
from infra_lab.cli.terminal import human_bytes
from infra_lab.errors import InvalidRequestError, ModelNotFoundError

Run = Callable[..., Any]


@pytest.fixture
def command_that(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], None]], None]:
    """Puts a one-command app that calls the given function in the place of `demo`."""

    def install(function: Callable[[], None]) -> None:
        module = ModuleType("infra_lab.cli.demo")
        module.app = typer.Typer(pretty_exceptions_enable=False)  # type: ignore[attr-defined]
        module.app.command()(function)
        monkeypatch.setitem(sys.modules, "infra_lab.cli.demo", module)

    return install


@pytest.mark.parametrize("arguments", [(), ("--help",), ("-h",), ("help",)])
def test_help_names_every_command(run_command: Run, arguments: tuple[str, ...]) -> None:
    result = run_command(*arguments)
    assert result.status == 0
    assert all(f"  {name} " in result.out for name in shell.COMMANDS)
    assert "Examples:" in result.out


def test_the_version_is_the_packages_own(run_command: Run) -> None:
    assert run_command("--version").out == f"infra-lab {__version__}\n"


def test_a_misspelt_command_is_answered_with_the_near_one(run_command: Run) -> None:
    result = run_command("genrate")
    assert result.status == 2
    assert "did you mean 'generate'?" in result.err
    assert result.out == ""


def test_an_unknown_option_is_a_usage_error(run_command: Run) -> None:
    result = run_command("--frobnicate")
    assert result.status == 2
    assert "no option '--frobnicate'" in result.err


def test_a_misspelt_option_is_answered_with_the_near_one(run_command: Run) -> None:
    assert "did you mean '--help'?" in run_command("--hlep").err


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("generate", "--bogus"), "no option '--bogus' (see `infra-lab generate --help`)"),
        (("generate", "--promt", "x"), "no option '--promt': did you mean '--prompt'?"),
        (("generate", "--prompt"), "--prompt needs a value (see `infra-lab generate --help`)"),
        (("generate", "--max-tokens", "0", "x"), "--max-tokens must be at least 1, not 0"),
        (("generate", "-n", "0", "x"), "-n must be at least 1, not 0"),
        (("generate", "--max-tokens", "abc"), "--max-tokens must be a whole number, not 'abc'"),
        (("generate", "--top-p=abc"), "--top-p must be a number, not 'abc'"),
        (("generate", "two", "words"), "too many arguments, from 'words' on"),
        (("generate", "one", "--prompt", "two"), "two prompts"),
        (("models", "info"), "MODEL is missing (see `infra-lab models info --help`)"),
        (("models", "lst"), "no command 'lst' of `infra-lab models`: did you mean 'list'?"),
        (("models", "x"), "no command 'x' of `infra-lab models`: commands are pull, verify, list"),
    ],
)
def test_a_wrong_command_line_is_one_line_that_says_what_is_right(
    run_command: Run, arguments: tuple[str, ...], said: str
) -> None:
    result = run_command(*arguments)
    assert (result.status, result.out) == (2, "")
    assert result.err.startswith(f"error: {said}")
    assert result.err.count("\n") == 1


@pytest.mark.parametrize("group", ["models", "bench"])
def test_a_group_without_a_command_shows_its_help(run_command: Run, group: str) -> None:
    result = run_command(group)
    assert (result.status, result.err) == (0, "")
    assert "Commands:" in result.out


@pytest.mark.parametrize("arguments", [("generate",), ("models", "info"), ("bench", "peers")])
def test_help_names_values_as_a_person_would(run_command: Run, arguments: tuple[str, ...]) -> None:
    out = run_command(*arguments, "--help").out
    assert not re.search(r"<\w|range>|\{", out)


@pytest.mark.parametrize(
    ("error", "status"), [(ModelNotFoundError("no such"), 1), (InvalidRequestError("no such"), 2)]
)
def test_our_own_errors_are_one_line_on_stderr(
    run_command: Run, command_that: Run, error: Exception, status: int
) -> None:
    def fail() -> None:
        raise error

    command_that(fail)
    result = run_command("demo")
    assert (result.status, result.out, result.err) == (status, "", "error: no such\n")


def test_ctrl_c_ends_quietly_with_130(run_command: Run, command_that: Run) -> None:
    def interrupted() -> None:
        raise KeyboardInterrupt

    command_that(interrupted)
    result = run_command("demo")
    assert (result.status, result.err) == (130, "interrupted\n")


def test_a_fault_of_ours_is_short_and_says_how_to_see_more(
    run_command: Run, command_that: Run
) -> None:
    def broken() -> None:
        raise RuntimeError("deep inside")

    command_that(broken)
    result = run_command("demo")
    assert result.status == 1
    assert "RuntimeError: deep inside" in result.err
    assert "--debug" in result.err
    assert "Traceback" not in result.err


def test_debug_lets_the_traceback_through(command_that: Run) -> None:
    def broken() -> None:
        raise RuntimeError("deep inside")

    command_that(broken)
    with pytest.raises(RuntimeError, match="deep inside"):
        shell.main(["--debug", "demo"])


def test_the_exit_status_of_a_command_is_kept(run_command: Run, command_that: Run) -> None:
    def ends() -> None:
        raise typer.Exit(7)

    command_that(ends)
    assert run_command("demo").status == 7


def test_every_command_is_a_module_with_an_app_and_an_example_in_its_help(
    run_command: Run,
) -> None:
    for name in shell.COMMANDS:
        result = run_command(name, "--help")
        assert result.status == 0, name
        assert "Example" in result.out, name


@pytest.mark.parametrize(
    ("count", "text"),
    [(0, "0 B"), (999, "999 B"), (98_362_432, "98.4 MB"), (25_300_000_000, "25.3 GB")],
)
def test_sizes_are_said_in_decimal_units(count: int, text: str) -> None:
    assert human_bytes(count) == text
