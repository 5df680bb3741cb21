"""The `infra-lab` command: finds the subcommand, and turns errors into one clear line.

Start-up is the point of its shape: names and one-line helps stand here as text, and a
command's module is imported when that command runs. `infra-lab --help` therefore imports
neither torch nor typer. Each command is a module of this package with a typer `app`.
"""

from __future__ import annotations

import errno
import os
import sys
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from io import TextIOWrapper
from pathlib import Path

from infra_lab import __version__
from infra_lab.cli.terminal import print_error
from infra_lab.cli.usage import explain_usage, is_usage_error, suggestion
from infra_lab.errors import InfraLabError, UsageError

COMMANDS = {
    "demo": "answer eight chat prompts at once, with the engine's inside on show",
    "generate": "continue a prompt",
    "chat": "talk with a model",
    "serve": "serve a model over OpenAI's HTTP API",
    "top": "watch a server: requests, KV cache, tokens a second, latencies",
    "models": "get, list and describe models",
    "cache": "show which beginnings the prefix cache shares",
    "calc": "compute memory, speed and size of a model, with the working shown",
    "claims": "what interview answers assert, and what is so, recomputed",
    "bench": "measure throughput and latency, here and beside other engines",
    "quantize": "put a model's weights into fewer bits, and compare the ways to",
    "eval": "measure a model's quality on a text",
    "list": "show the practice problems, and where you stand",
    "next": "pick the next problem, and say why",
    "start": "begin a problem: copies its starter to work/",
    "test": "grade your attempt",
    "watch": "grade your attempt on every save",
    "hint": "reveal one hint",
    "reset": "put the starter back; your attempt is kept",
    "solution": "show the approaches, once you have solved it",
    "status": "show how far you are",
    "dev": "make, check and measure problems, for their authors",
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
  infra-lab next
"""

_OPTIONS = ("--help", "--version", "--debug")
_INTERRUPTED = 130  # 128 + SIGINT, what a shell reports for Ctrl-C
_READER_GONE = 141  # 128 + SIGPIPE, what a shell reports when `| head` has seen enough
_UNWRITABLE = (errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EBADF)


def main(argv: Sequence[str] | None = None) -> None:
    """Runs one command and ends the process with its exit status."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    debug = os.environ.get("INFRA_LAB_DEBUG", "") not in ("", "0")
    while arguments[:1] == ["--debug"]:
        debug = True
        arguments.pop(0)
    _prepare_streams()
    is_explained = False
    try:
        status = _run(arguments)
    except KeyboardInterrupt:
        status = _INTERRUPTED
    except Exception as error:
        if debug:
            raise
        status, is_explained = _explain(error, arguments), True
    try:
        sys.stdout.flush()
    except OSError as error:
        status = _output_failed(error)
    if status == _INTERRUPTED and not is_explained:
        with suppress(OSError):
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
    module = import_module(f"infra_lab.cli.{name}")
    app = module.app
    is_group = len(app.registered_commands) > 1 or app.registered_callback is not None
    rest = arguments[1:] or getattr(module, "WHEN_BARE", ["--help"] if is_group else [])
    try:
        status = app(args=rest, prog_name=f"infra-lab {name}", standalone_mode=False)
    except SystemExit as end:
        if isinstance(end.__context__, BrokenPipeError):  # typer and rich end so, with status 1
            raise end.__context__ from None
        raise
    return status if isinstance(status, int) else 0


def _prepare_streams() -> None:
    """Nothing that is read or printed may fail for its letters, or for a closed stream.

    A model may say anything, and a terminal may lack the letter: it shows "?" then. Bytes that
    are not UTF-8 reach the checks of a prompt, which name them.
    """
    for name, mode, errors in (
        ("stdin", "r", "surrogateescape"),
        ("stdout", "w", "replace"),
        ("stderr", "w", "replace"),
    ):
        stream = getattr(sys, name)
        if stream is None:
            # It lives as long as the process, as the stream in whose place it stands.
            setattr(sys, name, Path(os.devnull).open(mode, encoding="utf-8"))  # noqa: SIM115
        elif isinstance(stream, TextIOWrapper):
            stream.reconfigure(errors=errors)


def _explain(error: Exception, arguments: Sequence[str]) -> int:
    if isinstance(error, InfraLabError):
        print_error(str(error), error.label)
        return error.exit_status
    if is_usage_error(error):
        print_error(explain_usage(error, arguments))
        return UsageError.exit_status
    if isinstance(error, BrokenPipeError) or (
        isinstance(error, OSError) and error.errno in _UNWRITABLE and error.filename is None
    ):
        return _output_failed(error)
    print_error(
        f"{type(error).__name__}: {error}\n"
        "This is a fault of infra-lab or of its installation. `infra-lab doctor` checks the "
        "latter; `infra-lab --debug ...` shows where it happened."
    )
    return 1


def _output_failed(error: OSError) -> int:
    """Says why, unless the reader has only gone, and drops what is still to be written: Python
    would try once more at its end, and complain."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        return _READER_GONE
    print_error(f"cannot write the output: {error.strerror}")
    return InfraLabError.exit_status


def _help() -> str:
    width = max(map(len, COMMANDS))
    lines = (f"  {name:<{width}}  {text}" for name, text in COMMANDS.items())
    return _HELP.format(commands="\n".join(lines))


def _unknown(name: str) -> str:
    kind, known = ("option", _OPTIONS) if name.startswith("-") else ("command", tuple(COMMANDS))
    hint = suggestion(name, known, f"{kind}s are {', '.join(known)}")
    return f"no {kind} {name!r}{hint} (see `infra-lab --help`)"
