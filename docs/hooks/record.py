"""`python -m docs.hooks.record [NAME...]`: runs what pages show, and keeps what it printed.

A NAME is an experiment or a command of `docs/recorded/commands.toml`; without one, every quick
command is recorded again. Experiments and prepared commands take minutes: name them, or --all.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

if __package__ in (None, ""):  # python docs/hooks/record.py
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from docs.hooks.facts import Facts, near
from docs.hooks.faults import ROOT, MarkerError
from docs.hooks.runs import Command, read_commands
from infra_lab.bench.system import cpu_name, usable_cores
from infra_lab.claims.claim import EXPERIMENTS
from infra_lab.claims.experiments import experiment
from infra_lab.claims.experiments.experiment import silent
from infra_lab.claims.experiments.needs import check_needs
from infra_lab.errors import InfraLabError
from infra_lab.texts import LANGUAGES, Language

SEED = 0  # what `infra-lab claims run` takes where none is given
# A record must not depend on the terminal or the locale of whoever makes it.
PLAIN = {"NO_COLOR": "1", "COLUMNS": "100", "LANG": "C.UTF-8", "TERM": "dumb"}
TERMINAL_CLAIMS = ("FORCE_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE")  # rich takes a pipe for one


def command_output(command: str, language: Language = "en") -> str:
    """What one `infra-lab ...` command prints. Raises CalledProcessError where it fails."""
    words = shlex.split(command)
    inherited = {key: value for key, value in os.environ.items() if key not in TERMINAL_CLAIMS}
    done = subprocess.run(
        [sys.executable, "-m", "infra_lab", *words[1:]],
        cwd=ROOT,
        env={**inherited, **PLAIN, "PYTHONPATH": str(ROOT), "INFRA_LAB_LANG": language},
        capture_output=True,
        text=True,
        check=True,
    )
    return "\n".join(line.rstrip() for line in done.stdout.rstrip("\n").split("\n")) + "\n"


def record_command(command: Command, recorded: Path) -> list[Path]:
    """In English, and in Chinese where that gives another text. Two runs of a prepared command
    differ in their timings at least: it runs once unless it is bilingual, and when and where is
    kept beside its output."""
    english = command_output(command.command)
    chinese = english
    if command.is_bilingual or not command.is_prepared:
        chinese = command_output(command.command, "zh")
    written = [_write(recorded / f"{command.name}.txt", english)]
    own = recorded / f"{command.name}.zh.txt"
    if chinese != english:
        written.append(_write(own, chinese))
    else:
        own.unlink(missing_ok=True)
    if command.is_prepared:
        about = {"command": command.command, "recorded": when_and_where()}
        written.append(_write_json(recorded / f"{command.name}.json", about))
    else:
        (recorded / f"{command.name}.json").unlink(missing_ok=True)
    return written


def record_experiment(name: str, recorded: Path) -> list[Path]:
    """One run: its JSON with date and machine added, and its figure in each language."""
    one = experiment(name)
    check_needs(one)
    start = time.perf_counter()
    result = one.run(silent, SEED)
    record = {
        "experiment": name,
        **result.as_dict(),
        "seconds": round(time.perf_counter() - start, 1),
        "recorded": when_and_where(),
    }
    figures = [recorded / f"{name}.{language}.svg" for language in LANGUAGES]
    for language, figure in zip(LANGUAGES, figures, strict=True):
        one.draw(result, figure, language)
    return [_write_json(recorded / f"{name}.json", record), *figures]


def when_and_where() -> dict[str, str]:
    """The date, and the processor with its cores in a few words."""
    cores = usable_cores()
    machine = f"{cpu_name()}, {cores} {'core' if cores == 1 else 'cores'}"
    return {"date": datetime.date.today().isoformat(), "machine": machine}


def _write_json(path: Path, record: Mapping[str, Any]) -> Path:
    return _write(path, json.dumps(record, ensure_ascii=False, indent=1) + "\n")


def _write(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m docs.hooks.record", description="Run what pages show; keep the output."
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="experiments or commands")
    parser.add_argument("--all", action="store_true", help="everything, slow ones too")
    options = parser.parse_args(arguments)
    if options.all and options.names:
        parser.error("--all records everything: give it no names")
    recorded = Facts().recorded
    try:
        commands = read_commands(recorded)
    except MarkerError as error:
        print(error, file=sys.stderr)
        return 1
    names = options.names or [
        *(name for name, one in commands.items() if options.all or not one.is_prepared),
        *(EXPERIMENTS if options.all else ()),
    ]
    known = [*commands, *EXPERIMENTS]
    if unknown := [name for name in names if name not in known]:
        parser.error("; ".join(f"there is no {name!r}{near(name, known)}" for name in unknown))
    failed = False
    for name in names:
        try:
            for written in (
                record_command(commands[name], recorded)
                if name in commands
                else record_experiment(name, recorded)
            ):
                print(written.relative_to(ROOT))
        except subprocess.CalledProcessError as error:
            failed = True
            print(f"{name}: {(error.stderr or error.stdout).strip()}", file=sys.stderr)
        except InfraLabError as error:
            failed = True
            print(f"{name}: {error}", file=sys.stderr)
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
