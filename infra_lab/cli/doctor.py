"""`infra-lab doctor`: is this machine fit, what bounds it, and how to mend what is wrong.

Its numbers answer "how fast can one token be decoded here at best?": the bytes of the
weights over the measured read bandwidth.
"""

from __future__ import annotations

from dataclasses import asdict

import typer

from infra_lab.cli.doctor_checks import Check, run_checks
from infra_lab.cli.machine import Memory, last_level_cache_bytes, read_cpu, read_memory
from infra_lab.cli.options import AsJson, CacheDir, Command, new_app
from infra_lab.cli.terminal import make_console, print_json, print_table
from infra_lab.cli.torch_probe import probe
from infra_lab.models.store import ModelStore
from infra_lab.paths import default_cache_dir

app = new_app()

_COLOURS = {"ok": "green", "warn": "yellow", "fail": "red"}
_MIN_BUFFER_BYTES = 256 << 20
_MAX_BUFFER_BYTES = 1 << 30


@app.command(cls=Command, epilog="Example: infra-lab doctor --json")
def doctor(cache_dir: CacheDir = None, json: AsJson = False) -> None:
    """Check this machine; exit status 1 if something stops infra-lab from working."""
    memory = read_memory()
    with make_console(stderr=True).status("measuring memory and matrix products"):
        findings = probe(buffer_bytes(memory, last_level_cache_bytes()))
    store = ModelStore(cache_dir or default_cache_dir())
    checks = list(run_checks(findings, read_cpu(), memory, store))
    if json:
        print_json(
            {
                "checks": [asdict(check) for check in checks],
                "torch": findings if isinstance(findings, dict) else {"error": findings},
            }
        )
    else:
        _print_table(checks)
    if any(check.verdict == "fail" for check in checks):
        raise typer.Exit(1)


def buffer_bytes(memory: Memory, cache_bytes: int | None) -> int:
    """Size of the bandwidth buffer: beyond the caches, but a modest part of free memory."""
    wanted = max(_MIN_BUFFER_BYTES, 2 * (cache_bytes or 0))
    return max(1 << 20, min(wanted, _MAX_BUFFER_BYTES, memory.available // 8))


def _print_table(checks: list[Check]) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, show_header=False)
    for _ in range(2):
        table.add_column(no_wrap=True)
    table.add_column(overflow="fold")
    for check in checks:
        table.add_row(Text(check.verdict, _COLOURS[check.verdict]), check.name, Text(check.value))
        if check.mend:
            table.add_row("", "", Text(f"to mend: {check.mend}", "bold"))
    print_table(table)
    failed = sum(check.verdict == "fail" for check in checks)
    warned = sum(check.verdict == "warn" for check in checks)
    if failed or warned:
        typer.echo(f"\n{failed} failed, {warned} to note: each says how to mend it.")
    else:
        typer.echo("\nAll is well.")
