"""Material's search cuts a Chinese query into words of the index, and never tries the last letter:
its loop over ends stops one short, so that a query of one whole word falls apart into pieces. The
built worker is mended here; where a new version is written otherwise, the build warns.

jieba, which cuts the pages' Chinese, tells of each step of loading its dictionary: its warnings
alone are news.
"""

from __future__ import annotations

import logging
from pathlib import Path

import jieba

WORKERS = "assets/javascripts/workers"
STOPS_SHORT = "o=s+1;o<t.length;o++"
GOES_TO_THE_END = "o=s+1;o<=t.length;o++"


def quiet_jieba() -> None:
    """Its logger's level is set when it is imported, so by its own call, after that."""
    jieba.setLogLevel(logging.WARNING)


def mend_segmenter(site: Path) -> bool:
    """Whether the worker of a built site was mended, or has been before."""
    mended = False
    for path in (site / WORKERS).glob("search.*.min.js"):
        text = path.read_text(encoding="utf-8")
        if text.count(STOPS_SHORT) == 1:
            path.write_text(text.replace(STOPS_SHORT, GOES_TO_THE_END), encoding="utf-8")
            mended = True
        elif GOES_TO_THE_END in text:
            mended = True
    return mended
