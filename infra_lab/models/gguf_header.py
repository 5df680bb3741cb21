"""The header of a GGUF file: metadata and where every tensor lies. Torch-free.

The official reader builds several numpy views for each of the 100,000 strings of a vocabulary
and takes about ten seconds for it; walking the same bytes with `struct` takes a tenth of one,
so nothing has to be cached beside the file. Layout: the GGUF specification, versions 2 and 3.
Answers "what is in a GGUF file?".
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from gguf.constants import (
    GGML_QUANT_SIZES,
    GGUF_DEFAULT_ALIGNMENT,
    GGUF_MAGIC,
    GGMLQuantizationType,
    GGUFValueType,
)

from infra_lab.errors import ModelLoadError

_SUPPORTED_VERSIONS = (2, 3)
_SCALARS = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}
_LENGTH = struct.Struct("<Q")
_MAX_DIMENSIONS = 4

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class GGUFTensorInfo:
    """One tensor in the file. `shape` is in torch's order, [out_features, in_features];
    `offset_bytes` counts from the start of the file."""

    name: str
    shape: tuple[int, ...]
    quantization: GGMLQuantizationType
    offset_bytes: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class GGUFHeader:
    """`value_types` has, for every key of `metadata`, the type of its value and, of a list, that
    of its items."""

    path: Path
    metadata: dict[str, Any]
    tensors: dict[str, GGUFTensorInfo]
    value_types: dict[str, tuple[GGUFValueType, GGUFValueType | None]]

    @property
    def architecture(self) -> str:
        return self.scalar("general.architecture", str)

    def scalar(self, key: str, kind: Callable[[Any], _T], default: _T | None = None) -> _T:
        """The one value of `key`, converted by `kind`.

        Raises ModelLoadError if it is absent and there is no default, or is of another nature.
        """
        if key not in self.metadata:
            if default is None:
                raise ModelLoadError(f"{self.path}: the GGUF metadata has no {key!r}")
            return default
        value = self.metadata[key]
        if isinstance(value, list):
            raise ModelLoadError(
                f"{self.path}: GGUF metadata {key!r} is a list; only one value is supported"
            )
        try:
            return kind(value)
        except (TypeError, ValueError) as error:
            raise ModelLoadError(f"{self.path}: GGUF metadata {key!r} is {value!r}") from error

    def values(self, key: str) -> list[Any]:
        """The list under `key`; ModelLoadError if it is absent or no list."""
        values = self.metadata.get(key)
        if not isinstance(values, list):
            raise ModelLoadError(f"{self.path}: the GGUF metadata has no list {key!r}")
        return values


def is_gguf(path: Path) -> bool:
    """Whether the file starts with GGUF's four magic bytes."""
    with path.open("rb") as file:
        return file.read(4) == struct.pack("<I", GGUF_MAGIC)


def read_header(path: Path) -> GGUFHeader:
    """Reads metadata and the tensor table, and checks that the file holds all it promises.

    Raises ModelLoadError when the file is not GGUF, of an unknown version, or truncated.
    """
    try:
        with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            return _HeaderParser(path, data).parse()
    except (struct.error, UnicodeDecodeError) as error:
        raise ModelLoadError(
            f"{path}: the GGUF header is damaged or cut short ({error}); fetch the file again"
        ) from error
    except (OSError, ValueError) as error:  # mmap refuses an empty file with ValueError
        raise ModelLoadError(f"{path}: cannot be read as a GGUF file: {error}") from error


class _HeaderParser:
    """Walks the header front to back; `_position` is the byte to read next."""

    def __init__(self, path: Path, data: mmap.mmap) -> None:
        self._path = path
        self._data = data
        self._position = 0

    def parse(self) -> GGUFHeader:
        num_tensors, num_metadata = self._preamble()
        metadata: dict[str, Any] = {}
        value_types: dict[str, tuple[GGUFValueType, GGUFValueType | None]] = {}
        for _ in range(num_metadata):
            key = self._string()
            kind = self._value_type(self._unpack("I"))
            items = self._value_type(self._unpack("I")) if kind is GGUFValueType.ARRAY else None
            metadata[key] = self._value(kind) if items is None else self._array(items)
            value_types[key] = (kind, items)
        table = [self._tensor_entry() for _ in range(num_tensors)]
        alignment = metadata.get("general.alignment", GGUF_DEFAULT_ALIGNMENT)
        if not isinstance(alignment, int) or alignment < 1:
            raise ModelLoadError(f"{self._path}: general.alignment is {alignment!r}")
        data_start = math.ceil(self._position / alignment) * alignment
        tensors = {
            name: self._tensor(name, shape, type_code, data_start + offset)
            for name, shape, type_code, offset in table
        }
        if len(tensors) < num_tensors:
            raise ModelLoadError(f"{self._path}: two tensors have the same name")
        return GGUFHeader(self._path, metadata, tensors, value_types)

    def _preamble(self) -> tuple[int, int]:
        magic = self._unpack("I")
        if magic != GGUF_MAGIC:
            raise ModelLoadError(f"{self._path}: not a GGUF file (it does not start with 'GGUF')")
        version = self._unpack("I")
        if version not in _SUPPORTED_VERSIONS:
            raise ModelLoadError(
                f"{self._path}: GGUF version {version} is not supported (versions 2 and 3, "
                "little-endian, are)"
            )
        return self._unpack("Q"), self._unpack("Q")

    def _unpack(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self._data, self._position)
        self._position += struct.calcsize(f"<{code}")
        return value

    def _string(self) -> str:
        (length,) = _LENGTH.unpack_from(self._data, self._position)
        start = self._position + 8
        self._position = start + length
        if self._position > len(self._data):
            raise struct.error(f"a string of {length} bytes does not fit")
        return self._data[start : self._position].decode("utf-8")

    def _value(self, kind: GGUFValueType) -> Any:
        return self._string() if kind is GGUFValueType.STRING else self._unpack(_SCALARS[kind])

    def _array(self, kind: GGUFValueType) -> list[Any]:
        count = self._unpack("Q")
        if kind is GGUFValueType.STRING:
            return [self._string() for _ in range(count)]
        if kind is GGUFValueType.ARRAY:
            raise struct.error("arrays of arrays are not known to any model")
        size = count * struct.calcsize(f"<{_SCALARS[kind]}")
        if size > len(self._data) - self._position:
            raise struct.error(f"an array of {count} values does not fit")
        values = struct.unpack_from(f"<{count}{_SCALARS[kind]}", self._data, self._position)
        self._position += size
        return list(values)

    def _value_type(self, type_code: int) -> GGUFValueType:
        try:
            return GGUFValueType(type_code)
        except ValueError:
            raise struct.error(f"unknown metadata type {type_code}") from None

    def _tensor_entry(self) -> tuple[str, tuple[int, ...], int, int]:
        name = self._string()
        num_dimensions = self._unpack("I")
        if num_dimensions > _MAX_DIMENSIONS:
            raise struct.error(f"tensor {name!r} claims {num_dimensions} dimensions")
        # GGML lists the fastest-moving dimension first, torch last.
        shape = tuple(reversed([self._unpack("Q") for _ in range(num_dimensions)]))
        return name, shape, self._unpack("I"), self._unpack("Q")

    def _tensor(
        self, name: str, shape: tuple[int, ...], type_code: int, start: int
    ) -> GGUFTensorInfo:
        try:
            quantization = GGMLQuantizationType(type_code)
        except ValueError:
            raise ModelLoadError(
                f"{self._path}: tensor {name!r} has the unknown quantization type {type_code}"
            ) from None
        block_size, block_bytes = GGML_QUANT_SIZES[quantization]
        if shape and shape[-1] % block_size:
            raise ModelLoadError(
                f"{self._path}: rows of tensor {name!r} have {shape[-1]} elements, which "
                f"{quantization.name} cannot hold (its blocks have {block_size})"
            )
        num_bytes = math.prod(shape) // block_size * block_bytes
        if start + num_bytes > len(self._data):
            raise ModelLoadError(
                f"{self._path}: truncated: tensor {name!r} ends at byte {start + num_bytes:,}, "
                f"but the file has {len(self._data):,}; fetch it again"
            )
        return GGUFTensorInfo(name, shape, quantization, start, num_bytes)
