"""`infra-lab claims`: the ledger as a list, as one claim, and recomputed."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

Run = Callable[..., Any]
CHINESE = re.compile(r"[\u4e00-\u9fff]")


@pytest.fixture(autouse=True)
def _english(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFRA_LAB_LANG", "en")


def test_alone_it_lists_all(run_command: Run) -> None:
    result = run_command("claims")
    assert result.status == 0
    assert re.search(r"^K4 +wrong +calculated +One 4K request", result.out, re.MULTILINE)
    assert "248 claims: 86 right, 63 wrong, 79 conditions, 20 unverifiable" in result.out
    assert "\033" not in result.out


def test_filters_may_stand_without_the_word_list(run_command: Run) -> None:
    for words in (("claims",), ("claims", "list")):
        result = run_command(*words, "--topic", "kv_cache", "--verdict", "wrong", "--source", "S0")
        assert re.findall(r"^([A-Z]\d+) ", result.out, re.MULTILINE) == ["K1", "K4", "K5", "K15"]


def test_the_list_as_json_has_the_computed_answers(run_command: Run) -> None:
    rows = json.loads(run_command("claims", "--topic", "kv_cache", "--json").out)
    (k4,) = [row for row in rows if row["id"] == "K4"]
    assert "1,342,177,280 bytes = 1.342 GB" in k4["answer"]["en"]
    assert k4["values"][0] == {
        "name": "kv_gb",
        "unit": "GB",
        "published": [13.4, 13.4],
        "computed": 1.34217728,
        "holds": False,
        "tolerance": 0.001,
    }


def test_a_claim_shows_published_beside_computed(run_command: Run) -> None:
    out = run_command("claims", "show", "k4").out
    assert re.search(r"kv_gb +13\.4 +1\.34218 +GB +differs", out)
    assert "1,342,177,280 bytes = 1.342 GB = 1.25 GiB" in out
    assert re.search(r"kv_bytes +- +1,342,177,280 +bytes$", out, re.MULTILINE)
    assert json.loads(run_command("claims", "show", "K4", "--json").out)["errors"] == ["E1"]


def test_a_claim_without_arithmetic_shows_its_source_and_experiment(run_command: Run) -> None:
    out = run_command("claims", "show", "F6").out
    assert "online-softmax" in out
    assert "algorithm 1" in out


def test_all_is_shown_in_chinese_too(run_command: Run) -> None:
    for arguments in (("list",), ("show", "K4"), ("check",)):
        out = run_command("claims", *arguments, "--lang", "zh").out
        assert CHINESE.search(out)
        assert not re.search(r"\b(wrong|verdict|claims)\b", out)


def test_check_recomputes_everything(run_command: Run) -> None:
    result = run_command("claims", "check", "--json")
    found = json.loads(result.out)
    assert result.status == 0
    assert set(found) >= {"total", "by_verdict", "failed"}
    assert (found["total"], found["failed"]) == (248, [])
    assert "Every number is as recorded." in run_command("claims", "check").out


def test_a_claim_that_fails_is_named_and_the_status_is_1(
    run_command: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    from infra_lab.claims.computed import kv_cache

    monkeypatch.setattr(kv_cache, "k9", lambda: {"gqa": 7.0, "mqa": 64.0})
    result = run_command("claims", "check")
    assert result.status == 1
    assert (
        "K9: gqa is 7, worked out as 8; gqa is 7 and differs from what was published" in result.out
    )
    failed = json.loads(run_command("claims", "check", "--json").out)["failed"]
    assert [one["id"] for one in failed] == ["K9"]
    assert "FAULT" in run_command("claims", "show", "K9").out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("show", "K99"), "there is no claim 'K99': K goes from K1 to K16"),
        (("show", "Z1"), "there is no claim 'Z1': `infra-lab claims` lists all"),
        (("show", ""), "there is no claim ''"),
        (("--topic", "gpu"), "no claim has the topic 'gpu': choose one of kv_cache, paging"),
        (
            ("list", "--verdict", "maybe"),
            "no claim has the verdict 'maybe': choose one of right, wrong",
        ),
        (("list", "--source", "S2"), "no claim has the source 'S2': choose one of S0, S1, S3"),
        (("show",), "ID is missing"),
    ],
)
def test_what_is_not_there_is_one_line(
    run_command: Run, arguments: tuple[str, ...], message: str
) -> None:
    result = run_command("claims", *arguments)
    assert (result.status, result.out) == (2, "")
    assert message in result.err
    assert result.err.count("\n") == 1


def test_an_unknown_claim_is_answered_in_the_readers_language(run_command: Run) -> None:
    result = run_command("claims", "show", "K99", "--lang", "zh")
    assert result.err == "错误：没有论断 'K99'：K 从 K1 到 K16\n"
    result = run_command("claims", "show", "K4", "--lang", "zh", "--jsn")
    assert result.err.startswith("错误：没有选项 '--jsn'：是不是 '--json'？")


@pytest.mark.parametrize("command", ["list", "show", "check"])
def test_help_is_in_both_languages(run_command: Run, command: str) -> None:
    english = run_command("claims", command, "--help").out
    chinese = run_command("claims", command, "--help", "--lang", "zh").out
    assert not CHINESE.search(english)
    assert f"Example: infra-lab claims {command}" in english
    assert f"示例：infra-lab claims {command}" in chinese
