"""What a comparison of quantization methods has measured, kept in a file row by row."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from infra_lab.errors import UsageError


@dataclass(frozen=True, slots=True)
class ComparedRow:
    """Attributes:
    name: as the field writes it: "gptq W4A16".
    settings: all that made it; of the model as it was, nothing.
    bits_per_weight: of the decoder's linear layers, scales, zeros and orders counted.
    size_bytes: of all weights, those that are not quantized in 16 bits.
    kl_divergence, top1_agreement: as in TextQuality; 0 and 1 of the model itself.
    tokens_per_s: of one greedy request; None where it was not measured.
    """

    name: str
    settings: dict[str, Any]
    bits_per_weight: float
    size_bytes: int
    perplexity: float
    kl_divergence: float
    top1_agreement: float
    tokens_per_s: float | None
    quantize_s: float


class RowsFile:
    """Finished rows as JSON lines, each with the facts that it holds for: a comparison that was
    interrupted takes them from here."""

    def __init__(self, path: Path | None, facts: dict[str, Any]) -> None:
        """facts: model, texts and windows, JSON-ready. Raises UsageError for a file of others."""
        self._path = path
        self._facts = facts
        self._rows: list[ComparedRow] = []
        if path is not None and path.exists():
            self._rows = list(map(self._parsed, path.read_text(encoding="utf-8").splitlines()))

    def find(self, settings: dict[str, Any], with_speed: bool) -> ComparedRow | None:
        """The latest with these settings; one whose speed was measured, if that is asked for."""
        for row in reversed(self._rows):
            if row.settings == settings and not (with_speed and row.tokens_per_s is None):
                return row
        return None

    def add(self, row: ComparedRow) -> None:
        self._rows.append(row)
        if self._path is not None:
            line = json.dumps({"facts": self._facts, "row": asdict(row)})
            with self._path.open("a", encoding="utf-8") as file:
                file.write(line + "\n")

    def _parsed(self, line: str) -> ComparedRow:
        try:
            entry = json.loads(line)
            facts, row = entry["facts"], ComparedRow(**entry["row"])
        except (ValueError, LookupError, TypeError):
            raise UsageError(f"{self._path} holds no rows of this command: give another") from None
        if facts != self._facts:
            raise UsageError(
                f"{self._path} holds rows of another model, text or window: give another file"
            )
        return row
