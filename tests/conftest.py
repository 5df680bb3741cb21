"""What all tests share: hypothesis profiles, and the command run in-process."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests.browser import browser, visit  # noqa: F401 - fixtures

settings.register_profile(
    "local", deadline=None, suppress_health_check=[HealthCheck.too_slow], print_blob=True
)
settings.register_profile("ci", settings.get_profile("local"), derandomize=True)
settings.load_profile("ci" if os.environ.get("CI") else "local")


SLOW_TIMEOUT_S = 3600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Slow tests may be slow: the timeout is for those that hang."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(SLOW_TIMEOUT_S))


@dataclass(frozen=True)
class CommandResult:
    status: int
    out: str
    err: str


@pytest.fixture
def run_command(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., CommandResult]:
    """Runs `infra-lab ARGUMENTS` in this process, as the script would."""
    from infra_lab.cli.main import main

    monkeypatch.delenv("INFRA_LAB_DEBUG", raising=False)

    def run(*arguments: str) -> CommandResult:
        capsys.readouterr()
        with pytest.raises(SystemExit) as end:
            main(arguments)
        captured = capsys.readouterr()
        return CommandResult(int(end.value.code or 0), captured.out, captured.err)

    return run


@pytest.fixture(scope="session")
def smollm2_path() -> Path:
    """The default model's file; skips where it has not been pulled."""
    from infra_lab.errors import InfraLabError
    from infra_lab.models.store import resolve

    try:
        path = resolve("smollm2-135m")
    except InfraLabError as error:
        pytest.skip(f"the default model is not here: {error}")
    return Path(path)
