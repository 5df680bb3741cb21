"""The house rules hold for what builds the site: small files that say what they are, no torch."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from docs.hooks.faults import ROOT

HOOKS = sorted((ROOT / "docs").rglob("*.py"))
SCRIPTS = sorted((ROOT / "docs/assets/javascripts").glob("*.js"))
MAX_LINES = 400


@pytest.mark.parametrize("path", [*HOOKS, *SCRIPTS], ids=lambda one: one.name)
def test_a_file_is_short_and_says_what_it_is(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= MAX_LINES
    if path.suffix == ".py":
        assert ast.get_docstring(ast.parse(text))
    else:
        assert text.startswith("// ")


def test_a_site_is_made_without_torch() -> None:
    """Whoever only writes pages waits for no framework."""
    program = (
        "import json, sys\n"
        "from docs.hooks.facts import Facts\n"
        "from docs.hooks.figures import step_files\n"
        "from docs.hooks.generated import generated_pages\n"
        "for language in ('en', 'zh'): list(generated_pages(Facts(), language, False))\n"
        "step_files()\n"
        "print(json.dumps(sorted({'torch', 'transformers', 'triton'} & set(sys.modules))))\n"
    )
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == []


def test_scripts_ask_no_other_host() -> None:
    named = {
        (path.name, url)
        for path in [*SCRIPTS, *(ROOT / "docs/assets/stylesheets").glob("*.css")]
        for url in re.findall(r"https?://[^\s\"'`)]+", path.read_text(encoding="utf-8"))
    }
    assert {url for _, url in named} <= {"http://www.w3.org/2000/svg"}  # a name, not an address


def test_vendored_libraries_bring_their_licences() -> None:
    vendor = ROOT / "docs/assets/vendor"
    for folder in vendor.iterdir():
        if folder.is_dir():
            assert "MIT" in (folder / "LICENSE").read_text(encoding="utf-8")
            assert folder.name in (vendor / "README.md").read_text(encoding="utf-8")
