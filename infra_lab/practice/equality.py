"""When a result is the expected one.

An int is wanted where an int is expected: NumPy's will do, a float or a bool will not; a list
where a list is expected, and so on.
"""

from __future__ import annotations

import math
import numbers
from typing import Any


def is_equal(got: Any, expected: Any) -> bool:
    """Whether `got` is right; what cannot even be compared is not, whatever it raises."""
    try:
        return _equal(got, expected)
    except Exception:
        return False


def _equal(got: Any, expected: Any) -> bool:
    if isinstance(expected, bool):
        return _is_bool(got) and bool(got) == expected
    if isinstance(expected, numbers.Integral):
        return isinstance(got, numbers.Integral) and not _is_bool(got) and int(got) == int(expected)
    if isinstance(expected, float):
        is_number = isinstance(got, numbers.Real) and not _is_bool(got)
        return is_number and (got == expected or (math.isnan(got) and math.isnan(expected)))
    if type(expected).__module__ == "numpy" or type(got).__module__ == "numpy":
        import numpy as np

        got_array, wanted = np.asarray(got), np.asarray(expected)
        same_kind = type(got) is type(expected) and got_array.shape == wanted.shape
        return same_kind and bool(
            np.array_equal(got_array, wanted, equal_nan=wanted.dtype.kind == "f")
        )
    if isinstance(expected, (list, tuple)):
        return (
            isinstance(got, list if isinstance(expected, list) else tuple)
            and len(got) == len(expected)
            and all(map(_equal, got, expected))
        )
    if isinstance(expected, dict):
        return (
            isinstance(got, dict)
            and got.keys() == expected.keys()
            and all(_equal(got[key], value) for key, value in expected.items())
        )
    return type(got) is type(expected) and bool(got == expected)


def _is_bool(value: Any) -> bool:
    return isinstance(value, bool) or type(value).__name__ in ("bool_", "bool")


def type_note(got: Any, expected: Any) -> str:
    if got is None and expected is not None:
        return "the call returned None: is a return missing?"
    if type(got) is not type(expected) and not isinstance(got, type(expected)):
        return f"got a {type(got).__name__}, expected a {type(expected).__name__}"
    return ""
