"""Where infra-lab keeps what it can make or fetch again."""

from __future__ import annotations

import os
from pathlib import Path

CACHE_VARIABLE = "INFRA_LAB_CACHE"


def default_cache_dir() -> Path:
    """$INFRA_LAB_CACHE, or the folder that the system sets aside for caches."""
    chosen = os.environ.get(CACHE_VARIABLE)
    if chosen:
        return Path(chosen).expanduser()
    from platformdirs import user_cache_dir

    return Path(user_cache_dir("infra-lab", appauthor=False))
