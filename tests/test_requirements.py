"""requirements.lock pins everything that pyproject.toml asks for, for everybody's machine."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PIN = re.compile(r"([a-z0-9-]+)==([\w.]+)( ; .+)?")


def lock_lines() -> list[str]:
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").splitlines()
    return [line for line in lines if line and not line.startswith("#")]


def wanted() -> set[str]:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *extras["test"], *extras["dev"]]
    names = {re.split(r"[^\w.-]", line)[0].replace("_", "-") for line in asked}
    return names - {"infra-lab"}


def test_every_line_is_one_exact_pin_without_host_hash_or_local_version() -> None:
    assert [line for line in lock_lines() if not PIN.fullmatch(line)] == []


def test_everything_asked_for_is_pinned() -> None:
    pinned = {line.split("==")[0] for line in lock_lines()}
    assert wanted() - pinned == set()


def test_no_cuda_library_is_pinned_because_torch_brings_its_own() -> None:
    assert [line for line in lock_lines() if line.startswith(("nvidia-", "cuda-"))] == []


def test_what_requirements_in_pins_is_what_the_lock_has() -> None:
    text = (ROOT / "requirements.in").read_text(encoding="utf-8")
    chosen = dict(re.findall(r"^([\w-]+)==([\w.]+)", text, re.MULTILINE))
    locked = dict(PIN.fullmatch(line).groups()[:2] for line in lock_lines())  # type: ignore[union-attr]
    assert {name: locked[name] for name in chosen} == chosen
