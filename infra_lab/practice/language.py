"""English or Chinese: which one the learner reads.

How a text is given in both is told in `infra_lab.texts`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping

from infra_lab.errors import UsageError
from infra_lab.texts import LANGUAGES

LANGUAGE_VARIABLE = "INFRA_LAB_LANG"
LOCALE_VARIABLES = ("LC_ALL", "LC_MESSAGES", "LANG")  # the first that is set decides, as in POSIX


def choose_language(
    wanted: str | None = None, environ: Mapping[str, str] | None = None, option: str = "--lang"
) -> str:
    """The option, else $INFRA_LAB_LANG, else the locale; English if that is not Chinese.

    Raises UsageError for an option or variable that names neither.
    """
    environ = os.environ if environ is None else environ
    for given, source in (
        (wanted, option),
        (environ.get(LANGUAGE_VARIABLE), f"${LANGUAGE_VARIABLE}"),
    ):
        if given:
            language = _base(given)
            if language not in LANGUAGES:
                raise UsageError(f"{source} must be {' or '.join(LANGUAGES)}, not {given!r}")
            return language
    locale = next((environ[name] for name in LOCALE_VARIABLES if environ.get(name)), "")
    return "zh" if _base(locale) == "zh" else "en"


def _base(tag: str) -> str:
    """zh_CN.UTF-8, zh-Hans, ZH -> zh."""
    return tag.strip().replace("-", "_").split(".")[0].split("_")[0].lower()
