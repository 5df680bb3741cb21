"""The house rules hold for what builds the site: small files that say what they are, no torch."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import Files

from docs.hooks import site
from docs.hooks.faults import ROOT, Fault

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


@pytest.mark.parametrize("in_ci", [False, True])
def test_a_missing_record_fails_a_build_under_ci_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, in_ci: bool
) -> None:
    """Elsewhere it is not even a warning, which a strict build would count."""
    monkeypatch.delenv("CI", raising=False)
    if in_ci:
        monkeypatch.setenv("CI", "true")
    fault = Fault(ROOT / "docs/en/index.md", 3, "x.json is not there yet", is_gap=True)
    config: Any = SimpleNamespace(extra={"build": SimpleNamespace(faults=[fault])})
    fails = pytest.raises(PluginError, match="1 records are still to be made")
    with caplog.at_level("INFO", logger=site.log.name), fails if in_ci else nullcontext():
        site.on_env(None, config, Files([]))
    assert caplog.messages == ["docs/en/index.md:3: x.json is not there yet"]
    assert caplog.records[0].levelname == ("WARNING" if in_ci else "INFO")


def test_a_fault_fails_every_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CI", raising=False)
    fault = Fault(ROOT / "docs/en/index.md", 3, "there is no claim 'K99'")
    config: Any = SimpleNamespace(extra={"build": SimpleNamespace(faults=[fault])})
    with pytest.raises(PluginError, match="1 faults in pages"):
        site.on_env(None, config, Files([]))


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
