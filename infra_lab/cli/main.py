"""The `infra-lab` command: finds the subcommand, and turns errors into one clear line.

Start-up is the point of its shape: names and one-line helps stand here as text, and a
command's module is imported when that command runs. `infra-lab --help` therefore imports
neither torch nor typer. Each command is a module of this package with a typer `app`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from io import TextIOWrapper

from infra_lab import __version__
from infra_lab.cli.terminal import print_error
from infra_lab.errors import InfraLabError, UsageError

COMMANDS = {
    "demo": "answer eight chat prompts at once, with the engine's inside on show",
    "generate": "continue a prompt",
    "chat": "talk with a model",
    "models": "get, list and describe models",
    "bench": "measure throughput and latency, here and beside other engines",
    "doctor": "check this machine, and say how to mend what is wrong",
}

_HELP = """\
infra-lab: an LLM inference engine to run, to read and to practise with

Usage: infra-lab COMMAND [OPTIONS]

Commands:
{commands}

Options:
  --help     show this text; `infra-lab COMMAND --help` explains a command
  --version  show the version
  --debug    before COMMAND: show the traceback of an error (or set INFRA_LAB_DEBUG=1)

Examples:
  infra-lab demo
  infra-lab generate --prompt "What is the capital of France?" --temperature 0
  infra-lab models info smollm2-135m
"""

_INTERRUPTED = 130  # 128 + SIGINT, what a shell reports for Ctrl-C


def main(argv: Sequence[str] | None = None) -> None:
    """Runs one command and ends the process with its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = os.environ.get("INFRA_LAB_DEBUG", "") not in ("", "0")
    while arguments[:1] == ["--debug"]:
        debug = True
        arguments.pop(0)
    _never_fail_to_print()
    try:
        status = _run(arguments)
    except KeyboardInterrupt:
        status = _INTERRUPTED
    except Exception as error:
        if debug:
            raise
        status = _explain(error)
    if status == _INTERRUPTED:
        sys.stderr.write("interrupted\n")
    sys.exit(status)


def _run(arguments: list[str]) -> int:
    if not arguments or arguments[0] in ("--help", "-h", "help"):
        sys.stdout.write(_help())
        return 0
    if arguments[0] == "--version":
        sys.stdout.write(f"infra-lab {__version__}\n")
        return 0
    name = arguments[0]
    if name not in COMMANDS:
        raise UsageError(_unknown(name))
    app = import_module(f"infra_lab.cli.{name}").app
    try:
        app(args=arguments[1:], prog_name=f"infra-lab {name}")
    except SystemExit as end:
        return _status(end)
    return 0


def _never_fail_to_print() -> None:
    """A model may say anything, and a terminal may lack the letter: it shows "?" then."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors="replace")


def _status(end: SystemExit) -> int:
    if end.code is None:
        return 0
    return end.code if isinstance(end.code, int) else 1


def _explain(error: Exception) -> int:
    if isinstance(error, InfraLabError):
        print_error(str(error))
        return error.exit_status
    print_error(
        f"{type(error).__name__}: {error}\n"
        "This is a fault of infra-lab or of its installation. `infra-lab doctor` checks the "
        "latter; `infra-lab --debug ...` shows where it happened."
    )
    return 1


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = (f"  {name:<{width}}  {text}" for name, text in COMMANDS.items())
    return _HELP.format(commands="\n".join(lines))


def _unknown(name: str) -> str:
    from difflib import get_close_matches

    kind = "option" if name.startswith("-") else "command"
    close = get_close_matches(name, COMMANDS, n=1)
    hint = f"did you mean {close[0]!r}?" if close else f"commands are {', '.join(COMMANDS)}"
    return f"no {kind} {name!r}: {hint} (`infra-lab --help` explains them)"
