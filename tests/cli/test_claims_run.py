"""`infra-lab claims run` and `experiments`, on an experiment that is made up for the purpose."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from infra_lab.claims.claim import EXPERIMENTS
from infra_lab.claims.experiments.experiment import (
    Conclusion,
    Experiment,
    Need,
    Progress,
    Result,
    Table,
    column,
)
from infra_lab.cli import claims_run
from infra_lab.texts import text

Run = Callable[..., Any]
NAME = "paged-memory"  # stands in for the one made up


@pytest.fixture(autouse=True)
def _english(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("INFRA_LAB_LANG", "en")


@pytest.fixture
def made_up(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts an experiment in the place of NAME; its one number is the seed."""

    def use(holds: bool = True, needs: tuple[Need, ...] = ()) -> None:
        def run(progress: Progress, seed: int) -> Result:
            progress(1, 1, text("counting", "计数"))
            table = Table(
                text("A table", "一张表"),
                (column("kind", "种类"), column("share", "占比", ".1%")),
                ((text("all", "全部"), 0.5),),
            )
            said = Conclusion(text("The seed is {seed:.0f}.", "种子是 {seed:.0f}。"), holds)
            return Result({"seed": seed}, (table,), (said,))

        def draw(result: Result, path: Path, language: str) -> None:
            path.write_text(f"<svg>{result.numbers['seed']:.0f} {language}</svg>")

        found = Experiment(
            NAME, text("A title", "标题"), text("Why?", "为何？"), run, draw, 1, needs
        )
        monkeypatch.setattr(claims_run, "experiment_of", lambda name: found)

    return use


def test_it_asks_shows_and_concludes(run_command: Run, made_up: Callable[..., None]) -> None:
    made_up()
    result = run_command("claims", "run", NAME, "--seed", "7")
    assert result.status == 0
    assert result.out.startswith(f"A title  ({NAME})\nWhy?\n")
    assert "A table\nkind  share\nall   50.0%\n" in result.out
    assert "✓ The seed is 7." in result.out
    assert re.search(r"^took \d+\.\d s; --figure FILE\.svg draws it$", result.out, re.MULTILINE)
    assert "counting: 1 of 1 parts" in result.err
    assert "\033" not in result.out


def test_a_conclusion_that_does_not_hold_is_crossed_and_the_status_is_1(
    run_command: Run, made_up: Callable[..., None]
) -> None:
    made_up(holds=False)
    result = run_command("claims", "run", NAME)
    assert result.status == 1
    assert "✗ The seed is 0." in result.out


def test_a_claim_shows_what_it_says_beside_the_result(
    run_command: Run, made_up: Callable[..., None]
) -> None:
    made_up()
    out = run_command("claims", "run", "p3").out
    assert "claim P3: Contiguous reservation wastes 60-80 % of the KV memory.\n" in out
    assert "verdict: right\n" in out
    assert "✓ The seed is 0." in out


def test_the_json_is_the_report_and_nothing_else(
    run_command: Run, made_up: Callable[..., None]
) -> None:
    made_up()
    result = run_command("claims", "run", NAME, "--json", "--seed", "3")
    report = json.loads(result.out)
    assert list(report) == ["experiment", "numbers", "tables", "conclusions", "seconds"]
    assert report["numbers"] == {"seed": 3}
    assert report["conclusions"] == [
        {"statement": {"en": "The seed is 3.", "zh": "种子是 3。"}, "holds": True}
    ]
    assert result.err == ""
    of_claim = json.loads(run_command("claims", "run", "P3", "--json").out)
    assert (of_claim["claim"]["id"], of_claim["claim"]["verdict"]) == ("P3", "right")


def test_a_figure_is_drawn_where_it_is_wanted_in_the_readers_language(
    run_command: Run, made_up: Callable[..., None], tmp_path: Path
) -> None:
    made_up()
    path = tmp_path / "new" / "figure.svg"
    result = run_command("claims", "run", NAME, "--figure", str(path), "--lang", "zh")
    assert path.read_text() == "<svg>0 zh</svg>"
    assert f"图：{path}" in result.out
    assert "✓ 种子是 0。" in result.out
    refused = run_command("claims", "run", NAME, "--figure", str(tmp_path / "figure.png"))
    assert (refused.status, refused.out) == (2, "")
    assert "must end in .svg" in refused.err
    chinese = run_command("claims", "run", NAME, "--figure", "figure.png", "--lang", "zh")
    assert chinese.err == "错误：--figure 输出 SVG：figure.png 必须以 .svg 结尾\n"


def test_what_a_machine_lacks_is_said_before_it_runs(
    run_command: Run,
    made_up: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    made_up(needs=("model",))
    monkeypatch.setenv("INFRA_LAB_CACHE", str(tmp_path))
    result = run_command("claims", "run", NAME)
    assert (result.status, result.out) == (2, "")
    assert result.err == (
        f"error: {NAME} needs the default model: run `infra-lab models pull smollm2-135m` first\n"
    )
    chinese = run_command("claims", "run", NAME, "--lang", "zh").err
    assert chinese.startswith(f"错误：实验 {NAME} 需要默认模型")


@pytest.mark.parametrize(
    ("wanted", "english", "chinese"),
    [
        (
            "paged-memry",
            "there is no experiment 'paged-memry': did you mean 'paged-memory'?",
            "没有实验 'paged-memry'：是不是 'paged-memory'？",
        ),
        (
            "zzz",
            "there is no experiment 'zzz': `infra-lab claims experiments` lists all",
            "没有实验 'zzz'：见 `infra-lab claims experiments`",
        ),
        (
            "K99",
            "there is no claim 'K99': K goes from K1 to K16",
            "没有论断 'K99'：K 从 K1 到 K16",
        ),
        (
            "K4",
            "K4 has no experiment: `infra-lab claims show K4` says what it rests on",
            "K4 没有对应的实验：`infra-lab claims show K4` 给出它的依据",
        ),
    ],
)
def test_what_is_no_experiment_is_one_line_in_either_language(
    run_command: Run, wanted: str, english: str, chinese: str
) -> None:
    result = run_command("claims", "run", wanted)
    assert (result.status, result.out, result.err) == (2, "", f"error: {english}\n")
    assert run_command("claims", "run", wanted, "--lang", "zh").err == f"错误：{chinese}\n"


@pytest.mark.parametrize("seed", ["-1", "one"])
def test_a_seed_is_a_whole_number_of_at_least_0(run_command: Run, seed: str) -> None:
    result = run_command("claims", "run", NAME, "--seed", seed)
    assert (result.status, result.out) == (2, "")
    assert "--seed must be" in result.err


def test_all_experiments_are_listed_with_their_claims(run_command: Run) -> None:
    out = run_command("claims", "experiments").out
    assert re.search(r"^paged-memory +Pages against reservations +.*\bP3\b", out, re.MULTILINE)
    rows = json.loads(run_command("claims", "experiments", "--json").out)
    assert tuple(row["experiment"] for row in rows) == EXPERIMENTS
    assert all(row["claims"] for row in rows)
    chinese = run_command("claims", "experiments", "--lang", "zh").out
    assert "分页与预留" in chinese


def test_a_claim_names_the_command_that_runs_its_experiment(run_command: Run) -> None:
    assert "infra-lab claims run P3  (paged-memory)" in run_command("claims", "show", "P3").out


def test_every_error_of_the_group_is_in_the_readers_language(run_command: Run) -> None:
    for arguments, message in (
        (("shw", "--lang", "zh"), "没有命令 'shw'：是不是 'show'？"),
        (("zzz", "--lang", "zh"), "没有命令 'zzz'：可用 list, show, check, run, experiments"),
        (("--topic", "x", "--lang", "zh"), "没有主题为 'x' 的论断：可选 kv_cache, paging"),
        (("run", "--lang", "zh"), "缺少 NAME"),
        (("run", NAME, "--seed", "-1", "--lang", "zh"), "--seed 至少为 0，而不是 -1"),
    ):
        result = run_command("claims", *arguments)
        assert (result.status, result.out) == (2, "")
        assert result.err.startswith("错误：")
        assert message in result.err
    assert run_command("claims", "shw").err == (
        "error: no command 'shw' of `infra-lab claims`: did you mean 'show'? "
        "(see `infra-lab claims --help`)\n"
    )
