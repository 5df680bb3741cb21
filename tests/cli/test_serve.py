"""`infra-lab serve` before it serves: what it refuses, and what it says."""

from __future__ import annotations

import socket
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra_lab.cli.serve import KEY_VARIABLE, _adapters, _api_keys, allowed_hosts
from infra_lab.errors import UsageError
from infra_lab.server.settings import LOOPBACK_HOSTS

Run = Callable[..., Any]


def test_a_port_in_use_is_one_line_before_any_model_is_loaded(run_command: Run) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = str(other.getsockname()[1])
        result = run_command("serve", "--port", port, "--model", "no-such-model-at-all")
    assert result.status == 1
    assert result.out == ""
    assert len(result.err.splitlines()) == 1
    assert f"cannot listen on 127.0.0.1 port {port}" in result.err
    assert "--port" in result.err


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("--port", "99999"), "65535"),
        (("--port", "x"), "whole number"),
        (("--model", "smollm3", "--port", "0"), "smollm"),
        (("--log-level", "loud"), "--log-level must be"),
        (("--pooling", "max"), "pooling must be mean or last"),
        (("--lora", "adapter"), "--lora takes NAME=DIR"),
        (("--lora", "smollm2-135m=x"), "is taken"),
        (("--max-queue", "-1"), "at least 0"),
        (("--max-model-len", "0"), "at least 1"),
        (("--request-timeout", "0"), "request_timeout_s"),
        (("--api-key-file", "/nonexistent"), "cannot be read"),
        (("--host", "no.such.host.invalid"), "no address is known"),
        (("extra",), "too many arguments"),
    ],
)
def test_what_makes_no_sense_is_said_in_one_line(
    run_command: Run, arguments: tuple[str, ...], message: str
) -> None:
    result = run_command("serve", *arguments)
    assert result.status in (1, 2)
    assert message in result.err
    assert "Traceback" not in result.err
    assert result.out == ""


def test_help_has_an_example(run_command: Run) -> None:
    result = run_command("serve", "--help")
    assert result.status == 0
    assert "Example:" in result.out
    assert "curl" in result.out


def test_keys_come_from_a_file_and_from_the_environment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "keys"
    file.write_text("one\n\n two \n")
    monkeypatch.delenv(KEY_VARIABLE, raising=False)
    assert _api_keys(None) == ()
    assert _api_keys(file) == ("one", "two")
    monkeypatch.setenv(KEY_VARIABLE, "zero")
    assert _api_keys(file) == ("zero", "one", "two")
    file.write_text("\n")
    with pytest.raises(UsageError, match="no key"):
        _api_keys(file)


def test_adapters_have_each_a_name_of_their_own() -> None:
    assert _adapters(["a=x", "b=y=z"], "m") == {"a": Path("x"), "b": Path("y=z")}
    with pytest.raises(UsageError, match="is taken"):
        _adapters(["a=x", "a=y"], "m")


@pytest.mark.parametrize(
    ("host", "given", "expected"),
    [
        ("127.0.0.1", [], LOOPBACK_HOSTS),
        ("127.0.0.1", ["box"], (*LOOPBACK_HOSTS, "box")),
        ("0.0.0.0", [], None),
        ("0.0.0.0", ["box"], ("box",)),
    ],
)
def test_on_loopback_only_its_own_names_open_the_door(
    host: str, given: list[str], expected: tuple[str, ...] | None
) -> None:
    assert allowed_hosts(host, given) == expected
