"""One safetensors file: what is in it, read a tensor at a time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open

from infra_lab.errors import ModelLoadError
from infra_lab.models.shapes import Shape

_FLOATS = ("F64", "F32", "BF16", "F16")


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """What the file's header says of a tensor; `dtype` is "F32", "I32" and so on."""

    dtype: str
    shape: Shape


def tensor_entries(file: Path) -> dict[str, TensorEntry]:
    """Every tensor's type and shape by its name; ModelLoadError when the file is damaged."""
    entries: dict[str, TensorEntry] = {}
    with opened(file) as tensors:
        for name in tensors.keys():  # noqa: SIM118 - not a dict, and not iterable
            view = tensors.get_slice(name)
            entries[name] = TensorEntry(view.get_dtype(), tuple(view.get_shape()))
    return entries


def float_shapes(entries: Mapping[str, TensorEntry], file: Path) -> dict[str, Shape]:
    """The shapes of tensors that are all floats; ModelLoadError naming one that is not."""
    for name, entry in entries.items():
        if entry.dtype not in _FLOATS:
            raise ModelLoadError(
                f"{file}: tensor {name!r} is of type {entry.dtype}, which is not "
                f"supported; {', '.join(_FLOATS)} are"
            )
    return {name: entry.shape for name, entry in entries.items()}


def tensor_shapes(file: Path) -> dict[str, Shape]:
    """Every tensor's shape by its name.

    Raises ModelLoadError when the file is damaged or has a tensor of another type than floats.
    """
    return float_shapes(tensor_entries(file), file)


@contextmanager
def opened(file: Path) -> Iterator[Any]:
    """The file mapped into memory for the time of one read: nothing stays resident."""
    try:
        with safe_open(file, framework="pt") as tensors:
            yield tensors
    except (SafetensorError, OSError) as error:
        raise ModelLoadError(f"{file}: damaged or truncated ({error}); fetch it again") from error
