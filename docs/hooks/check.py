"""`python -m docs.hooks.check [PATH...]`: what is wrong with pages, each fault with file and line.

Markers and numbers that name nothing, a question page that breaks the contract, a number typed by
hand, and a page whose other language is missing or built otherwise. Without a path, every page.
Exit status 1 for a fault; what is still to be recorded is listed and counts only with `--strict`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from docs.hooks.contract import contract_faults
from docs.hooks.facts import Facts
from docs.hooks.faults import ROOT, Fault, PageError
from docs.hooks.lint import lint
from docs.hooks.markers import expand
from docs.hooks.page import Page, read_page
from docs.hooks.parity import is_question, missing_pages, parity_faults
from infra_lab.claims.ledger import LedgerError
from infra_lab.practice.problem import ProblemError

# Tables of measured values stand in these as text; each page says how they were taken.
UNLINTED = {ROOT / "docs" / language / "quantization.md" for language in ("en", "zh")}


def check_page(path: Path, facts: Facts) -> list[Fault]:
    """All faults of one page, by line."""
    try:
        page = read_page(path)
    except PageError as error:
        return [Fault(path, error.line, str(error))]
    faults = expand(page, facts)[1]
    if path.resolve() not in UNLINTED:
        faults += lint(page)
    if is_question(path):
        faults += contract_faults(page, facts)
    twin = _twin_of(path)
    if twin is not None and page.language == "zh":
        faults += _parity(twin, page)
    return sorted(set(faults))


def check_all(facts: Facts, paths: Iterable[Path] | None = None) -> list[Fault]:
    if paths is not None:
        return [fault for path in paths for fault in check_page(path, facts)]
    pages = sorted(path for name in ("en", "zh") for path in (ROOT / "docs" / name).rglob("*.md"))
    return [*missing_pages(), *check_all(facts, pages)]


def _twin_of(path: Path) -> Path | None:
    """The same page in English, where there is one."""
    folder = ROOT / "docs" / "zh"
    if not path.is_relative_to(folder):
        return None
    twin = ROOT / "docs" / "en" / path.relative_to(folder)
    return twin if twin.is_file() else None


def _parity(english: Path, chinese: Page) -> list[Fault]:
    try:
        return parity_faults(read_page(english), chinese)
    except PageError:
        return []  # told where the English page is checked


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m docs.hooks.check", description="Say what is wrong with the site's pages."
    )
    parser.add_argument("paths", nargs="*", type=Path, metavar="PATH", help="pages or folders")
    parser.add_argument("--strict", action="store_true", help="a missing record is a fault too")
    options = parser.parse_args(arguments)
    paths: list[Path] | None = None
    if options.paths:
        given = [path.resolve() for path in options.paths]
        if absent := [path for path in given if not path.exists()]:
            parser.error(f"there is no {absent[0]}")
        paths = [
            one
            for path in given
            for one in (sorted(path.rglob("*.md")) if path.is_dir() else [path])
        ]
    try:
        faults = check_all(Facts(), paths)
    except (LedgerError, ProblemError) as error:  # pages cannot be checked against what is broken
        print(error)
        return 1
    gaps = [one for one in faults if one.is_gap and not options.strict]
    for one in faults:
        print(f"{one}{' (to be recorded)' if one in gaps else ''}")
    wrong = len(faults) - len(gaps)
    print(f"{wrong} faults, {len(gaps)} records to be made")
    return int(wrong > 0)


if __name__ == "__main__":
    sys.exit(main())
