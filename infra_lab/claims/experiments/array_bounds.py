"""What becomes of a write out of bounds: one program an index, under each way of building it.

The measuring half of the experiment `cpp-bounds`; cpp_bounds.py says what follows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from infra_lab.claims.experiments.native_programs import ABORTED, Ended, Workshop
from infra_lab.errors import InfraLabError

Outcome = Literal["silent", "x changed", "crash", "canary", "aborted", "reported", "other"]
INDICES = range(-2, 24)
LENGTH = 10
_REPORTS = ("AddressSanitizer", "runtime error")
_PACKED_ADD = re.compile(r"\bv?paddd\b|\badd\s+v\d+\.4s")

STACK_BUILDS: Mapping[str, tuple[str, ...]] = {
    "plain": ("-O0", "-fno-stack-protector"),
    "plain, x first": ("-O0", "-fno-stack-protector", "-DX_FIRST"),
    "protector": ("-O0", "-fstack-protector-strong"),
    "protector, x first": ("-O0", "-fstack-protector-strong", "-DX_FIRST"),
    "bounds": ("-O0", "-fno-stack-protector", "-fsanitize=bounds", "-fno-sanitize-recover=all"),
    "asan": ("-O0", "-g", "-fsanitize=address"),
}
# The builds of which it is told where x lies, by the number's name.
X_PLACES = {"x_after": "plain", "x_first": "plain, x first", "x_protected": "protector, x first"}
CHECKED_BUILDS: Mapping[str, tuple[str, ...]] = {
    "assertions": ("-O2", "-D_GLIBCXX_ASSERTIONS"),
    "at": ("-O2", "-DUSE_AT"),
}


def outcome(ended: Ended) -> Outcome:
    """What a write came to, from how the program ended."""
    if any(one in ended.err for one in _REPORTS):
        return "reported"
    if ended.status == ABORTED:
        return "canary" if "stack smashing" in ended.err else "aborted"
    if ended.has_crashed:
        return "crash"
    if ended.status != 0:
        return "other"
    x = ended.number("x")
    return "silent" if x in (None, 42) else "x changed" if x == 7 else "other"


@dataclass(frozen=True, slots=True)
class StackWrites:
    """Of one build: each index's outcome, and where x lies, as an index of the array."""

    outcomes: Mapping[int, Outcome]
    x_index: int | None

    def count(self, *kinds: Outcome) -> int:
        """Of the indices behind the end."""
        return sum(found in kinds for index, found in self.outcomes.items() if index >= LENGTH)


def stack_writes(workshop: Workshop, flags: tuple[str, ...]) -> StackWrites | None:
    """All of INDICES; None where the compiler cannot build so (a sanitizer is missing)."""
    program = workshop.build("stack_array", *flags).program
    if program is None:
        return None
    place = workshop.run(program, 0).number("x_index")
    return StackWrites(
        {index: outcome(workshop.run(program, index)) for index in INDICES},
        None if place is None else int(place),
    )


def caught_behind_the_end(workshop: Workshop, flags: tuple[str, ...]) -> int | None:
    """How many of the indices behind the end of a std::array end the program."""
    program = workshop.build("checked_array", "-std=c++17", *flags).program
    if program is None:
        return None
    ended = [workshop.run(program, index) for index in INDICES if index >= LENGTH]
    return sum(one.status == ABORTED for one in ended)


@dataclass(frozen=True, slots=True)
class HeapWrites:
    """Of blocks of `size` bytes: what may be used, and what freeing does after a write at the last
    usable byte and at the one behind it."""

    size: int
    usable: int
    last: Ended
    behind: Ended


def heap_writes(workshop: Workshop, size: int) -> HeapWrites:
    program = workshop.built("heap_neighbour", "-O0")  # -O1 leaves the neighbour out
    bytes_usable = int(workshop.measured(workshop.run(program, "size", size), "usable"))
    return HeapWrites(
        size,
        bytes_usable,
        workshop.run(program, "write", size, bytes_usable - 1),
        workshop.run(program, "write", size, bytes_usable),
    )


def last_offset_read(workshop: Workshop) -> tuple[int, bool]:
    """How far behind a block of 100 bytes a program came, and whether it then crashed."""
    ended = workshop.run(workshop.built("heap_far", "-O1"))
    offsets = ended.out.split()
    if not offsets:
        raise InfraLabError(f"heap_far read nothing and ended with status {ended.status}")
    return int(offsets[-1]), ended.has_crashed


def warnings_by_level(workshop: Workshop) -> dict[int, int]:
    """Warnings of an index out of bounds, by optimization level."""
    found = {}
    for level in range(4):
        built = workshop.build("constant_index", f"-O{level}", "-Wall", "-Wextra")
        found[level] = sum(
            "warning:" in line and "array-bounds" in line for line in built.messages.splitlines()
        )
    return found


@dataclass(frozen=True, slots=True)
class LoopCost:
    """at() against [] at one level: times as ratios, and whether the sum was vectorized."""

    sum_ratio: float
    gather_ratio: float
    plain_is_packed: bool
    checked_is_packed: bool


def loop_cost(workshop: Workshop, level: str) -> LoopCost:
    times, packed = {}, {}
    for name, flags in (("plain", ()), ("at", ("-DUSE_AT",))):
        ended = workshop.run(workshop.built("loop_cost", level, *flags), limit_s=60)
        times[name] = (workshop.measured(ended, "sum"), workshop.measured(ended, "gather"))
        listing = workshop.assembly("loop_cost", level, *flags)
        packed[name] = bool(_PACKED_ADD.search(function_body(listing, "_Z3sum")))
    return LoopCost(
        times["at"][0] / times["plain"][0],
        times["at"][1] / times["plain"][1],
        packed["plain"],
        packed["at"],
    )


def function_body(listing: str, prefix: str) -> str:
    """The lines of the function whose label starts with `prefix`, up to its .size."""
    lines: list[str] = []
    inside = False
    for line in listing.splitlines():
        if re.match(rf"{prefix}\w*:", line):
            inside = True
        elif inside and line.lstrip().startswith(".size"):
            break
        if inside:
            lines.append(line)
    return "\n".join(lines)


def outcome_of(workshop: Workshop, source: str, *flags: str, index: int = 10) -> Outcome | None:
    """What a program with one write comes to; None where it cannot be built so."""
    program = workshop.build(source, *flags).program
    return None if program is None else outcome(workshop.run(program, index))
