"""The frame of experiments, on one that is made up, and what is asked before one runs."""

from __future__ import annotations

import pytest

from infra_lab.claims.experiments import needs
from infra_lab.claims.experiments.experiment import (
    Conclusion,
    Experiment,
    Result,
    Table,
    column,
    silent,
)
from infra_lab.claims.experiments.needs import check_needs, missing
from infra_lab.errors import UsageError
from infra_lab.texts import text

TABLE = Table(
    text("By size", "按大小"),
    (column("kind", "种类"), column("share", "占比", ".1%")),
    (("a", 0.25), (text("other", "其他"), 1)),
)
RESULT = Result(
    {"share": 0.25},
    (TABLE,),
    (
        Conclusion(text("{share:.0%} is used", "用了 {share:.0%}"), True),
        Conclusion(text("all is used", "全部用上"), False),
    ),
)


def draw(result: Result, path: object, language: str) -> None:
    raise AssertionError("nobody asked for a figure")


def made_up(*wanted: needs.Need) -> Experiment:
    return Experiment(
        "made-up", text("t", "题"), text("why?", "为何？"), lambda *_: RESULT, draw, 1, wanted
    )


def test_a_cell_is_shown_in_its_columns_format_and_the_readers_language() -> None:
    assert TABLE.shown("en") == [["a", "25.0%"], ["other", "100.0%"]]
    assert TABLE.shown("zh")[1] == ["其他", "100.0%"]


def test_a_row_has_a_cell_for_every_column() -> None:
    with pytest.raises(ValueError, match="a row of 1 cells under 2 columns"):
        Table(TABLE.title, TABLE.columns, (("a",),))


def test_a_conclusion_is_said_with_the_runs_numbers() -> None:
    assert RESULT.said(RESULT.conclusions[0], "zh") == "用了 25%"
    assert not RESULT.holds


def test_the_report_has_numbers_as_they_are_and_every_text_twice() -> None:
    assert RESULT.as_dict() == {
        "numbers": {"share": 0.25},
        "tables": [
            {
                "title": {"en": "By size", "zh": "按大小"},
                "columns": [{"en": "kind", "zh": "种类"}, {"en": "share", "zh": "占比"}],
                "formats": ["", ".1%"],
                "rows": [["a", 0.25], [{"en": "other", "zh": "其他"}, 1]],
            }
        ],
        "conclusions": [
            {"statement": {"en": "25% is used", "zh": "用了 25%"}, "holds": True},
            {"statement": {"en": "all is used", "zh": "全部用上"}, "holds": False},
        ],
    }


def test_a_need_that_is_not_met_says_what_to_do(
    monkeypatch: pytest.MonkeyPatch, tmp_path: pytest.TempPathFactory
) -> None:
    monkeypatch.setenv("INFRA_LAB_CACHE", str(tmp_path))
    monkeypatch.setenv("PATH", str(tmp_path))
    for need, english, chinese in (
        ("model", "run `infra-lab models pull smollm2-135m`", "先运行"),
        ("compiler", r"install g\+\+ or clang\+\+", "安装 g++"),
    ):
        with pytest.raises(UsageError, match=f"made-up .*{english}") as error:
            check_needs(made_up(need))  # type: ignore[arg-type]
        assert error.value.exit_status == 2
        assert chinese in (missing(need, lambda en, zh: zh) or "")  # type: ignore[arg-type]


def test_an_experiment_without_needs_runs_anywhere() -> None:
    check_needs(made_up())
    assert made_up().run(silent, 0) is RESULT
