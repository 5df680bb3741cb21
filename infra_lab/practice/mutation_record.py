"""What is kept of a problem's syntax-tree mutants, beside its grader.

`equivalent.toml` is written by hand: mutants that are right after all, each with the reason.
`mutation.json` is written by `infra-lab dev mutate`: what became of every mutant, and a digest
of the files that decide it, so that an old record is known for one.
"""

from __future__ import annotations

import hashlib
import json
import tomllib
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field

from infra_lab.errors import UsageError
from infra_lab.practice.mutation_rules import RULES_VERSION, Mutant, mutants_of
from infra_lab.practice.problem import Problem, ProblemError

EQUIVALENT, RECORD = "equivalent.toml", "mutation.json"
WANTED = 0.95  # of all mutants, killed or known to be equivalent


@dataclass(slots=True)
class MutationRecord:
    """What became of the mutants of one problem.

    Attributes:
        digest: of the grader, the approaches and equivalent.toml.
        rules: kind of change -> [killed or equivalent, all].
        survivors: ids of mutants that passed and are not known to be equivalent.
    """

    digest: str
    total: int
    killed: int
    equivalent: int
    rules: dict[str, list[int]] = field(default_factory=dict)
    survivors: list[str] = field(default_factory=list)

    @property
    def justified(self) -> int:
        return self.killed + self.equivalent

    @property
    def is_good(self) -> bool:
        return self.total > 0 and self.justified >= WANTED * self.total

    def save(self, problem: Problem) -> None:
        text = json.dumps(asdict(self), indent=2, ensure_ascii=False) + "\n"
        (problem.folder / RECORD).write_text(text, encoding="utf-8", newline="\n")


def load_record(problem: Problem) -> MutationRecord | None:
    """None if there is none. Raises ProblemError for a damaged one."""
    path = problem.folder / RECORD
    try:
        return MutationRecord(**json.loads(path.read_text(encoding="utf-8")))
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError) as error:
        raise ProblemError(f"{path}: {error}: `infra-lab dev mutate` writes it anew") from None


def load_equivalent(problem: Problem) -> dict[str, str]:
    """id -> reason. Raises ProblemError, which names the entry."""
    path = problem.folder / EQUIVALENT
    if not path.is_file():
        return {}
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ProblemError(f"{path}: {error}") from None
    entries = table.get("mutant", [])
    reasons: dict[str, str] = {}
    for entry in entries if isinstance(entries, list) else [entries]:
        if not isinstance(entry, dict) or set(entry) != {"id", "reason"}:
            raise ProblemError(f"{path}: each [[mutant]] needs id and reason, and only those")
        if entry["id"] in reasons:
            raise ProblemError(f"{path}: {entry['id']!r} stands there twice")
        if not isinstance(entry["reason"], str) or not entry["reason"].strip():
            raise ProblemError(f"{path}: {entry['id']!r} has no reason")
        reasons[entry["id"]] = entry["reason"]
    return reasons


def equivalent_entry(mutant: Mutant) -> str:
    """What to add to equivalent.toml, but for the reason."""
    # A JSON string is a TOML string too, but for one control character.
    quoted = json.dumps(mutant.id, ensure_ascii=False).replace("\x7f", "\\u007f")
    return f'[[mutant]]\nid = {quoted}\nreason = ""\n'


def digest_of(problem: Problem) -> str:
    """SHA-256 of what decides the mutants' fate; line endings do not count."""
    paths = [problem.grader, *problem.approaches(), problem.folder / EQUIVALENT]
    sha = hashlib.sha256(f"rules {RULES_VERSION}\n".encode())
    for path in paths:
        text = path.read_bytes().replace(b"\r\n", b"\n") if path.is_file() else b""
        sha.update(f"{path.name} {len(text)}\n".encode() + text)
    return sha.hexdigest()


def all_mutants(problem: Problem, approaches: Sequence[str] = ()) -> list[Mutant]:
    """Of every approach, or of those whose stems are named. Raises UsageError for a stem that is
    none, ProblemError for an approach that cannot be read."""
    paths = [path for path in problem.approaches() if not approaches or path.stem in approaches]
    if unknown := sorted(set(approaches) - {path.stem for path in paths}):
        known = ", ".join(path.stem for path in problem.approaches())
        raise UsageError(f"{problem.slug} has no approach {unknown[0]!r}: there are {known}")
    try:
        return [mutant for path in paths for mutant in mutants_of(path)]
    except (OSError, SyntaxError) as error:
        raise ProblemError(f"{problem.slug}: an approach cannot be read: {error}") from None


def check_record(problem: Problem) -> tuple[MutationRecord | None, list[str]]:
    """The record and what is wrong with it; nothing is graded."""
    mend = f"run `infra-lab dev mutate {problem.slug}`"
    try:
        record = load_record(problem)
        equivalent = load_equivalent(problem)
        ids = {mutant.id for mutant in all_mutants(problem)}
    except ProblemError as error:
        return None, [str(error)]
    if record is None:
        return None, [f"{RECORD} is missing: {mend}"]
    faults = []
    if record.digest != digest_of(problem):
        faults.append(f"{RECORD} is of other files than those here: {mend}")
    elif record.total != len(ids):
        faults.append(f"{RECORD} counts {record.total} mutants, there are {len(ids)}: {mend}")
    if record.killed + record.equivalent + len(record.survivors) != record.total:
        faults.append(f"{RECORD} does not add up: {mend}")
    faults += [f"{EQUIVALENT}: there is no mutant {one!r}" for one in equivalent if one not in ids]
    if not record.is_good:
        share = record.justified / max(record.total, 1)
        faults.append(
            f"only {share:.1%} of the syntax-tree mutants are killed or known to be equivalent, "
            f"{WANTED:.0%} are wanted"
        )
    return record, faults
