"""Values as Python text that can be pasted, short enough to read."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterable
from typing import Any

LONGEST = 400  # characters of one value
SHORTEST = 12  # characters that are too few to show both ends of anything
IMMUTABLE = (int, float, complex, bool, str, bytes, type(None))
BRACKETS: dict[type, str] = {list: "[]", tuple: "()", dict: "{}", set: "{}"}
UNITS: dict[type, str] = {**dict.fromkeys(BRACKETS, "items"), str: "characters", bytes: "bytes"}


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
    """Like repr, but Python also for infinities, NaN and NumPy arrays, and with `...` for the
    middle of what is long. Never with a comment: what follows it in a call must still count."""
    if isinstance(value, Shown):
        return value.text
    try:
        return _text(value, LONGEST)
    except Exception as error:
        return _unshowable(value, error)


def call_text(name: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
    """The call, and at its end, in a comment, the sizes of the arguments that are not whole."""
    parts = [paste(arg) for arg in args]
    parts += [f"{key}={paste(value)}" for key, value in kwargs.items()]
    sizes = [size for value in (*args, *kwargs.values()) if (size := _size_if_cut(value))]
    return f"{name}({', '.join(parts)})" + (f"  # {'; '.join(sizes)}" if sizes else "")


def snapshot(value: Any) -> Any:
    """A copy that later changes of `value` do not reach; of what cannot be copied, itself."""
    if isinstance(value, IMMUTABLE):
        return value
    try:
        return copy.deepcopy(value)
    except Exception:
        return value


def _size_if_cut(value: Any) -> str:
    unit = UNITS.get(type(value))
    try:
        if unit is None or _whole(value, LONGEST) is not None:
            return ""
    except Exception:  # RecursionError: nested too deep to be looked at
        return ""
    return f"{type(value).__name__} of {len(value):,} {unit}"


def _text(value: Any, room: int) -> str:
    whole = _whole(value, room)
    return _cut(value, room) if whole is None else whole


def _whole(value: Any, room: int) -> str | None:
    """The text of the value, or None if it has more than `room` characters. Of a long container
    it looks at no more than would fit: the whole text would take longer than the call itself."""
    kind = _container(value)
    if kind is None:
        text = _array_text(value) if _is_array(value) else _leaf(value)
        return text if text is not None and len(text) <= room else None
    if 3 * len(value) > room:  # the shortest item is "1, "
        return None
    texts = []
    left = room - 2  # what is nested without end ends here
    for member in _members(value):
        pair = [_whole(part, left) for part in member]
        if None in pair:
            return None
        texts.append(": ".join(map(str, pair)))
        left -= len(texts[-1]) + 2
    text = _enclosed(kind, texts)
    return text if len(text) <= room else None


def _cut(value: Any, room: int) -> str:
    """Both ends of the value, and `...` between them, which is Python too."""
    if room < SHORTEST:
        return "..."
    half = room // 2
    kind = _container(value)
    if kind is not None:
        members = list(_members(_shortened(value, half)))
        front = _fill(members, half)
        back = _fill(reversed(members[len(front) :]), half)[::-1]
        between = ["...: ..." if kind is dict else "..."]
        is_all = len(front) + len(back) == len(members)
        return _enclosed(kind, front + ([] if is_all else between) + back)
    if _is_array(value):
        return _array_ends(value)
    if type(value) in (str, bytes):
        return f"{value[:half]!r} + ... + {value[-half:]!r}"
    text = _leaf(value)
    if type(value) is int:
        return f"int({text[:half]!r} + ... + {text[-half:]!r})"
    return f"{text[:half]} ... {text[-half:]}"


def _fill(members: Iterable[tuple[Any, ...]], room: int) -> list[str]:
    """The first members, at least one, and no more than fit."""
    texts: list[str] = []
    left = room
    for member in members:
        text = ": ".join(_text(part, room // 2) for part in member)
        left -= len(text) + 2
        if texts and left < 0:
            break
        texts.append(text)
    return texts


def _container(value: Any) -> type | None:
    """The kind of container that the value is shown as; none where it has a repr of its own."""
    return next((kind for kind in BRACKETS if _has_repr_of(kind, value)), None)


def _has_repr_of(kind: type, value: Any) -> bool:
    own: Any = type(value).__repr__
    return own is kind.__repr__


def _members(value: Any) -> Iterable[tuple[Any, ...]]:
    return value.items() if isinstance(value, dict) else ((item,) for item in value)


def _shortened(value: Any, count: int) -> Any:
    """A list without the middle that is not shown in any case: making its pairs takes long."""
    is_long = isinstance(value, list | tuple) and len(value) > 2 * count
    return [*value[:count], *value[-count:]] if is_long else value


def _enclosed(kind: type, texts: list[str]) -> str:
    if kind is set and not texts:
        return "set()"
    brackets = BRACKETS[kind]
    comma = "," if kind is tuple and len(texts) == 1 else ""
    return f"{brackets[0]}{', '.join(texts)}{comma}{brackets[1]}"


def _leaf(value: Any) -> str:
    if isinstance(value, Shown):
        return value.text
    if type(value).__module__ == "numpy" and hasattr(value, "item"):
        value = value.item()
    if _has_repr_of(float, value) and not math.isfinite(value):
        # repr gives names that Python does not have.
        return f"{'-' if value < 0 else ''}float({'nan' if value != value else 'inf'!r})"
    try:
        return repr(value)
    except Exception as error:
        return _unshowable(value, error)


def _unshowable(value: Any, error: Exception) -> str:
    return f"<{type(value).__name__} whose repr raises {type(error).__name__}>"


# ---- NumPy ----


def _is_array(value: Any) -> bool:
    return type(value).__module__ == "numpy" and type(value).__name__ == "ndarray"


def _array_text(array: Any) -> str | None:
    """None if it is too long for sure: the shortest item is "1, "."""
    if 3 * array.size > LONGEST:
        return None
    if array.size == 0:
        return f"np.empty({array.shape}, {_dtype_text(array)})"
    return f"np.array({_items_text(array)}{_dtype_argument(array)})"


def _array_ends(array: Any) -> str:
    """Both ends of the items in a row, and the shape."""
    items = f"{_items_text(array.flat[:3])[:-1]}, ..., {_items_text(array.flat[-3:])[1:]}"
    return f"np.array({items}{_dtype_argument(array)}).reshape{array.shape}"


def _items_text(array: Any) -> str:
    import numpy as np

    text = np.array2string(
        array, separator=", ", threshold=LONGEST, max_line_width=10**6, floatmode="unique"
    ).replace("\n", "")
    is_text = array.dtype.kind in "US"
    return text if is_text else text.replace("nan", "np.nan").replace("inf", "np.inf")


def _dtype_argument(array: Any) -> str:
    """Nothing where np.array chooses this type by itself."""
    import numpy as np

    is_default = array.dtype in (np.float64, np.int64, np.bool_)
    return "" if is_default else f", {_dtype_text(array)}"


def _dtype_text(array: Any) -> str:
    import numpy as np

    name = str(array.dtype)
    return f"np.{name}" if hasattr(np, name) else repr(name)
