"""`python -m docs.hooks.record [NAME...]`: runs what pages show, and keeps what it printed.

A NAME is an experiment or a command of `docs/recorded/commands.toml`; without one, every quick
command is recorded again. Experiments and prepared commands take minutes: name them, or --all.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

if __package__ in (None, ""):  # python docs/hooks/record.py
    sys.path.insert(0, str(Path(__file__).resolve().parents[2]))

from docs.hooks.facts import Facts, near
from docs.hooks.faults import ROOT
from docs.hooks.runs import Command, read_commands
from infra_lab.claims.claim import EXPERIMENTS
from infra_lab.claims.experiments import experiment
from infra_lab.claims.experiments.experiment import silent
from infra_lab.claims.experiments.needs import check_needs
from infra_lab.claims.texts import Language
from infra_lab.errors import InfraLabError

SEED = 0  # what `infra-lab claims run` takes where none is given
LANGUAGES: tuple[Language, ...] = ("en", "zh")
# A record must not depend on the terminal or the locale of whoever makes it.
PLAIN = {"NO_COLOR": "1", "COLUMNS": "100", "LANG": "C.UTF-8", "TERM": "dumb"}


def command_output(command: str, root: Path = ROOT, extra: Mapping[str, str] | None = None) -> str:
    """What one `infra-lab ...` command prints. Raises CalledProcessError where it fails."""
    words = shlex.split(command)
    environment = {**os.environ, **PLAIN, "PYTHONPATH": str(root), "INFRA_LAB_LANG": "en"}
    environment |= extra or {}
    done = subprocess.run(
        [sys.executable, "-m", "infra_lab", *words[1:]],
        cwd=root,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return "\n".join(line.rstrip() for line in done.stdout.rstrip("\n").split("\n")) + "\n"


def record_command(command: Command, recorded: Path) -> list[Path]:
    """In English, and in Chinese where that gives another text."""
    english = command_output(command.command)
    chinese = command_output(command.command, extra={"INFRA_LAB_LANG": "zh"})
    written = [_write(recorded / f"{command.name}.txt", english)]
    own = recorded / f"{command.name}.zh.txt"
    if chinese != english:
        written.append(_write(own, chinese))
    else:
        own.unlink(missing_ok=True)
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
        "recorded": {"date": datetime.date.today().isoformat(), "machine": machine()},
    }
    text = json.dumps(record, ensure_ascii=False, indent=1) + "\n"
    figures = [recorded / f"{name}.{language}.svg" for language in LANGUAGES]
    for language, figure in zip(LANGUAGES, figures, strict=True):
        one.draw(result, figure, language)
    return [_write(recorded / f"{name}.json", text), *figures]


def machine() -> str:
    """Processor and cores, in a few words."""
    name = platform.processor() or platform.machine()
    info = Path("/proc/cpuinfo")
    if info.is_file():
        for line in info.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                name = line.partition(":")[2].strip()
                break
    return f"{name}, {os.cpu_count()} threads"


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
    recorded = Facts().recorded
    commands = read_commands(recorded)
    names = options.names or [
        *(name for name, one in commands.items() if options.all or not one.is_prepared),
        *(EXPERIMENTS if options.all else ()),
    ]
    failed = False
    for name in names:
        if name not in commands and name not in EXPERIMENTS:
            parser.error(f"there is no {name!r}{near(name, [*commands, *EXPERIMENTS])}")
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
