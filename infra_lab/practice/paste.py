"""Values as Python text that can be pasted, short enough to read."""

from __future__ import annotations

import copy
from typing import Any

LONGEST = 400  # characters of one value
IMMUTABLE = (int, float, complex, bool, str, bytes, type(None))


class Shown:
    """An argument that is built by a piece of code, and is shown as that code.

    `shown(build([1, 2]), "build([1, 2])")` passes the built list to the solution.
    """

    def __init__(self, value: Any, text: str) -> None:
        self.value = value
        self.text = text


def shown(value: Any, text: str) -> Shown:
    return Shown(value, text)


def paste(value: Any) -> str:
    """Like repr, but for NumPy arrays as a call of np.array, and with its middle left out where
    it is long."""
    if isinstance(value, Shown):
        return value.text
    text = _array_text(value) if type(value).__module__ == "numpy" else _repr(value)
    if len(text) <= LONGEST:
        return text
    return f"{text[: LONGEST // 2]} ... {text[-LONGEST // 2 :]}"


def call_text(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    parts = [paste(arg) for arg in args]
    parts += [f"{key}={paste(value)}" for key, value in kwargs.items()]
    return f"{name}({', '.join(parts)})"


def snapshot(value: Any) -> Any:
    """A copy that later changes of `value` do not reach; of what cannot be copied, itself."""
    if isinstance(value, IMMUTABLE):
        return value
    try:
        return copy.deepcopy(value)
    except Exception:
        return value


def _repr(value: Any) -> str:
    try:
        if isinstance(value, list) and len(value) > 200:
            # The whole text of a long list would take longer to make than the call itself.
            return f"[{', '.join(map(paste, value[:20]))}, ...]  # {len(value)} items"
        return repr(value)
    except Exception as error:
        return f"<{type(value).__name__} whose repr raises {type(error).__name__}>"


def _array_text(value: Any) -> str:
    import numpy as np

    if not isinstance(value, np.ndarray):
        return repr(value.item()) if hasattr(value, "item") else repr(value)
    if value.size > 64:
        return f"<array of shape {value.shape}, {value.dtype}>"
    items = np.array2string(
        value, separator=", ", threshold=100, max_line_width=10**6, floatmode="unique"
    )
    items = items.replace("\n", "").replace("nan", "np.nan").replace("inf", "np.inf")
    is_default = value.dtype in (np.float64, np.int64, np.bool_) and value.size > 0
    if value.size == 0:
        return f"np.empty({value.shape}, np.{value.dtype})"
    return f"np.array({items})" if is_default else f"np.array({items}, np.{value.dtype})"
