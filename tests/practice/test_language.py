"""Which language a learner reads: the option, then the variable, then the locale."""

from __future__ import annotations

import pytest

from infra_lab.errors import UsageError
from infra_lab.practice.language import choose_language
from infra_lab.texts import speaker


@pytest.mark.parametrize(
    ("environ", "language"),
    [
        ({}, "en"),
        ({"LANG": "en_US.UTF-8"}, "en"),
        ({"LANG": "zh_CN.UTF-8"}, "zh"),
        ({"LANG": "zh"}, "zh"),
        ({"LANG": "zh_TW"}, "zh"),
        ({"LANG": "de_DE.UTF-8"}, "en"),
        ({"LANG": "C"}, "en"),
        ({"LC_MESSAGES": "zh_CN.UTF-8", "LANG": "en_US.UTF-8"}, "zh"),
        ({"LC_ALL": "C", "LC_MESSAGES": "zh_CN.UTF-8"}, "en"),
        ({"LC_ALL": "", "LANG": "zh_CN"}, "zh"),
        ({"INFRA_LAB_LANG": "en", "LANG": "zh_CN.UTF-8"}, "en"),
        ({"INFRA_LAB_LANG": "zh-Hans"}, "zh"),
        ({"INFRA_LAB_LANG": "ZH"}, "zh"),
        ({"INFRA_LAB_LANG": ""}, "en"),
    ],
)
def test_without_an_option_the_environment_decides(environ: dict[str, str], language: str) -> None:
    assert choose_language(None, environ) == language


def test_the_option_overrules_the_environment() -> None:
    assert choose_language("en", {"INFRA_LAB_LANG": "zh", "LANG": "zh_CN"}) == "en"
    assert choose_language("zh", {}) == "zh"


@pytest.mark.parametrize(
    ("wanted", "environ", "named"),
    [("fr", {}, "--lang"), (None, {"INFRA_LAB_LANG": "chinese"}, "$INFRA_LAB_LANG")],
)
def test_a_language_that_is_none_is_refused_by_the_name_of_its_source(
    wanted: str | None, environ: dict[str, str], named: str
) -> None:
    with pytest.raises(UsageError, match="must be en or zh") as refused:
        choose_language(wanted, environ)
    assert named in str(refused.value)


def test_a_speaker_says_one_of_two_texts() -> None:
    assert speaker("en")("yes", "是") == "yes"
    assert speaker("zh")("yes", "是") == "是"
