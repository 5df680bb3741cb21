"""What the sanitizer finds, as errors that say where."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class SanitizerError(Exception):
    """A fault in a launch.

    kernel, program: where; line: of the source, "file:line" ("" if unknown);
    lanes: how many lanes did it; first_index: the first bad element, lane or offset; what: the
    fault in words.
    """

    kernel: str
    program: tuple[int, int, int] | None
    lanes: int
    first_index: int
    what: str
    line: str = ""

    def __str__(self) -> str:
        program = "" if self.program is None else f", program {self.program}"
        line = f" at {self.line}" if self.line else ""
        return f"{self.kernel}{program}{line}: {self.what}"


class OutOfBoundsError(SanitizerError):
    """Lanes touch memory that no argument of the launch covers."""


class WriteRaceError(SanitizerError):
    """Two programs, or two lanes of one, store to the same address without an atomic."""


class ReadRaceError(SanitizerError):
    """A program reads what another one stores in the same launch."""


class IntegerOverflowError(SanitizerError):
    """A signed 32-bit (or narrower) sum, difference or product wraps."""


class UnwrittenOutputError(SanitizerError):
    """Elements of an output that no program wrote."""
