"""How a model's own folder says that its hidden states become one vector. Torch-free.

Embedding models come with the settings of sentence-transformers: a list of modules, and of the one
that pools, which states it takes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

POOLINGS = ("mean", "last")
_MODES = {"pooling_mode_mean_tokens": "mean", "pooling_mode_lasttoken": "last"}
_KNOWN_MODULES = ("Transformer", "Pooling", "Normalize")


def pooling_of(path: Path) -> str | None:
    """One of POOLINGS, from modules.json and the folder of its Pooling module.

    None where there is no such thing, where states are pooled in another way or several, or where
    another module comes behind: what this engine computed would not be the model's embedding.
    """
    try:
        modules = json.loads((path / "modules.json").read_text(encoding="utf-8"))
        kinds = {str(one["type"]).rpartition(".")[2]: str(one["path"]) for one in modules}
        if "Pooling" not in kinds or not set(kinds) <= set(_KNOWN_MODULES):
            return None
        settings = path / kinds["Pooling"] / "config.json"
        config: dict[str, Any] = json.loads(settings.read_text(encoding="utf-8"))
        modes = [name for name, value in config.items() if "pooling_mode" in name and value is True]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None
    return _MODES.get(modes[0]) if len(modes) == 1 else None
