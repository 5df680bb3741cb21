"""The quality of machine code as a table that may only improve.

What may not get worse, for a kernel in a configuration on an architecture: spilled bytes, stack,
occupancy, the strength of the matrix instruction, the width of loads and stores, and that copies
are asynchronous. Registers and shared memory are recorded but not held: what they cost is the
occupancy, and a few registers more or less come with every version of the assembler.

Some limits hold without a table: no spilling beyond what a case declares, a matrix instruction
where a case demands one, and that a block fits.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernels.testing.architectures import ARCHITECTURES
from kernels.testing.cases import AotCase
from kernels.testing.machine_code import NVIDIA_MATRIX

QUALITY_FILE = Path(__file__).with_name("quality.json")
Row = dict[str, Any]
Key = tuple[str, str, str]

LOWER_IS_BETTER = ("spill_bytes", "stack_bytes")
HIGHER_IS_BETTER = ("occupancy", "load_bits", "store_bits")
RECORDED = (
    "registers",
    "spill_bytes",
    "stack_bytes",
    "shared_bytes",
    "occupancy",
    "mma",
    "mma_count",
    "async_copies",
    "bulk_copies",
    "load_bits",
    "store_bits",
)


@dataclass
class QualityTable:
    """The best that each row has been, and the Triton that made it so."""

    triton: str = ""
    rows: dict[Key, Row] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path = QUALITY_FILE) -> QualityTable:
        if not path.exists():
            return cls()
        data = json.loads(path.read_text(encoding="utf-8"))
        return cls(data["triton"], {key_of(row): row for row in data["rows"]})

    def write(self, path: Path = QUALITY_FILE) -> None:
        """One row a line, sorted: a change of quality is one line of a diff."""
        lines = [
            json.dumps({**dict(zip(("kernel", "config", "arch"), key, strict=True)), **figures})
            for key, row in sorted(self.rows.items())
            if (figures := {name: row[name] for name in RECORDED})
        ]
        body = ",\n    ".join(lines)
        head = json.dumps(self.triton)
        path.write_text(
            f'{{\n  "triton": {head},\n  "rows": [\n    {body}\n  ]\n}}\n', encoding="utf-8"
        )


def key_of(row: Mapping[str, Any]) -> Key:
    return (row["kernel"], row["config"], row["arch"])


def broken_limits(row: Mapping[str, Any], case: AotCase) -> list[str]:
    """What is wrong with a row whatever it was before."""
    if row["status"] != "ok":
        return [f"{row['status']}: {row['reason']}"]
    architecture = ARCHITECTURES[row["arch"]]
    wrong = []
    allowed = case.spill_bytes_allowed.get(row["arch"], 0)
    if row["spill_bytes"] > allowed:
        wrong.append(f"spills {row['spill_bytes']} bytes, allowed {allowed}")
    if row["shared_bytes"] > architecture.max_shared_bytes:
        wrong.append(
            f"{row['shared_bytes']} bytes of shared memory, a block has "
            f"{architecture.max_shared_bytes}"
        )
    if row["occupancy"] == 0:
        wrong.append("not even one block fits a processor")
    if case.matrix and not row["mma"]:
        wrong.append("no matrix instruction")
    return wrong


def regressions(new: Mapping[str, Any], old: Mapping[str, Any]) -> list[str]:
    """In what the new row is worse than the old one."""
    worse = [
        f"{name} {old[name]} -> {new[name]}"
        for names, sign in ((LOWER_IS_BETTER, 1), (HIGHER_IS_BETTER, -1))
        for name in names
        if sign * new[name] > sign * old[name]
    ]
    if _strength(new["mma"]) < _strength(old["mma"]):
        worse.append(f"mma {old['mma']} -> {new['mma'] or 'none'}")
    if _copies(old) and not _copies(new):
        worse.append("copies are no longer asynchronous")
    return worse


def ratcheted(table: QualityTable, rows: Iterable[Row], triton: str) -> QualityTable:
    """The table with new and better rows taken in; a row that got worse stays as it was."""
    kept = dict(table.rows)
    for row in rows:
        old = kept.get(key_of(row))
        if row["status"] == "ok" and (old is None or not regressions(row, old)):
            kept[key_of(row)] = row
    return QualityTable(triton, kept)


def without_gone(table: QualityTable, known: Iterable[Key]) -> QualityTable:
    """The table without rows of cases that are no longer declared."""
    wanted = set(known)
    return QualityTable(
        table.triton, {key: row for key, row in table.rows.items() if key in wanted}
    )


def _strength(mma: str) -> int:
    order = ("", "mfma", *NVIDIA_MATRIX)
    return order.index(mma)


def _copies(row: Mapping[str, Any]) -> bool:
    return bool(row["async_copies"] or row["bulk_copies"])
