"""What holds of every experiment: its conclusions do, in both languages, with a figure."""

from __future__ import annotations

import json
import math
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from string import Formatter

import pytest

from infra_lab.claims.claim import EXPERIMENTS
from infra_lab.claims.experiments import experiment
from infra_lab.claims.experiments.experiment import Result

LONG_S = 5
CHINESE = re.compile(r"[\u4e00-\u9fff]")
ResultOf = Callable[[str], Result]


def every_experiment() -> list[object]:
    marks = {
        one.name: [
            *([pytest.mark.slow] if one.seconds > LONG_S else []),
            *([pytest.mark.model] if "model" in one.needs else []),
        ]
        for one in map(experiment, EXPERIMENTS)
    }
    return [pytest.param(name, marks=marks[name], id=name) for name in EXPERIMENTS]


@pytest.mark.parametrize("name", every_experiment())
def test_every_conclusion_holds(name: str, result_of: ResultOf) -> None:
    result = result_of(name)
    assert result.conclusions
    assert [result.said(one, "en") for one in result.conclusions if not one.holds] == []


@pytest.mark.parametrize("name", every_experiment())
def test_numbers_are_finite_and_every_one_of_a_conclusion_is_there(
    name: str, result_of: ResultOf
) -> None:
    result = result_of(name)
    assert all(math.isfinite(number) for number in result.numbers.values())
    for one in result.conclusions:
        english, chinese = (
            {field for _, field, _, _ in Formatter().parse(one.statement[language]) if field}
            for language in ("en", "zh")
        )
        assert english == chinese <= set(result.numbers)


@pytest.mark.parametrize("name", every_experiment())
def test_what_it_says_is_in_both_languages(name: str, result_of: ResultOf) -> None:
    result = result_of(name)
    for one in result.conclusions:
        assert not CHINESE.search(result.said(one, "en"))
        assert CHINESE.search(result.said(one, "zh"))
    for table in result.tables:
        assert table.rows
        assert not CHINESE.search(table.title["en"])
        assert CHINESE.search(table.title["zh"])


@pytest.mark.parametrize("name", every_experiment())
def test_the_json_is_whole(name: str, result_of: ResultOf) -> None:
    report = json.loads(json.dumps(result_of(name).as_dict()))
    assert set(report) == {"numbers", "tables", "conclusions"}
    for table in report["tables"]:
        assert set(table) == {"title", "columns", "formats", "rows"}
        assert {len(row) for row in table["rows"]} == {len(table["columns"])}
        assert len(table["formats"]) == len(table["columns"])


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("name", every_experiment())
def test_the_figure_is_svg_with_words_of_its_language(
    name: str, language: str, result_of: ResultOf, tmp_path: Path
) -> None:
    path = tmp_path / "figure.svg"
    experiment(name).draw(result_of(name), path, language)  # type: ignore[arg-type]
    root = ET.parse(path).getroot()
    words = " ".join(
        text
        for element in root.iter()
        if element.tag.endswith("}text")
        for text in element.itertext()
    )
    assert root.tag.endswith("}svg")
    assert bool(CHINESE.search(words)) == (language == "zh")


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_it_is_filed_under_its_name_and_asks_in_both_languages(name: str) -> None:
    found = experiment(name)
    assert found.name == name
    assert found.question["en"].endswith("?")
    assert found.question["zh"].endswith("？")
    for text in (found.title, found.question):
        assert set(text) == {"en", "zh"}
        assert CHINESE.search(text["zh"])
        assert not CHINESE.search(text["en"])


def test_to_look_at_all_experiments_imports_nothing_heavy() -> None:
    program = (
        "import sys\n"
        "from infra_lab.claims.claim import EXPERIMENTS\n"
        "from infra_lab.claims.experiments import experiment\n"
        "for name in EXPERIMENTS: experiment(name)\n"
        "print(sorted({'torch', 'numpy', 'matplotlib', 'transformers'} & set(sys.modules)))\n"
    )
    found = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert found.stdout == "[]\n", found.stderr


def test_every_name_has_a_module_whose_experiment_bears_it() -> None:
    assert tuple(experiment(name).name for name in EXPERIMENTS) == EXPERIMENTS
